"""What a kernel computes: a loop nest over flat buffers, free of MLIR objects.

A nest is read from a ``linalg.generic`` (or a copy) on statically shaped buffers. Every access is linear in the loop
indices, so an operand is a base pointer and one stride per loop; two ops that do the same to different buffers give
equal nests, and equal nests become one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_mlir import ir

from torchmdla.devices.cpu import math_library

# How scalars lie in memory: bool is one byte, and an index is 64 bits wide on every target.
_STORED = {"i1": "i8", "index": "i64"}

# Bytes of every element type that kernels may touch.
ELEMENT_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}


class NotANestError(Exception):
    """The op is no nest of linear accesses around a straight-line body; it is lowered by upstream's passes."""


def stored(element: str) -> str:
    """The element type in memory of a value of type ``element``.

    Raises:
        NotANestError: values of this type have no place in a kernel's memory.
    """
    kept = _STORED.get(element, element)
    if kept not in ELEMENT_BYTES:
        raise NotANestError(f"element type {element}")
    return kept


def computed(element: str) -> str:
    """The type in registers of a value of MLIR type ``element``."""
    return "i64" if element == "index" else element


@dataclass(frozen=True)
class Operand:
    """One buffer: the type of its elements in registers (``i1`` lies in memory as ``i8``), and an element stride
    for each loop."""

    element: str
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """A buffer that the body reads at computed indices: its sizes and element strides."""

    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Instruction:
    """One op of the body, with one result. Values are numbered: inputs, outputs, scalars, then results in order.

    ``name`` is the MLIR op's, or ``"index"`` (``payload``: the loop), ``"load"`` (``payload``: the table; the
    operands are its indices), or ``"assert"`` (its operand must be true, or the call fails).
    """

    name: str
    operands: tuple[int, ...]
    result: str
    attributes: str = ""
    payload: int = -1


@dataclass(frozen=True)
class Nest:
    """``inputs`` and ``outputs`` enter the body as its first values, then ``scalars`` (types of values fixed over
    the nest). The body's ``yields`` are the outputs' new values. Loops marked in ``reduction`` carry the outputs, from
    the constant ``initial`` on if there is one, from what lies in memory otherwise."""

    sizes: tuple[int, ...]
    reduction: tuple[bool, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: tuple[str, ...]
    tables: tuple[Table, ...]
    body: tuple[Instruction, ...]
    yields: tuple[int, ...]
    initial: Instruction | None = None

    @property
    def may_fail(self) -> bool:
        """Whether the kernel reports a status: it checks indices or conditions."""
        return bool(self.tables) or any(i.name == "assert" for i in self.body)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.inputs + self.outputs


@dataclass(frozen=True)
class BoundNest:
    """A nest and the MLIR values (buffers, then tables, then scalars) that one use of it works on."""

    nest: Nest
    buffers: tuple[Any, ...]
    tables: tuple[Any, ...]
    scalars: tuple[Any, ...]


def from_generic(op: Any) -> BoundNest:
    """The nest of a ``linalg.generic`` on buffers.

    Raises:
        NotANestError: layouts or maps are not static and linear, or the body is not straight-line.
    """
    maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
    kinds = [str(k) for k in op.attributes["iterator_types"]]
    buffers = list(op.operands)
    sizes = _loop_sizes(maps, buffers, len(kinds))
    outputs = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1]
    operands = [_operand(v, m, len(kinds)) for v, m in zip(buffers, maps, strict=True)]
    reader = _BodyReader(op.regions[0].blocks[0])
    nest = Nest(
        sizes=tuple(sizes),
        reduction=tuple("reduction" in k for k in kinds),
        inputs=tuple(operands[: len(operands) - outputs]),
        outputs=tuple(operands[len(operands) - outputs :]),
        scalars=tuple(computed(str(v.type)) for v in reader.scalars),
        tables=tuple(_table(v) for v in reader.tables),
        body=tuple(reader.instructions),
        yields=tuple(reader.yields),
    )
    bound = BoundNest(nest, tuple(buffers), tuple(reader.tables), tuple(reader.scalars))
    return _simplified(_without_unread_inputs(bound))


def filled_with(bound: BoundNest) -> Instruction | None:
    """The constant that a nest writes to all of its only output, if that is all it does."""
    nest = bound.nest
    constant = len(nest.body) == 1 and nest.body[0].name == "arith.constant" and nest.yields == (1,)
    return nest.body[0] if constant and not nest.inputs and not nest.scalars else None


def starting_from(bound: BoundNest, initial: Instruction) -> BoundNest:
    """A reduction over a buffer that has just been filled with ``initial``, without reading it."""
    return replace(bound, nest=replace(bound.nest, initial=initial))


def overwrites(bound: BoundNest, buffer: Any) -> bool:
    """Whether the nest reduces into all of ``buffer``, its only output, and uses it for nothing else."""
    nest = bound.nest
    if len(nest.outputs) != 1 or bound.buffers[-1] != buffer or buffer in (*bound.buffers[:-1], *bound.tables):
        return False
    written = math.prod(size for size, reduced in zip(nest.sizes, nest.reduction, strict=True) if not reduced)
    return any(nest.reduction) and 0 not in nest.sizes and written == math.prod(ir.MemRefType(buffer.type).shape)


def from_copy(source: Any, destination: Any) -> BoundNest:
    """The nest that copies one buffer to another of equal sizes.

    Raises:
        NotANestError: a layout is not static.
    """
    kind = ir.MemRefType(source.type)
    rank = len(kind.shape)
    identity = ir.AffineMap.get_identity(rank)
    nest = Nest(
        sizes=tuple(kind.shape),
        reduction=(False,) * rank,
        inputs=(_operand(source, identity, rank),),
        outputs=(_operand(destination, identity, rank),),
        scalars=(),
        tables=(),
        body=(),
        yields=(0,),
    )
    return _simplified(BoundNest(nest, (source, destination), (), ()))


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


def _loop_sizes(maps: Sequence[Any], buffers: Sequence[Any], loops: int) -> list[int]:
    """Loop sizes: each loop is, by the definition of linalg, a plain dimension of some operand."""
    sizes: dict[int, int] = {}
    for affine_map, buffer in zip(maps, buffers, strict=True):
        for expression, size in zip(affine_map.results, ir.MemRefType(buffer.type).shape, strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    if len(sizes) != loops:
        raise NotANestError("a loop bound is not an operand's size")
    return [sizes[i] for i in range(loops)]


def _operand(buffer: Any, affine_map: Any, loops: int) -> Operand:
    strides = [0] * loops
    for expression, stride in zip(affine_map.results, layout(buffer)[0], strict=True):
        for loop, factor in _coefficients(expression).items():
            strides[loop] += factor * stride
    element = str(ir.MemRefType(buffer.type).element_type)
    stored(element)
    return Operand(computed(element), tuple(strides))


def _coefficients(expression: Any) -> dict[int, int]:
    """The factor of each loop in a linear expression without constant part."""
    if isinstance(expression, ir.AffineDimExpr):
        return {expression.position: 1}
    if isinstance(expression, ir.AffineConstantExpr) and expression.value == 0:
        return {}
    if isinstance(expression, ir.AffineAddExpr):
        total = _coefficients(expression.lhs)
        for loop, factor in _coefficients(expression.rhs).items():
            total[loop] = total.get(loop, 0) + factor
        return total
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        return {loop: f * expression.rhs.value for loop, f in _coefficients(expression.lhs).items()}
    raise NotANestError(f"index {expression} is not linear")


def _table(buffer: Any) -> Table:
    kind = ir.MemRefType(buffer.type)
    stored(str(kind.element_type))
    return Table(computed(str(kind.element_type)), tuple(kind.shape), tuple(layout(buffer)[0]))


class _BodyReader:
    """Turns the block of a ``linalg.generic`` into instructions and lists what it takes from outside."""

    def __init__(self, block: Any) -> None:
        self.tables: list[Any] = []
        self.scalars: list[Any] = []
        self.instructions: list[Instruction] = []
        self.yields: list[int] = []
        ops = [op.operation for op in block.operations]
        self._inside = {result for op in ops for result in op.results}
        self._numbers = {argument: number for number, argument in enumerate(block.arguments)}
        self._constants = self._outer_constants(ops)
        self._count_scalars(ops)
        for constant in self._constants:
            self._append(Instruction("arith.constant", (), _type(constant), _attributes(constant.owner)), constant)
        for op in ops[:-1]:
            self._read(op)
        self.yields = [self._numbers[v] for v in ops[-1].operands]

    def _outer_constants(self, ops: Sequence[Any]) -> list[Any]:
        """Constants defined outside are part of the code, not operands."""
        outer = dict.fromkeys(v for op in ops for v in op.operands if self._is_outer(v))
        return [v for v in outer if _defining_name(v) == "arith.constant"]

    def _is_outer(self, value: Any) -> bool:
        return value not in self._inside and value not in self._numbers and not isinstance(value.type, ir.MemRefType)

    def _count_scalars(self, ops: Sequence[Any]) -> None:
        for value in (v for op in ops for v in op.operands):
            if self._is_outer(value) and value not in self._constants:
                self._numbers[value] = len(self._numbers)
                self.scalars.append(value)

    def _append(self, instruction: Instruction, result: Any) -> None:
        self.instructions.append(instruction)
        self._numbers[result] = len(self._numbers)

    def _read(self, op: Any) -> None:
        if op.name == "cf.assert":
            condition = self._numbers[op.operands[0]]
            self._append(Instruction("assert", (condition,), "i1"), op)
            return
        if len(op.regions) or len(op.results) != 1:
            raise NotANestError(f"{op.name} in the body")
        result = op.results[0]
        if op.name == "linalg.index":
            self._append(Instruction("index", (), "i64", payload=ir.IntegerAttr(op.attributes["dim"]).value), result)
            return
        if op.name == "memref.load":
            self._read_load(op)
            return
        if not op.name.startswith("arith.") and not math_library.is_known(op.name):
            raise NotANestError(f"{op.name} in the body")
        operands = tuple(self._numbers[v] for v in op.operands)
        for kind in (result.type, *(v.type for v in op.operands)):
            if not isinstance(kind, (ir.IntegerType, ir.FloatType, ir.IndexType)):
                raise NotANestError(f"a value of type {kind}")
        self._append(Instruction(op.name, operands, _type(result), _attributes(op)), result)

    def _read_load(self, op: Any) -> None:
        buffer, *indices = op.operands
        if buffer not in self.tables:
            self.tables.append(buffer)
        numbers = tuple(self._numbers[v] for v in indices)
        self._append(
            Instruction("load", numbers, _type(op.results[0]), payload=self.tables.index(buffer)), op.results[0]
        )


def _defining_name(value: Any) -> str:
    return value.owner.name if isinstance(value, ir.OpResult) else ""


def _type(value: Any) -> str:
    return computed(str(value.type))


def _attributes(op: Any) -> str:
    """The attributes of a scalar op as MLIR text; indices are 64-bit integers in kernels."""
    items = [f"{name} = {op.attributes[name]}" for name in op.attributes]
    return "{" + ", ".join(items).replace(": index", ": i64") + "}" if items else ""


def _without_unread_inputs(bound: BoundNest) -> BoundNest:
    """Drops inputs that no instruction reads (the window operand of a pooling has only sizes)."""
    nest = bound.nest
    used = {v for i in nest.body for v in i.operands} | set(nest.yields)
    kept = [k for k in range(len(nest.inputs)) if k in used]
    renumber = {old: new for new, old in enumerate(kept)}
    shift = len(nest.inputs) - len(kept)

    def moved(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(renumber[v] if v < len(nest.inputs) else v - shift for v in values)

    slim = replace(
        nest,
        inputs=tuple(nest.inputs[k] for k in kept),
        body=tuple(replace(i, operands=moved(i.operands)) for i in nest.body),
        yields=moved(nest.yields),
    )
    buffers = tuple(bound.buffers[k] for k in kept) + bound.buffers[len(nest.inputs) :]
    return replace(bound, nest=slim, buffers=buffers)


def _simplified(bound: BoundNest) -> BoundNest:
    """Drops loops of one iteration and joins loops that walk memory as one."""
    nest = bound.nest
    drop = [d for d, size in enumerate(nest.sizes) if size == 1 and d not in _indexed(nest)]
    nest = _keep_loops(nest, [d for d in range(len(nest.sizes)) if d not in drop])
    while (pair := _joinable(nest)) is not None:
        nest = _join(nest, *pair)
    return replace(bound, nest=nest)


def _indexed(nest: Nest) -> set[int]:
    """Loops whose index the body uses as a value."""
    return {i.payload for i in nest.body if i.name == "index"}


def _joinable(nest: Nest) -> tuple[int, int] | None:
    loops = [d for d in range(len(nest.sizes)) if d not in _indexed(nest)]
    for outer in loops:
        for inner in loops:
            if outer != inner and nest.reduction[outer] == nest.reduction[inner]:
                size = nest.sizes[inner]
                if all(o.strides[outer] == o.strides[inner] * size for o in nest.operands):
                    return outer, inner
    return None


def _join(nest: Nest, outer: int, inner: int) -> Nest:
    sizes = list(nest.sizes)
    sizes[inner] *= sizes[outer]
    return _keep_loops(replace(nest, sizes=tuple(sizes)), [d for d in range(len(sizes)) if d != outer])


def _keep_loops(nest: Nest, kept: list[int]) -> Nest:
    renumber = {old: new for new, old in enumerate(kept)}

    def narrowed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(o, strides=tuple(o.strides[d] for d in kept)) for o in operands)

    return replace(
        nest,
        sizes=tuple(nest.sizes[d] for d in kept),
        reduction=tuple(nest.reduction[d] for d in kept),
        inputs=narrowed(nest.inputs),
        outputs=narrowed(nest.outputs),
        body=tuple(replace(i, payload=renumber[i.payload]) if i.name == "index" else i for i in nest.body),
    )
