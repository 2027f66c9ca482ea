"""From the bufferised function to steps on base buffers."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer, Scalar, TableAccess
from torchmdla.devices.cpu.expressions import Expression, contents, gather, index, load, rewritten
from torchmdla.devices.cpu.kernel_spec import NotANestError, Table, computed, stored
from torchmdla.devices.cpu.linalg.bodies import LOOKUP, OPERAND, BodyReader
from torchmdla.devices.cpu.linalg.buffers import VIEWS, layout
from torchmdla.devices.cpu.linalg.lookups import Index, as_operands
from torchmdla.devices.cpu.linalg.outlined_regions import outline
from torchmdla.devices.cpu.linalg.views import View, viewed
from torchmdla.devices.cpu.loop_program import (
    AssertStep,
    LoadStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    ScalarStep,
    Step,
    StoreStep,
)
from torchmdla.errors import CompileError


def read_program(function: Any, program: Program) -> LoopProgram:
    """The steps of the bufferised ``function`` (see :func:`buffers.bufferize`).

    Raises:
        CompileError: something in it cannot be laid out at compile time.
    """
    return _Reader(function, program).read()


class _Reader:
    """Walks the function's ops in order; each becomes a step, or a view that steps use."""

    def __init__(self, function: Any, program: Program) -> None:
        self._block = function.regions[0].blocks[0]
        self._steps: list[Step] = []
        self._globals: dict[str, str] = {}
        self._views: dict[Any, View] = {}
        self._scalars: dict[Any, Scalar] = {}
        self._regions = 0
        self._handlers = {
            "linalg.generic": self._nest,
            "memref.copy": self._nest,
            "memref.load": self._load,
            "memref.store": self._store,
            "memref.alloc": self._allocate,
            "memref.get_global": self._global,
            "cf.assert": self._assert,
            **dict.fromkeys(VIEWS, self._view),
            **dict.fromkeys(("memref.dealloc", "memref.assume_alignment", "func.return"), self._nothing),
        }
        self._bind_arguments(program)

    def read(self) -> LoopProgram:
        for op in self._block.operations:
            self._handlers.get(op.operation.name, self._other)(op.operation)
        for step in self._steps:
            if isinstance(step, LoopNest):
                _flatten_fixed(step)
        for buffer in {view.buffer for view in self._views.values() if view.buffer.fixed}:
            buffer.sizes = (buffer.count,)
        return LoopProgram(_without_unused_scalars(self._steps), self._globals)

    # Buffers and scalars.

    def _bind_arguments(self, program: Program) -> None:
        for position, value in enumerate(self._block.arguments):
            if not isinstance(value.type, ir.MemRefType):
                self._scalars[value] = Scalar("f64", position)
            elif position < len(program.arguments):
                self._add_buffer(value, Buffer(program.arguments[position].role, *_shape(value), position=position))
            else:
                self._add_buffer(value, Buffer("result", *_shape(value), position=position))

    def _add_buffer(self, value: Any, buffer: Buffer) -> None:
        self._views[value] = View.whole(buffer)

    def _allocate(self, op: Any) -> None:
        self._add_buffer(op.results[0], _temporary(op.results[0]))

    def _global(self, op: Any) -> None:
        symbol = ir.FlatSymbolRefAttr(op.attributes["name"]).value
        if symbol not in self._globals:
            self._globals[symbol] = _global_text(symbol, op)
        self._add_buffer(op.results[0], Buffer("global", *_shape(op.results[0]), symbol=symbol))

    def _view(self, op: Any) -> None:
        source = self._view_of(op.operands[0])
        view = viewed(source, op) if len(source.constants) == len(source.buffer.sizes) else None
        if view is None:
            source.buffer.fixed = True
            view = View.of_memory(source.buffer, op.results[0])
        self._views[op.results[0]] = view

    def _view_of(self, value: Any) -> View:
        if value not in self._views:
            raise CompileError(f"a buffer of unknown origin: {value}")
        return self._views[value]

    def _fixed(self, value: Any) -> Buffer:
        """The buffer of a value, for a use that relies on its layout."""
        buffer = self._view_of(value).buffer
        buffer.fixed = True
        return buffer

    def _define(self, value: Any) -> Scalar:
        self._scalars[value] = Scalar(computed(str(value.type)))
        return self._scalars[value]

    # Nests.

    def _nest(self, op: Any) -> None:
        if any(0 in ir.MemRefType(v.type).shape for v in op.operands):
            return
        try:
            self._steps.append(self._generic(op) if op.name == "linalg.generic" else self._copy(op))
        except NotANestError:
            self._region(op)

    def _generic(self, op: Any) -> LoopNest:
        maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
        reduction = ["reduction" in str(k) for k in op.attributes["iterator_types"]]
        buffers = list(op.operands)
        sizes = _loop_sizes(maps, buffers, len(reduction))
        inputs = len(buffers) - ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1]
        body = BodyReader(op.regions[0].blocks[0], self._scalars, inputs, any(reduction))
        shapes = [ir.MemRefType(v.type).shape for v in body.tables]
        roots, lookups = as_operands([*body.yields, *body.checks], len(buffers), sizes, shapes)
        places = [(v, [_linear(e) for e in m.results]) for v, m in zip(buffers, maps, strict=True)]
        places += [(body.tables[table], list(indices)) for table, indices in lookups]
        operands = [_Operand.of(self._view_of(v), v, indices, sizes) for v, indices in places]
        indexed = contents(roots).loops
        parts = [_parts(operands, loop, size, loop in indexed) for loop, size in enumerate(sizes)]
        accesses = [operand.access(parts) for operand in operands]
        first = [sum(map(len, parts[:loop])) for loop in range(len(sizes))]
        tables = {e.payload: self._table(body.tables[e.payload]) for e in contents(roots).expressions if e.op == LOOKUP}

        def placed(expression: Expression) -> Expression | None:
            if expression.op == OPERAND:
                return load(accesses[expression.payload])
            if expression.op == LOOKUP:
                return gather(tables[expression.payload], expression.operands)
            return index(first[expression.payload]) if expression.op == "index" else None

        roots = rewritten(roots, placed)
        return LoopNest(
            sizes=tuple(size for loop in parts for size in loop),
            reduction=tuple(flag for loop, flag in zip(parts, reduction, strict=True) for _ in loop),
            outputs=tuple(accesses[inputs : len(buffers)]),
            values=roots[: len(body.yields)],
            checks=roots[len(body.yields) :],
        )

    def _copy(self, op: Any) -> LoopNest:
        sizes = list(ir.MemRefType(op.operands[0].type).shape)
        identity: list[Index] = [({loop: 1}, 0) for loop in range(len(sizes))]
        operands = [_Operand.of(self._view_of(v), v, identity, sizes) for v in op.operands]
        parts = [_parts(operands, loop, size, False) for loop, size in enumerate(sizes)]
        source, destination = (operand.access(parts) for operand in operands)
        return LoopNest.elementwise(tuple(size for loop in parts for size in loop), destination, load(source))

    def _table(self, value: Any) -> TableAccess:
        kind = ir.MemRefType(value.type)
        strides, offset = layout(value)
        stored(str(kind.element_type))
        table = Table(computed(str(kind.element_type)), tuple(kind.shape), tuple(strides))
        return TableAccess(self._fixed(value), table, offset)

    # Everything else.

    def _nothing(self, op: Any) -> None:
        """Memory is planned from the steps."""

    def _region(self, op: Any) -> None:
        region = outline(op, f"region_{self._regions}")
        self._regions += 1
        buffers = tuple(self._fixed(v) for v in region.buffers)
        scalars = tuple(self._scalars[v] for v in region.scalars)
        temporaries = tuple(Buffer("temporary", "i8", (size,), fixed=True) for size in region.temporaries)
        results = tuple(self._define(r) for r in op.results)
        self._steps.append(
            OutlinedRegion(f"region_{self._regions - 1}", region.text, buffers, temporaries, scalars, results)
        )

    def _load(self, op: Any) -> None:
        value, *indices = op.operands
        strides, offset = layout(value)
        places = tuple(self._scalars[i] for i in indices)
        self._steps.append(LoadStep(self._define(op.results[0]), self._fixed(value), offset, places, tuple(strides)))

    def _store(self, op: Any) -> None:
        source, value, *indices = op.operands
        strides, offset = layout(value)
        places = tuple(self._scalars[i] for i in indices)
        self._steps.append(StoreStep(self._scalars[source], self._fixed(value), offset, places, tuple(strides)))

    def _assert(self, op: Any) -> None:
        self._steps.append(AssertStep(self._scalars[op.operands[0]]))

    def _other(self, op: Any) -> None:
        if len(op.regions) or not op.name.startswith(("arith.", "math.")):
            self._region(op)
            return
        if len(op.results) != 1:
            raise CompileError("a scalar op with several results", diagnostic=str(op))
        items = ", ".join(f"{name} = {op.attributes[name]}" for name in op.attributes)
        attributes = re.sub(r": index\b", ": i64", items)
        operands = tuple(self._scalars[v] for v in op.operands)
        self._steps.append(ScalarStep(op.name, operands, attributes, self._define(op.results[0])))


# The scalars that a step takes.
_TAKEN: Mapping[type, Callable[[Any], Iterable[Scalar]]] = {
    LoopNest: lambda step: step.all_scalars,
    OutlinedRegion: lambda step: step.scalars,
    LoadStep: lambda step: step.indices,
    StoreStep: lambda step: (step.scalar, *step.indices),
    ScalarStep: lambda step: step.operands,
    AssertStep: lambda step: (step.condition,),
}


def _without_unused_scalars(steps: Sequence[Step]) -> list[Step]:
    """``steps`` without the scalars that nothing takes: the bodies of nests have constants of their own."""
    taken: set[Scalar] = set()
    kept: list[Step] = []
    for step in reversed(steps):
        if not isinstance(step, ScalarStep) or step.result in taken:
            taken.update(_TAKEN[type(step)](step))
            kept.append(step)
    return kept[::-1]


class _Operand:
    """An operand and its indices: for each dimension of the view the factors of the loops and a constant."""

    def __init__(self, view: View, memory: View, indices: list[Index]) -> None:
        self.view = view
        self._memory = memory
        self.indices = indices

    @classmethod
    def of(cls, view: View, value: Any, indices: list[Index], sizes: Sequence[int]) -> _Operand:
        stored(view.buffer.element)
        operand = cls(view, View.of_memory(view.buffer, value), indices)
        if any(operand.digits(d, sizes) is None for d in range(len(indices))):
            operand.use_memory()
        return operand

    def use_memory(self) -> None:
        """Gives up the view's dimensions: the buffer is its memory."""
        self.view = self._memory
        self.view.buffer.fixed = True

    def digits(self, dim: int, sizes: Sequence[int]) -> tuple[int, ...] | None:
        """The sizes of the digits of a dimension's index; None if the index has no digits to give them."""
        atoms = self.view.dims[dim]
        lengths = tuple(size for size, _ in atoms)
        factors, constant = self.indices[dim]
        if len(atoms) < 2:
            return lengths
        (loop, factor), *others = factors.items() or [(-1, 0)]
        whole = not others and factor == 1 and not constant and sizes[loop] == math.prod(lengths)
        return lengths if whole or not (factors or constant) else None

    def loop_of(self, dim: int) -> int:
        """The loop whose digits a dimension of several needs; -1 if there is none."""
        factors, _ = self.indices[dim]
        return next(iter(factors), -1) if len(self.view.dims[dim]) > 1 else -1

    def access(self, parts: Sequence[Sequence[int]]) -> Access:
        """The access over loops split into ``parts``."""
        total = sum(map(len, parts))
        factors = [[0] * total for _ in self.view.constants]
        constants = list(self.view.constants)
        for dim, atoms in enumerate(self.view.dims):
            for (_, unit), (own, constant) in zip(atoms, self._atom_indices(dim, parts), strict=True):
                for base, scale in enumerate(unit):
                    constants[base] += scale * constant
                    for loop, factor in own.items():
                        factors[base][loop] += scale * factor
        indices = tuple(AffineExpr(tuple(f), c) for f, c in zip(factors, constants, strict=True))
        return Access(self.view.buffer, indices)

    def _atom_indices(self, dim: int, parts: Sequence[Sequence[int]]) -> list[tuple[dict[int, int], int]]:
        """For each atom of a dimension, the factors of the split loops and a constant."""
        factors, constant = self.indices[dim]
        first = [sum(map(len, parts[:loop])) for loop in range(len(parts))]
        atoms = self.view.dims[dim]
        if len(atoms) < 2:
            own: dict[int, int] = {}
            for loop, factor in factors.items():
                for k in range(len(parts[loop])):
                    own[first[loop] + k] = factor * math.prod(parts[loop][k + 1 :])
            return [(own, constant)] * len(atoms)
        if not factors:
            return [({}, 0)] * len(atoms)
        loop = self.loop_of(dim)
        digits: list[tuple[dict[int, int], int]] = []
        k = len(parts[loop])
        for size, _ in reversed(atoms):
            own, weight = {}, 1
            while weight < size:
                k -= 1
                own[first[loop] + k] = weight
                weight *= parts[loop][k]
            digits.insert(0, (own, 0))
        return digits


def _parts(operands: Sequence[_Operand], loop: int, size: int, indexed: bool) -> tuple[int, ...]:
    """The loops that replace ``loop``, so that each operand finds its digits. One that cannot is given up as memory, as
    is any if the body uses the loop's index."""
    parts: tuple[int, ...] = (size,)
    for operand in operands:
        for dim in range(len(operand.view.dims)):
            if operand.loop_of(dim) != loop:
                continue
            digits = tuple(length for length, _ in operand.view.dims[dim])
            finer = None if indexed else _refined(parts, digits)
            if finer is None:
                operand.use_memory()
                break
            parts = finer
    return parts


def _refined(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """The coarsest digits of which both lists are groups; None if there are none."""
    weights = {math.prod(sizes[k:]) for sizes in (first, second) for k in range(len(sizes))}
    ordered = sorted(weights | {1}, reverse=True)
    pairs = list(itertools.pairwise(ordered))
    if any(high % low for high, low in pairs):
        return None
    return tuple(high // low for high, low in pairs) or (1,)


def _flatten_fixed(step: LoopNest) -> None:
    """Gives accesses of fixed buffers one index."""
    loops = len(step.sizes)

    def flat(access: Access) -> Access:
        if not access.buffer.fixed or len(access.indices) == 1 != len(access.buffer.sizes):
            return access
        return replace(access, indices=(access.flat(loops),))

    step.map_accesses(flat)


def _shape(value: Any) -> tuple[str, tuple[int, ...]]:
    kind = ir.MemRefType(value.type)
    return str(kind.element_type), tuple(kind.shape)


def _temporary(value: Any) -> Buffer:
    """The buffer of an allocation.

    Raises:
        CompileError: its size is not known at compile time.
    """
    try:
        layout(value)
        stored(str(ir.MemRefType(value.type).element_type))
    except NotANestError as error:
        raise CompileError(f"a buffer that cannot be planned: {error}") from None
    return Buffer("temporary", *_shape(value))


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


def _linear(expression: Any) -> Index:
    """The factor of each loop in a linear expression, and its constant."""
    if isinstance(expression, ir.AffineDimExpr):
        return {expression.position: 1}, 0
    if isinstance(expression, ir.AffineConstantExpr):
        return {}, expression.value
    if isinstance(expression, ir.AffineAddExpr):
        (left, first), (right, second) = _linear(expression.lhs), _linear(expression.rhs)
        return {loop: left.get(loop, 0) + right.get(loop, 0) for loop in {**left, **right}}, first + second
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        factors, constant = _linear(expression.lhs)
        return {loop: f * expression.rhs.value for loop, f in factors.items()}, constant * expression.rhs.value
    raise NotANestError(f"index {expression} is not linear")


def _global_text(symbol: str, op: Any) -> str:
    """A constant buffer as an LLVM global."""
    module = op
    while module.parent is not None:
        module = module.parent.operation
    table = ir.SymbolTable(module)
    value = table[symbol].operation.attributes["initial_value"]
    if str(value).startswith("dense_resource"):
        raise CompileError("a constant that lies outside of the program's text")
    kind = ir.MemRefType(op.results[0].type)
    sizes = list(kind.shape) or [1]
    array = str(kind.element_type)
    for size in reversed(sizes):
        array = f"array<{size} x {array}>"
    array = f"!llvm.{array}"
    if not kind.shape:
        value = str(value).replace("tensor<", "tensor<1x")
    return f"llvm.mlir.global internal constant @{symbol}({value}) {{alignment = 64 : i64}} : {array}"
