"""Code that llvmlite's LLVM makes of the text of MLIR's LLVM: numbers keep all their bits."""

from __future__ import annotations

import ctypes

import pytest
from torch_mlir import ir

from torchmdla import _C
from torchmdla.compiler.mlir import new_context
from torchmdla.devices.cpu.codegen.emit import to_llvm_ir
from torchmdla.devices.cpu.codegen.foreign import foreign_object
from torchmdla.devices.cpu.codegen.linking import link
from torchmdla.devices.cpu.target.processors import host

# Bits by the type: zeros, short and long decimals, the smallest and largest numbers, infinities and NaNs.
NUMBERS = {
    "f16": (0x0000, 0x8000, 0x2E66, 0x3C00, 0x0001, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7D01),
    "bf16": (0x0000, 0x8000, 0x3DCD, 0x3F80, 0x0001, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81),
    "f32": (
        *(0x0, 0x80000000, 0x3DCCCCCD, 0x3F9E0419, 0x1, 0x7F7FFFFF, 0x7F800000, 0xFF800000),
        *(0x7FC00000, 0x7FC00001, 0x7F800001, 0xFFFFFFFF),
    ),
    "f64": (
        *(0x0, 1 << 63, 0x3FB999999999999A, 0x400921FB54442D18, 0x40091EB851EB851F, 0x1, 0x7FEFFFFFFFFFFFFF),
        *(0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x7FF0000000000001),
    ),
}


@pytest.mark.parametrize("element", NUMBERS)
def test_numbers_keep_their_bits(element: str) -> None:
    numbers = NUMBERS[element]
    constants = "\n".join(
        f"%c{k} = llvm.mlir.constant({bits:#x} : {element}) : {element}\n"
        f"%p{k} = llvm.getelementptr %p[{k}] : (!llvm.ptr) -> !llvm.ptr, {element}\n"
        f"llvm.store volatile %c{k}, %p{k} : {element}, !llvm.ptr"
        for k, bits in enumerate(numbers)
    )
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(f"llvm.func @write(%p: !llvm.ptr) {{ {constants}\nllvm.return }}")
        image = _C.Image(link([foreign_object(to_llvm_ir(module), host())]).to_bytes())
    kind = {"f16": ctypes.c_uint16, "bf16": ctypes.c_uint16, "f32": ctypes.c_uint32, "f64": ctypes.c_uint64}[element]
    written = (kind * len(numbers))()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(image.symbol("write"))(ctypes.addressof(written))
    assert [hex(bits) for bits in written] == [hex(bits) for bits in numbers]


def test_numbers_without_a_type_of_their_own() -> None:
    body = """llvm.func @f(%x: f32, %y: f64) -> f64 {
      %a = llvm.mlir.constant(1.0e-5 : f32) : f32
      %b = llvm.fadd %x, %a : f32
      %w = llvm.fpext %b : f32 to f64
      %c = llvm.mlir.constant(0.1 : f64) : f64
      %d = llvm.fadd %w, %c : f64
      llvm.return %d : f64 }"""
    with new_context(), ir.Location.unknown():
        text = to_llvm_ir(ir.Module.parse(body))
        image = _C.Image(link([foreign_object(text, host())]).to_bytes())
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_float, ctypes.c_double)(image.symbol("f"))
    assert function(0.0, 0.0) == ctypes.c_float(1e-5).value + 0.1
