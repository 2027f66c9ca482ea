"""From MLIR text to object code."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable

from torch_mlir import ir
from torch_mlir.execution_engine import ExecutionEngine

from torchmdla.compiler.mlir import explained, ops_named, run
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.code.llvm_options import configure
from torchmdla.devices.cpu.machine import converts_bf16
from torchmdla.devices.cpu.verifier import is_asked_for
from torchmdla.errors import CompileError

# Regions that kernels do not cover (see outlined_regions.py) go to loops by upstream's passes.
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

# Operations in bfloat16 as ones in float32, then conversions as integer operations: ahead of everything that makes
# others of them.
_WITHOUT_BF16 = (
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32}",
    "arith-expand{include-bf16=true}",
)

# What is written for kernels is not cleaned up first: LLVM does so, and makes the same code of it.
_TO_LLVM = (
    "convert-scf-to-cf",
    "arith-expand",
    "convert-vector-to-llvm",
    "convert-math-to-llvm{approximate-log1p=0}",
    "convert-math-to-libm",
    "convert-to-llvm",
    "reconcile-unrealized-casts",
)


def to_llvm(module: ir.Module, target: Target, has_regions: bool, has_bf16: bool = True) -> None:
    """Lowers the assembled module to the LLVM dialect, in place. Where the processor does not convert to bfloat16, LLVM
    would call a function for each element."""
    ahead = _WITHOUT_BF16 if has_bf16 and not converts_bf16(target) else ()
    with explained("the generated code does not lower to LLVM"):
        if has_regions:
            run(module, *_REGIONS)
        # To verify a module takes longer than most of these passes do.
        run(module, *ahead, *_TO_LLVM, verify_each=is_asked_for())
        if has_regions:
            _read_bools_as_bytes(module)


def _read_bools_as_bytes(module: ir.Module) -> None:
    """Make every byte but 0 a true bool. Kernels read bools so; LLVM takes the lowest bit of what regions read."""
    from torch_mlir.dialects import llvm  # Its classes take longer to import than most programs to compile.

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
    """Folds what conversions to the LLVM dialect leave behind: buffers' descriptors that are made and taken apart."""
    run(module, "canonicalize", "cse")


def to_object(module: ir.Module, entry: str, externals: Iterable[str]) -> bytes:
    """Object code of a module in the LLVM dialect.

    The engine links before it hands the code out. The runtime's functions do not exist in this process and are never
    called here, so each gets an address that is only there to be linked.

    Raises:
        CompileError: LLVM does not take the module.
    """
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


def disassembled(object_code: bytes) -> str:
    """The instructions of object code, by what the machine has of ``llvm-objdump`` and ``objdump``."""
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
