"""Lowering of MLIR to object code."""

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
_WITHOUT_BF16 = (
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


def to_llvm(module: ir.Module, target: Target, has_regions: bool, has_bf16: bool = True) -> None:
    """Lower the assembled module to the LLVM dialect, in place.

    If the processor does not convert to bfloat16, conversions are expanded: LLVM would call a function per element.
    """
    ahead = _WITHOUT_BF16 if has_bf16 and not converts_bf16(target) else ()
    with explained("the generated code does not lower to LLVM"):
        if has_regions:
            run(module, *_REGIONS)
        # Verifying a module takes longer than most of these passes.
        run(module, *ahead, *_TO_LLVM, verify_each=is_asked_for())
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


def to_object(module: ir.Module, entry: str, externals: Iterable[str]) -> bytes:
    """Return the object code of a module in the LLVM dialect.

    The engine links the code before it returns it. The runtime's functions do not exist in this process and are never
    called here. Each gets an address that serves only the linking.

    Raises:
        CompileError: LLVM rejects the module.
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
