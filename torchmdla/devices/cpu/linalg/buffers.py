"""From tensors to memory: results in the caller's buffers, everything else in one planned workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, memref, tensor

from torchmdla.compiler.mlir import explained, forward_of, run
from torchmdla.devices.cpu.kernel_spec import NotANestError
from torchmdla.devices.cpu.linalg.scans import write_loops
from torchmdla.devices.cpu.linalg.torch_to_linalg import filled_with

ALIGNMENT = 64

# Ops whose result is (a part of) their first operand's memory.
VIEWS = frozenset(
    f"memref.{name}" for name in ("subview", "expand_shape", "collapse_shape", "cast", "reinterpret_cast", "transpose")
)

_BUFFERIZE = (
    "one-shot-bufferize{bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map%s}"
)
# Ops from which upstream's analysis of what may be changed in place, whose time grows with their square or faster,
# costs more than the copies that are made without it. ``copies.py`` removes most of these.
_LARGE = 1000

_AFTER = "func.func(linalg-generalize-named-ops),lower-affine,canonicalize,cse"


def is_large(module: ir.Module) -> bool:
    """Whether to bufferise ``@forward`` without upstream's analysis."""
    return count_ops(module) > _LARGE


def count_ops(module: ir.Module) -> int:
    """How many ops ``@forward`` has, but for constants, of which equal ones are one."""
    return sum(op.operation.name != "arith.constant" for op in forward_of(module).regions[0].blocks[0].operations)


def bufferize(module: ir.Module, large: bool | None = None) -> Any:
    """Turns ``@forward`` on tensors into a function of buffers without results, and returns it.

    Its arguments are those of the program (tensors as buffers that are only read) and then the results' buffers.
    ``large``: whether it goes without upstream's analysis; :func:`is_large` by default.

    Raises:
        CompileError: upstream cannot bufferise the program.
    """
    with explained("bufferisation failed"):
        forward = forward_of(module)
        large = is_large(module) if large is None else large
        if not large:
            # Before the results have destinations: upstream's pass may put two values into one of these.
            run(module, "eliminate-empty-tensors")
            forward = forward_of(module)
        inputs = len(forward.type.inputs)
        _pass_destinations(forward)
        # Upstream's tensor-matching ops bufferise by a pass of their own, which knows nothing of reuse in place.
        foreign = any(op.operation.name.startswith("tm_tensor.") for op in forward.regions[0].blocks[0].operations)
        if foreign:
            run(module, "func.func(tm-tensor-bufferize)", _BUFFERIZE % " copy-before-write=1", _AFTER)
        elif large:
            run(module, _BUFFERIZE % " copy-before-write=1", _AFTER)
        else:
            run(module, _BUFFERIZE % "", _AFTER)
    forward = forward_of(module)
    write_loops(forward)
    _compute_in_destinations(forward, inputs)
    return forward


def fill_splats(module: ir.Module) -> None:
    """Turns constant tensors of one value into fills: a program for all sizes has no constants of all sizes."""
    found = [op.operation for op in forward_of(module).regions[0].blocks[0].operations if _is_splat(op.operation)]
    for op in found:
        kind, number = op.results[0].type, op.attributes["value"]
        with ir.InsertionPoint(op), op.location:
            value = arith.ConstantOp(kind.element_type, number.get_splat_value()).result
            empty = tensor.EmptyOp(list(kind.shape), kind.element_type).result
            filled = filled_with(value, empty)
        op.results[0].replace_all_uses_with(filled)
        op.erase()


def _is_splat(op: Any) -> bool:
    if op.name != "arith.constant" or not isinstance(op.results[0].type, ir.RankedTensorType):
        return False
    value = op.attributes["value"]
    return isinstance(value, ir.DenseElementsAttr) and bool(value.is_splat)


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


def _compute_in_destinations(function: Any, inputs: int) -> None:
    """Lets a buffer that is only copied to a result be that result's buffer, from its allocation on."""
    block = function.regions[0].blocks[0]
    for destination in list(block.arguments)[inputs:]:
        copies = [use.owner.operation for use in destination.uses]
        if len(copies) != 1 or copies[0].name != "memref.copy":
            continue
        position = {op.operation: k for k, op in enumerate(block.operations)}
        allocation = _whole_allocation(copies[0].operands[0])
        if allocation is not None and not _is_written_after(allocation.results[0], copies[0], position):
            _replace_allocation(allocation, destination)
            copies[0].erase()
            allocation.erase()


def _whole_allocation(buffer: Any) -> Any | None:
    """The allocation of which ``buffer`` is all, in the same order."""
    while isinstance(buffer, ir.OpResult) and _is_contiguous(ir.MemRefType(buffer.type)):
        op = buffer.owner.operation
        if op.name == "memref.alloc":
            return op
        if op.name not in ("memref.expand_shape", "memref.collapse_shape", "memref.cast"):
            return None
        buffer = op.operands[0]
    return None


def _is_contiguous(kind: Any) -> bool:
    return bool(kind == ir.MemRefType.get(kind.shape, kind.element_type))


def _is_written_after(buffer: Any, copy: Any, position: dict[Any, int]) -> bool:
    """Whether anything but a kernel's input or a copy's source uses the buffer after ``copy``."""
    return any(k > position[copy] and not reads for k, reads in uses(buffer, position))


def _replace_allocation(allocation: Any, destination: Any) -> None:
    kind = ir.MemRefType(allocation.results[0].type)
    if kind == destination.type:
        allocation.results[0].replace_all_uses_with(destination)
        return
    strides, _ = kind.get_strides_and_offset()
    sizes = list(kind.shape)
    with ir.InsertionPoint(allocation), allocation.location:
        view = memref.ReinterpretCastOp(kind, destination, [], [], [], [0], sizes, strides)
    allocation.results[0].replace_all_uses_with(view.result)


def uses(buffer: Any, position: dict[Any, int]) -> list[tuple[int, bool]]:
    """The steps that use a buffer, through views and inside regions, and whether they certainly only read it."""
    found = []
    for use in buffer.uses:
        owner = use.owner.operation
        if owner.name in VIEWS:
            found += uses(owner.results[0], position)
        reads = use.operand_number < len(owner.operands) - _outputs(owner)
        while owner not in position:
            owner, reads = owner.parent.operation, False
        found.append((position[owner], reads or owner.name in VIEWS))
    return found


def _outputs(op: Any) -> int:
    """How many of an op's last operands it may write."""
    if op.name == "linalg.generic":
        return int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1])
    return 1 if op.name == "memref.copy" else len(op.operands)


def layout(value: Any) -> tuple[list[int], int]:
    """Element strides and element offset of a buffer.

    Raises:
        NotANestError: they are not known at compile time.
    """
    kind = ir.MemRefType(value.type)
    try:
        strides, offset = kind.get_strides_and_offset()
    except (ValueError, RuntimeError) as error:
        raise NotANestError(f"layout of {kind}") from error
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    if not kind.has_static_shape or dynamic in strides or offset == dynamic:
        raise NotANestError(f"dynamic layout of {kind}")
    return list(strides), offset


@dataclass(frozen=True)
class Lifetime:
    """``size`` bytes that are needed from step ``first`` to step ``last``, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both are needed at some step."""
        return self.first <= other.last and other.first <= self.last


def plan(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets of the buffers in one workspace, and its bytes: largest first, each at the lowest free offset.

    Buffers whose lifetimes meet never overlap; every offset is a multiple of 64 bytes.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for k in sorted(range(len(lifetimes)), key=lambda k: -lifetimes[k].size):
        own = lifetimes[k]
        busy = sorted((offsets[j], offsets[j] + lifetimes[j].size) for j in placed if own.meets(lifetimes[j]))
        for start, end in busy:
            if start - offsets[k] >= own.size:
                break
            offsets[k] = max(offsets[k], _aligned(end))
        placed.append(k)
    return offsets, _aligned(max((offsets[k] + lifetimes[k].size for k in placed), default=0))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
