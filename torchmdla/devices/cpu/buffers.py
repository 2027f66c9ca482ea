"""From tensors to memory: results in the caller's buffers, everything else in one planned workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from torchmdla.devices.cpu.frontend import explained, forward_of, run

ALIGNMENT = 64

_BUFFERIZE = (
    "one-shot-bufferize{bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map%s}"
)
_AFTER = "func.func(linalg-generalize-named-ops),lower-affine,canonicalize,cse"


def bufferize(module: ir.Module) -> Any:
    """Turns ``@forward`` on tensors into a function of buffers without results, and returns it.

    Its arguments are those of the program (tensors as buffers that are only read) and then the results' buffers.

    Raises:
        CompileError: upstream cannot bufferise the program.
    """
    forward = forward_of(module)
    _pass_destinations(forward)
    # Upstream's tensor-matching ops bufferise by a pass of their own, which knows nothing of reuse in place.
    foreign = any(op.operation.name.startswith("tm_tensor.") for op in forward.regions[0].blocks[0].operations)
    with explained("bufferisation failed"):
        if foreign:
            run(module, "func.func(tm-tensor-bufferize)", _BUFFERIZE % " copy-before-write=1", _AFTER)
        else:
            run(module, "eliminate-empty-tensors", _BUFFERIZE % "", _AFTER)
    return forward_of(module)


def _forward(module: ir.Module) -> Any:
    return next(op for op in module.body.operations if op.operation.name == "func.func")


def _pass_destinations(function: Any) -> None:
    """Adds a buffer argument for each result and stores the result there instead of returning it."""
    block = function.regions[0].blocks[0]
    inputs, tensors = list(function.type.inputs), list(function.type.results)
    buffers = [ir.MemRefType.get(t.shape, t.element_type) for t in tensors]
    return_op = block.operations[len(block.operations) - 1].operation
    place = ir.Location.unknown()
    with ir.InsertionPoint(return_op), place:
        flags = {"restrict": ir.UnitAttr.get(), "writable": ir.UnitAttr.get()}
        for value, buffer in zip(list(return_op.operands), buffers, strict=True):
            destination = block.add_argument(buffer, place)
            ir.Operation.create(
                "bufferization.materialize_in_destination", operands=[value, destination], attributes=flags
            )
        ir.Operation.create("func.return")
    return_op.erase()
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs + buffers, []))
    read_only = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False)})
    free = ir.DictAttr.get({})
    kinds = [read_only if isinstance(t, ir.RankedTensorType) else free for t in inputs]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(kinds + [free] * len(buffers))


@dataclass(frozen=True)
class Lifetime:
    """``size`` bytes that are needed from step ``first`` to step ``last``, both included."""

    size: int
    first: int
    last: int


def plan(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets of the buffers in one workspace, and its bytes: largest first, each at the lowest free offset.

    Buffers whose lifetimes meet never overlap; every offset is a multiple of 64 bytes.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for k in sorted(range(len(lifetimes)), key=lambda k: -lifetimes[k].size):
        own = lifetimes[k]
        busy = sorted(
            (offsets[j], offsets[j] + lifetimes[j].size)
            for j in placed
            if lifetimes[j].first <= own.last and own.first <= lifetimes[j].last
        )
        for start, end in busy:
            if start - offsets[k] >= own.size:
                break
            offsets[k] = max(offsets[k], _aligned(end))
        placed.append(k)
    return offsets, _aligned(max((offsets[k] + lifetimes[k].size for k in placed), default=0))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
