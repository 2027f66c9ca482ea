"""Lowering of MLIR to object code, with the options of the LLVM that compiles kernels."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from torch_mlir import _mlir_libs, ir
from torch_mlir.execution_engine import ExecutionEngine

from torchmdla.compiler.mlir import convert_errors, ops_named, run
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.codegen.foreign import foreign_object
from torchmdla.devices.cpu.ir.verifier import is_enabled
from torchmdla.devices.cpu.target.machine import converts_bf16, emission_target
from torchmdla.errors import CompileError
from torchmdla.support import forks

# Upstream's passes lower the regions that kernels do not cover (see outlined_regions.py) to loops.
_REGIONS = (
    "func.func(tm-tensor-to-loops,refback-munge-memref-copy,convert-linalg-to-loops)",
    "lower-affine",
    "convert-math-to-funcs",
    "memref-expand",
    "expand-strided-metadata",
    "lower-affine",
    "canonicalize",
    "cse",
)

# Operations in bfloat16 become operations in float32, then conversions become integer operations. These passes run
# before all passes that lower these operations.
_EXPAND_BF16 = (
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32}",
    "arith-expand{include-bf16=true}",
)

# The code of kernels is not cleaned up first: LLVM does this, and generates the same code.
_TO_LLVM = (
    "convert-scf-to-cf",
    "arith-expand",
    "convert-vector-to-llvm",
    "convert-math-to-llvm{approximate-log1p=0}",
    "convert-math-to-libm",
    "convert-to-llvm",
    "reconcile-unrealized-casts",
)

# Schedules specify how far loops are unrolled. Further unrolling by LLVM was not observed to make kernels faster, and
# takes a third of LLVM's time. LLVM unrolls much for processors whose model keeps long loops decoded.
_NEVER_UNROLL = ("-unroll-full-max-count=0", "-unroll-runtime=false", "-unroll-allow-partial=false")

# Loop strength reduction takes a third of LLVM's time. Kernels advance a few pointers by multiples of an index in a
# register. They are as fast without it: inner loops have the same instructions, except for the addresses.
_KEEP_INDICES = "-disable-lsr"

# The options and the stream belong to the whole process.
_lock = forks.hold_over_fork(threading.RLock())

# This machine's architecture, by LLVM's name.
_ARCHITECTURE = Target("cpu", platform.machine()).architecture

_HEADING = re.compile(r"^\*\*\* .* \*\*\*\n", re.MULTILINE)

# Functions that the engine links to the module.
_LINKER_FUNCTIONS = re.compile(r"^define .*@(?:atexit|__lljit\w*)\(", re.MULTILINE)


def to_llvm(module: ir.Module, target: Target, has_regions: bool, has_bf16: bool = True) -> None:
    """Lower the assembled module to the LLVM dialect, in place.

    If the processor does not convert to bfloat16, conversions are expanded: LLVM would call a function per element.
    """
    ahead = _EXPAND_BF16 if has_bf16 and not converts_bf16(emission_target(target)) else ()
    with convert_errors("the generated code does not lower to LLVM"):
        if has_regions:
            run(module, *_REGIONS)
        # Verifying a module takes longer than most of these passes.
        run(module, *ahead, *_TO_LLVM, verify_each=is_enabled())
        if has_regions:
            _read_bools_as_bytes(module)


def _read_bools_as_bytes(module: ir.Module) -> None:
    """Replace loads of bools by loads of bytes; every byte except 0 is true.

    Kernels read bools in the same manner. Without this, LLVM would use the lowest bit of the bools that regions read.
    """
    from torch_mlir.dialects import llvm  # Importing its classes takes longer than compiling most programs.

    with module.context:
        bit, byte = (ir.IntegerType.get_signless(width) for width in (1, 8))
    for load in ops_named(module.operation, {"llvm.load"}):
        if load.results[0].type != bit:
            continue
        with ir.InsertionPoint(load), load.location:
            value = llvm.load(byte, load.operands[0])
            zero = llvm.ConstantOp(byte, ir.IntegerAttr.get(byte, 0)).result
            truth = llvm.icmp(llvm.ICmpPredicate.ne, value, zero)
        load.results[0].replace_all_uses_with(truth)
        load.erase()


def fold(module: ir.Module) -> None:
    """Fold the buffer descriptors that conversions to the LLVM dialect build and take apart again."""
    run(module, "canonicalize", "cse")


def to_object(module: ir.Module, target: Target, entry: str, externals: Iterable[str]) -> bytes:
    """Return the object code of a module in the LLVM dialect.

    MLIR's bindings contain LLVM for this machine's architecture. Code for another one is made by llvmlite's LLVM. The
    engine links the code before it returns it. The runtime's functions do not exist in this process and are never
    called here. Each gets an address that serves only the linking.

    Raises:
        CompileError: LLVM rejects the module.
    """
    emitted = emission_target(target)
    if emitted.architecture != _ARCHITECTURE:
        return foreign_object(to_llvm_ir(module), emitted)
    configure()
    try:
        engine = ExecutionEngine(module, opt_level=3)
    except RuntimeError as error:
        raise CompileError("LLVM rejects the generated code", diagnostic=str(error)) from None
    never_called = ctypes.CFUNCTYPE(None)(lambda: None)
    for symbol in externals:
        engine.raw_register_runtime(symbol, ctypes.cast(never_called, ctypes.c_void_p))
    engine.raw_lookup(entry)
    descriptor, path = tempfile.mkstemp(suffix=".o")
    os.close(descriptor)
    try:
        engine.dump_to_object_file(path)
        with open(path, "rb") as file:
            return file.read()
    finally:
        os.unlink(path)


def to_llvm_ir(module: ir.Module) -> str:
    """Return the LLVM IR of a module in the LLVM dialect, before LLVM's own passes."""
    from torch_mlir.dialects import llvm

    return str(llvm.translate_module_to_llvmir(module.operation))


def disassemble(object_code: bytes) -> str:
    """Return the disassembly of object code, by ``llvm-objdump`` or else ``objdump``."""
    tool = shutil.which("llvm-objdump") or shutil.which("objdump")
    if tool is None:
        return "# neither llvm-objdump nor objdump is installed\n"
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(object_code)
        file.flush()
        done = subprocess.run(
            [tool, "-d", "--no-show-raw-insn", file.name], capture_output=True, text=True, check=False
        )
    return done.stdout or f"# {done.stderr}"


# Options of LLVM. They are command-line options and apply to the whole process.


@cache
def configure() -> None:
    """Set the options that apply to all compilations of this process."""
    set_options(*_NEVER_UNROLL, _KEEP_INDICES)


def set_options(*options: str) -> None:
    """Set options, as on LLVM's command line. Unknown options are ignored."""
    arguments = [b"torchmdla", *(option.encode() for option in options)]
    _library().LLVMParseCommandLineOptions(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments), None)


@cache
def _library() -> ctypes.CDLL:
    """Return the LLVM library of MLIR's bindings."""
    (path,) = Path(next(iter(_mlir_libs.__path__))).glob("libTorchMLIRAggregateCAPI.*")
    return ctypes.CDLL(str(path))


# LLVM IR after LLVM's passes, before instruction selection. MLIR's execution engine returns only object code. With a
# command-line option, LLVM prints the IR to the standard error stream of the process. The stream is redirected to a
# file during that time.


class CapturedIr:
    """Text that LLVM printed. It is set at the end of the block."""

    text = ""


@contextmanager
def capture_optimised_ir(is_on: bool = True) -> Iterator[CapturedIr]:
    """Capture the IR that any thread compiles to object code in the block; capture nothing unless ``is_on``."""
    result = CapturedIr()
    if not is_on:
        yield result
        return
    with _lock, tempfile.TemporaryFile() as file:
        with _standard_error(file):
            set_options("-print-isel-input=true")
            try:
                yield result
            finally:
                set_options("-print-isel-input=false")
        file.seek(0)
        functions = (text.strip("\n") for text in _HEADING.split(file.read().decode(errors="replace")))
    result.text = "\n\n".join(text for text in functions if text and not _LINKER_FUNCTIONS.search(text)) + "\n"


@contextmanager
def _standard_error(file: IO[bytes]) -> Iterator[None]:
    saved = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
