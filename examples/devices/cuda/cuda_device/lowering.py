"""Compilation of linalg on tensors to kernels."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import llvm, memref

from cuda_device.code import to_library, to_ptx
from cuda_device.kernels import Kernels, shape_of
from cuda_device.program import DeviceProgram, Slot, Step, place_buffers, place_literals
from torchmdla.compiler.artifact import Artifact, Manifest, Pack
from torchmdla.compiler.mlir import convert_errors, forward_of, run
from torchmdla.compiler.program import Argument, Program, Result
from torchmdla.devices.levels.fusion import fuse
from torchmdla.errors import CompileError

_BUFFERISE = (
    "eliminate-empty-tensors",
    "one-shot-bufferize{bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map}",
    "func.func(linalg-generalize-named-ops)",
    "canonicalize",
    "cse",
)
_TO_LLVM = (
    "gpu.module(canonicalize,cse,expand-strided-metadata,lower-affine,convert-scf-to-cf,"
    "convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv},canonicalize,cse,reconcile-unrealized-casts)"
)

# Size in bytes of the buffer that a pack fills for the entry: a weight of the runtime.
_HANDLE_BYTES = 64

_SIZES = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "bool": 1},
}


def lower(program: Program, module: ir.Module, index: int, is_emulated: bool) -> Artifact:
    """Return an artifact for a card, whose weights are packs: they stay on the card.

    ``module`` is the program as linalg on tensors, in the current context.

    Raises:
        CompileError: the program cannot be compiled.
    """
    with convert_errors("the program cannot be bufferised"):
        function = _bufferise(module)
    kernels = Kernels(function, len(program.arguments))
    packs = _packs(program, index)
    signature = dict(zip(function.arguments, _signature(program), strict=True))
    slots, literals = dict[Any, Slot](), dict[int, bytes]()
    for value in (value for launch in kernels.launches for value in launch.operands if value not in slots):
        if not isinstance(value, ir.BlockArgument) and value.owner.operation.name == "memref.get_global":
            literals[len(slots)] = _constant(module, value)
            slots[value] = Slot("literal", _bytes_of(value))
        else:
            slots[value] = signature.get(value) or Slot("temporary", _bytes_of(value))
    positions = {value: position for position, value in enumerate(slots)}
    steps = [
        Step(launch.kernel, launch.blocks, tuple(positions[value] for value in launch.operands))
        for launch in kernels.launches
    ]
    placed, data = place_literals(list(slots.values()), literals)
    placed, workspace = place_buffers(placed, steps)
    with convert_errors("the kernels do not lower to LLVM"):
        run(kernels.holder, _TO_LLVM)
    text = str(llvm.translate_module_to_llvmir(kernels.module.operation))
    code = to_library(text) if is_emulated else to_ptx(text)
    weights = tuple(slot.bytes for slot in signature.values() if slot.kind == "pack")
    content = DeviceProgram(index, code, tuple(placed), tuple(steps), workspace, weights, data)
    manifest = Manifest(
        program.key,
        "cuda_entry",
        program.arguments,
        program.results,
        workspace_bytes=0,
        packs=packs,
        statistics={"kernels": len(steps)},
    )
    return Artifact(content.to_bytes(), manifest)


def _bufferise(module: ir.Module) -> Any:
    """Return the module's function on buffers, after the fusion of elementwise ops. Its last arguments are results."""
    function = fuse(module)
    constant = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False)})
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([constant for _ in function.type.inputs])
    run(module, *_BUFFERISE)
    function = forward_of(module)
    _return_by_arguments(function)
    return function


def _return_by_arguments(function: Any) -> None:
    """Add an argument for each result. Results in memory of their own are computed there, others are copied."""
    block = function.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1]
    for number in range(len(end.operands)):
        value = end.operands[number]
        result = block.add_argument(value.type, function.location)
        if not isinstance(value, ir.BlockArgument) and value.owner.operation.name == "memref.alloc":
            value.replace_all_uses_with(result)
        else:
            with ir.InsertionPoint(end), end.location:
                memref.copy(value, result)


def _is_pack(argument: Argument) -> bool:
    return argument.role == "parameter" and argument.kind == "tensor" and 0 not in argument.shape


def _packs(program: Program, index: int) -> tuple[Pack, ...]:
    """Return the packs that copy weights to the card. Programs share the copies of equal sizes."""
    packs = []
    for position, argument in enumerate(program.arguments):
        if _is_pack(argument):
            recipe = hashlib.sha256(f"cuda {index} {_bytes(argument)}".encode()).hexdigest()
            packs.append(Pack("cuda_upload", recipe, (position,), _HANDLE_BYTES))
    return tuple(packs)


def _signature(program: Program) -> list[Slot]:
    """Return the slots of the arguments and results."""
    slots, packs = [], 0
    for number, argument in enumerate(program.arguments):
        if _is_pack(argument):
            slots.append(Slot("pack", _bytes(argument), packs))
            packs += 1
        else:
            slots.append(Slot("scalar" if argument.kind == "scalar" else "argument", _bytes(argument), number))
    return slots + [Slot("result", _bytes(result), number) for number, result in enumerate(program.results)]


def _bytes(tensor: Argument | Result) -> int:
    if tensor.dtype not in _SIZES:
        raise CompileError(f"the cuda device does not compute with {tensor.dtype}")
    return math.prod(tensor.shape) * _SIZES[tensor.dtype]


def _bytes_of(value: Any) -> int:
    element = ir.MemRefType(value.type).element_type
    return math.prod(shape_of(value)) * (8 if isinstance(element, ir.IndexType) else max(1, element.width // 8))


def _constant(module: ir.Module, value: Any) -> bytes:
    """Return the content of a constant tensor."""
    name = ir.FlatSymbolRefAttr(value.owner.operation.attributes["name"]).value
    content = ir.SymbolTable(module.operation)[name].attributes["initial_value"]
    if str(content.type.element_type) == "bf16":
        raise CompileError("the cuda device has no code for constant tensors of bfloat16")
    return np.ascontiguousarray(np.asarray(content)).tobytes()
