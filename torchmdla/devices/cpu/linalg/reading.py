"""Translation from linalg on tensors to a loop program, in which each computed value has its own buffer.

An op of linalg becomes a nest that stores to a new buffer. Reshapes and slices become views (``views.py``). A tensor
whose elements are all the same constant becomes this constant, wherever it is read::

    %2 = linalg.generic … outs(%init) { yield %zero }             (nothing)
    %3 = linalg.generic … ins(%0, %1) outs(%2) { %0 * %1 + %2 }   t0[d0, d1] += a[d0, d2] * b[d2, d1], from 0
    %4 = tensor.insert_slice %3 into %x[0, 5] [4, 5] [1, 1]       t1[d0, d1] = x[d0, d1]; t1[d0, d1 + 5] = t0[d0, d1]

If a tensor is not read after an op that changes it, the op updates its buffer in place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.mlir import forward_of, nodes_of
from torchmdla.compiler.program import Program
from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.ir.accesses import Access, Buffer, Scalar, Table, TableAccess
from torchmdla.devices.cpu.ir.element_types import NotANestError, register_type, storage_type
from torchmdla.devices.cpu.ir.expressions import Expression, constant, contents, gather, index, load, operation, rewrite
from torchmdla.devices.cpu.ir.loop_program import (
    AssertStep,
    LoadStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    ScalarStep,
    Scatter,
    Step,
    StoreStep,
    is_bijective,
)
from torchmdla.devices.cpu.linalg.bodies import LOOKUP, OPERAND, BodyReader, constant_of, number
from torchmdla.devices.cpu.linalg.operands import (
    Index,
    NoStridesError,
    OperandAccesses,
    access_operands,
    add_indices,
    replace_lookups,
    scale_index,
)
from torchmdla.devices.cpu.linalg.outlined_regions import outline
from torchmdla.devices.cpu.linalg.views import VIEWS, View, apply_view_op, block, shape_of
from torchmdla.errors import CompileError


def read_program(module: ir.Module, program: Program) -> LoopProgram:
    """Return the loop program of the module's ``@forward`` on tensors.

    Raises:
        CompileError: a required fact is not known at compile time.
    """
    return _Reader(forward_of(module), program).read()


class _Reader:
    """Reader of a function's ops, in order. Each op becomes steps, or a view that steps use."""

    def __init__(self, function: Any, program: Program) -> None:
        self._block = function.regions[0].blocks[0]
        self._position = {op.operation: k for k, op in enumerate(self._block.operations)}
        self._steps: list[Step] = []
        self._globals: dict[str, str] = {}
        self._views: dict[Any, View] = {}
        # The constants of uniform tensors; None if the tensor's elements are undefined.
        self._uniform: dict[Any, Expression | None] = {}
        self._scalars: dict[Any, Scalar] = {}
        self._regions = 0
        self._handlers: Mapping[str, Callable[[Any], None]] = {
            "arith.constant": self._constant,
            "cf.assert": lambda op: self._steps.append(AssertStep(self._scalars[op.operands[0]])),
            "func.return": self._return,
            "linalg.generic": self._generic,
            "tensor.empty": lambda op: self._uniform.update({op.results[0]: None}),
            "tensor.extract": self._extract,
            "tensor.from_elements": self._from_elements,
            "tensor.insert": self._insert,
            "tensor.insert_slice": self._insert_slice,
            "tensor.pad": self._pad,
            "tm_tensor.scatter": self._scatter_or_region,
            **dict.fromkeys(VIEWS, self._view),
        }
        self._inputs = len(program.arguments)
        for position, value in enumerate(self._block.arguments):
            if isinstance(value.type, ir.RankedTensorType):
                argument = program.arguments[position]
                self._views[value] = View.whole(_buffer(argument.role, value, position=position, bits=argument.bits))
            else:
                self._scalars[value] = Scalar(str(value.type), position)

    def read(self) -> LoopProgram:
        for op in self._block.operations:
            before = len(self._steps)
            self._handlers.get(op.operation.name, self._scalar_or_region)(op.operation)
            for step in self._steps[before:]:
                if isinstance(step, LoopNest | OutlinedRegion):
                    step.nodes = nodes_of(op.operation)
                elif isinstance(step, Scatter):
                    step.nest.nodes = nodes_of(op.operation)
        for step in self._steps:
            if isinstance(step, LoopNest | Scatter):
                _flatten_fixed(step)
        program = LoopProgram(_remove_unused_scalars(self._steps), self._globals)
        for buffer in program.buffers():
            if buffer.fixed:
                buffer.sizes = (buffer.count,)
        return program

    # Values in memory.

    def _view_of(self, value: Any) -> View:
        if value not in self._views:
            if value not in self._uniform:
                raise CompileError(f"a tensor of unknown origin: {value}")
            self._views[value] = self._allocate_filled(value, self._uniform[value])
        return self._views[value]

    def _allocate_filled(self, value: Any, constant: Expression | None) -> View:
        """Return a new buffer for a tensor, filled with a constant if there is one."""
        view = _new_buffer(value)
        if constant is not None:
            self._fill(view, constant)
        return view

    def _fill(self, destination: View, constant: Expression) -> None:
        if 0 not in destination.shape:
            place = access_operands([(destination, _identity(destination))], destination.shape)
            self._steps.append(LoopNest.elementwise(place.sizes, place.accesses[0], constant))

    def _linearise(self, value: Any) -> View:
        """Return a tensor as a strided view of its buffer's memory, for uses that rely on the layout."""
        view = self._view_of(value)
        strided = view.flatten() or self._copy_to_new(view).flatten()
        assert strided is not None
        strided.buffer.fixed = True
        return strided

    def _make_contiguous(self, value: Any) -> Buffer:
        """Return a buffer that holds exactly a tensor's elements, in order."""
        view = self._view_of(value)
        if not view.is_contiguous:
            view = self._copy_to_new(view)
        view.buffer.fixed = True
        return view.buffer

    def _copy_to_new(self, view: View) -> View:
        copy = _temporary(view.buffer.element, view.shape)
        self._copy(view, copy)
        return copy

    def _copy(self, source: View, destination: View) -> None:
        if 0 not in source.shape:
            identity = _identity(source)
            place = self._access_operands([source, destination], [identity, identity], source.shape)
            read, written = place.accesses
            self._steps.append(LoopNest.elementwise(place.sizes, written, load(read)))

    def _make_writable(self, value: Any, op: Any) -> View:
        """Return a buffer of a tensor that ``op`` may change: the tensor's own buffer if ``op`` is its last user."""
        if value in self._uniform:
            return self._allocate_filled(value, self._uniform[value])
        view = self._view_of(value)
        if view.buffer.kind != "temporary" or not view.is_contiguous or not self._is_last_use(value, op):
            return self._copy_to_new(view)
        return view if view.is_linear else self._linearise(value)

    def _is_last_use(self, value: Any, op: Any) -> bool:
        """Return whether ``op`` is the last user of a tensor and of all views of it, and uses it once."""
        while isinstance(value, ir.OpResult) and value.owner.operation.name in VIEWS:
            value = value.owner.operation.operands[0]
        position = self._position[op]
        uses = list(self._uses(value))
        return max(uses) == position and uses.count(position) == 1

    def _uses(self, value: Any) -> Iterator[int]:
        """Yield the positions of ops that use a tensor, also through views and in regions."""
        for use in value.uses:
            owner = use.owner.operation
            if owner.name in VIEWS:
                yield from self._uses(owner.results[0])
            while owner not in self._position:
                owner = owner.parent.operation
            yield self._position[owner]

    # Tensors that are not computed by nests.

    def _constant(self, op: Any) -> None:
        value, attribute = op.results[0], op.attributes["value"]
        if not isinstance(value.type, ir.RankedTensorType):
            result = self._define(value)
            self._steps.append(ScalarStep("constant", (), "", result, number(attribute, result.type).payload))
        elif isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
            self._uniform[value] = number(attribute.get_splat_value(), register_type(_element(value)))
        else:
            symbol = f"constant_{len(self._globals)}"
            self._globals[symbol] = _global_text(symbol, value, attribute)
            self._views[value] = View.whole(_buffer("global", value, symbol=symbol))

    def _view(self, op: Any) -> None:
        source, result = op.operands[0], op.results[0]
        if source in self._uniform or 0 in shape_of(result):
            self._uniform[result] = self._uniform.get(source)
            return
        view = self._view_of(source)
        derived = apply_view_op(view, op)
        if derived is None and len(op.operands) > 1:
            self._region(op)  # The slice's offset is known only at run time.
            return
        if derived is None:
            self._join_dimensions(source)
            derived = apply_view_op(self._views[source], op)
        derived = derived or apply_view_op(self._linearise(source), op) or apply_view_op(self._copy_to_new(view), op)
        if derived is None:
            raise CompileError("a view that is not understood", diagnostic=str(op))
        self._views[result] = derived

    def _join_dimensions(self, value: Any) -> None:
        """Join the dimensions of a tensor's buffer that the tensor joins, such as interleaved rows of images."""
        buffer = self._views[value].buffer
        users = [step for step in self._steps if buffer in [*step.reads, *step.writes]]
        nests = [step for step in users if isinstance(step, LoopNest) and not step.tables]
        while buffer.is_free and nests == users and (dimension := self._views[value].joined_dimension) is not None:
            size = static(buffer.join_dimensions(dimension))
            for step in nests:
                step.map_accesses(partial(Access.join_dimensions, buffer=buffer, dimension=dimension, size=size))
            for other, view in self._views.items():
                if view.buffer is buffer:
                    self._views[other] = view.join(dimension, size)

    def _insert_slice(self, op: Any) -> None:
        source, whole = op.operands[0], op.operands[1]
        view = self._make_writable(whole, op) if len(op.operands) == 2 else None
        part = block(view, op, shape_of(source)) if view else None
        if view is None or part is None:
            self._region(op)
            return
        self._views[op.results[0]] = view
        self._write(source, part)

    def _write(self, value: Any, destination: View) -> None:
        if value not in self._uniform:
            self._copy(self._view_of(value), destination)
        elif (constant := self._uniform[value]) is not None:
            self._fill(destination, constant)

    def _pad(self, op: Any) -> None:
        source, result = op.operands[0], op.results[0]
        body = list(op.regions[0].blocks[0].operations)
        padding = constant_of(body[-1].operation.operands[0])
        if len(op.operands) > 1 or len(body) > 1 or padding is None:
            self._region(op)
            return
        whole = self._allocate_filled(result, padding)
        self._views[result] = whole
        low, sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_low"])), shape_of(source)
        if 0 in sizes:
            return
        dims = tuple(((size, atoms[0][1]),) if size != 1 else () for size, atoms in zip(sizes, whole.dims, strict=True))
        self._write(source, replace(whole, constants=tuple(low), dims=dims))

    def _extract(self, op: Any) -> None:
        value, *indices = op.operands
        view = self._linearise(value)
        places = tuple(self._scalars[i] for i in indices)
        step = LoadStep(self._define(op.results[0]), view.buffer, view.constants[0], places, view.strides)
        self._steps.append(step)

    def _insert(self, op: Any) -> None:
        element, value, *indices = op.operands
        self._views[op.results[0]] = self._make_writable(value, op)
        view = self._linearise(op.results[0])
        places = tuple(self._scalars[i] for i in indices)
        self._steps.append(StoreStep(self._scalars[element], view.buffer, 0, places, view.strides))

    def _from_elements(self, op: Any) -> None:
        view = self._views[op.results[0]] = _new_buffer(op.results[0])
        view.buffer.fixed = True
        for place, element in enumerate(op.operands):
            self._steps.append(StoreStep(self._scalars[element], view.buffer, place, (), ()))

    def _return(self, op: Any) -> None:
        returned: set[Buffer] = set()
        for k, value in enumerate(op.operands):
            position = self._inputs + k
            view = self._views.get(value)
            if view and view.buffer.kind == "temporary" and view.is_contiguous and view.buffer not in returned:
                returned.add(view.buffer)
                view.buffer.position = position
            else:
                self._write(value, View.whole(_buffer("result", value, position=position)))
        for buffer in returned:
            buffer.kind = "result"

    # Nests.

    def _generic(self, op: Any) -> None:
        constant = _yielded_constant(op)
        if constant is not None:
            self._uniform[op.results[0]] = constant
            return
        if any(0 in shape_of(v) for v in (*op.operands, *op.results)):
            for init, result in zip(_inits(op), op.results, strict=True):
                self._views[result] = self._make_writable(init, op)
            return
        try:
            self._nest(op)
        except NotANestError:
            self._region(op)

    def _nest(self, op: Any) -> None:
        maps = [attribute.value for attribute in op.attributes["indexing_maps"]]
        reduction = ["reduction" in str(k) for k in op.attributes["iterator_types"]]
        values, inits = list(op.operands), _inits(op)
        inputs = len(values) - len(inits)
        sizes = _loop_sizes(maps, values, len(reduction))
        body = BodyReader(op.regions[0].blocks[0], self._scalars, inputs, any(reduction))
        shapes = [shape_of(v) for v in body.tables]
        roots, lookups = replace_lookups([*body.yields, *body.checks], len(values), sizes, shapes)
        places = [(v, [_linear(e) for e in m.results]) for v, m in zip(values, maps, strict=True)]
        places += [(body.tables[table], list(indices)) for table, indices in lookups]

        def inline_uniform(expression: Expression) -> Expression | None:
            is_operand = expression.op == OPERAND
            return self._uniform.get(places[expression.payload][0]) if is_operand else None

        roots = rewrite(roots, inline_uniform)
        read = [e.payload for e in contents(roots).expressions if e.op == OPERAND]
        outputs = [self._output(op, k, any(reduction)) for k in range(len(inits))]
        views = [self._view_of(places[k][0]) for k in read] + [view for view, _ in outputs]
        indices = [places[k][1] for k in read] + [places[inputs + k][1] for k in range(len(inits))]
        place = self._access_operands(views, indices, sizes, contents(roots).loops)
        accesses = dict(zip(read, place.accesses, strict=False))
        tables = {e.payload: self._table(body.tables[e.payload]) for e in contents(roots).expressions if e.op == LOOKUP}

        def replace_placeholder(expression: Expression) -> Expression | None:
            if expression.op == OPERAND:
                return load(accesses[expression.payload])
            if expression.op == LOOKUP:
                return gather(tables[expression.payload], expression.operands)
            return index(place.first(expression.payload)) if expression.op == "index" else None

        roots = rewrite(roots, replace_placeholder)
        step = LoopNest(
            sizes=place.sizes,
            reduction=tuple(flag for loop, flag in zip(place.parts, reduction, strict=True) for _ in loop),
            outputs=tuple(place.accesses[len(read) :]),
            values=roots[: len(body.yields)],
            checks=roots[len(body.yields) :],
            initial=outputs[0][1] if outputs else None,
        )
        if not all(is_bijective(step, access) for access in step.outputs):
            raise NotANestError("it stores to a part of its result")
        self._steps.append(step)
        self._views.update(zip(op.results, (view for view, _ in outputs), strict=True))

    def _scatter_or_region(self, op: Any) -> None:
        try:
            self._scatter(op)
        except NotANestError:
            self._region(op)

    def _scatter(self, op: Any) -> None:
        """Read a scatter of blocks: each row of indices is the first element of a block, in some dimensions.

        A block has the last dimensions of the destination.
        """
        updates, rows, destination = op.operands
        sizes, shape, (_, depth) = shape_of(updates), shape_of(destination), shape_of(rows)
        body = BodyReader(op.regions[0].blocks[0], self._scalars, 1, reduces=True)
        if body.tables or body.checks:
            raise NotANestError("a scatter that reads other tensors")
        view = self._make_writable(destination, op)
        view.buffer.fixed = True
        self._views[op.results[0]] = view
        if 0 in (*sizes, *shape):
            return
        inside: list[Index] = [({loop: 1}, 0) for loop in range(1, len(sizes))]
        block: list[Index] = [({}, 0)] * (len(shape) - len(inside)) + inside
        views = [*[self._view_of(rows)] * depth, view]
        places: list[list[Index]] = [*([({0: 1}, 0), ({}, k)] for k in range(depth)), block]
        constant_update = self._uniform.get(updates)
        if constant_update is None:
            views.insert(0, self._view_of(updates))
            places.insert(0, [({0: 1}, 0), *inside])
        accesses = self._access_operands(views, places, sizes)
        *indices, output = accesses.accesses
        update = load(indices.pop(0)) if constant_update is None else constant_update
        strides = [math.prod(shape[dim + 1 :]) for dim in ir.DenseI64ArrayAttr(op.attributes["dimension_map"])]
        terms = [_scaled_index(load(access), stride) for access, stride in zip(indices, strides, strict=True)]
        (value,) = rewrite(body.yields, lambda e: update if e.op == OPERAND else None)
        place = reduce(lambda left, right: operation("arith.addi", [left, right], "i64"), terms)
        nest = LoopNest(accesses.sizes, (False,) * len(accesses.sizes), (output,), (value,), place=place)
        self._steps.append(Scatter(nest))

    def _output(self, op: Any, number: int, reduces: bool) -> tuple[View, Expression | None]:
        """Return the view to which a nest stores a result, and the constant from which its reduction starts, if any."""
        init = _inits(op)[number]
        start = self._uniform.get(init)
        if reduces and (init not in self._uniform or (start is not None and len(op.results) > 1)):
            return self._make_writable(init, op), None
        return _new_buffer(op.results[number]), start if reduces else None

    def _access_operands(
        self,
        views: list[View],
        indices: Sequence[Sequence[Index]],
        sizes: Sequence[int],
        indexed: frozenset[int] = frozenset(),
    ) -> OperandAccesses:
        """Return the accesses to operands. Operands that cannot be read otherwise are copied.

        An output is a whole buffer or a block of a buffer, which always has strides.
        """
        while True:
            try:
                return access_operands(list(zip(views, indices, strict=True)), sizes, indexed)
            except NoStridesError as error:
                views[error.number] = self._copy_to_new(views[error.number])

    def _table(self, value: Any) -> TableAccess:
        view, kind = self._linearise(value), _element(value)
        storage_type(kind)
        return TableAccess(view.buffer, Table(register_type(kind), shape_of(value), view.strides), view.constants[0])

    # Everything else.

    def _region(self, op: Any) -> None:
        region = outline(op, f"region_{self._regions}")
        self._regions += 1
        inputs = tuple(self._make_contiguous(v) for v in region.tensors)
        scalars = tuple(self._scalars[v] for v in region.scalars)
        outputs, results = [], []
        for value in op.results:
            if isinstance(value.type, ir.RankedTensorType):
                self._views[value] = _new_buffer(value)
                outputs.append(self._make_contiguous(value))
            else:
                results.append(self._define(value))
        temporaries = tuple(Buffer("temporary", "i8", (size,), fixed=True) for size in region.temporaries)
        symbol, text = region.symbol, region.text
        self._steps.append(OutlinedRegion(symbol, text, inputs, tuple(outputs), temporaries, scalars, tuple(results)))

    def _scalar_or_region(self, op: Any) -> None:
        values = (*op.operands, *op.results)
        is_scalar = not len(op.regions) and not any(isinstance(v.type, ir.RankedTensorType) for v in values)
        if is_scalar and op.name.startswith(("arith.", "math.")):
            self._scalar(op)
        else:
            self._region(op)

    def _scalar(self, op: Any) -> None:
        if len(op.results) != 1:
            raise CompileError("a scalar op with several results", diagnostic=str(op))
        items = ", ".join(f"{name} = {op.attributes[name]}" for name in op.attributes)
        attributes = re.sub(r": index\b", ": i64", items)
        operands = tuple(self._scalars[v] for v in op.operands)
        self._steps.append(ScalarStep(op.name, operands, attributes, self._define(op.results[0])))

    def _define(self, value: Any) -> Scalar:
        self._scalars[value] = Scalar(register_type(str(value.type)))
        return self._scalars[value]


def _buffer(kind: Any, value: Any, **more: Any) -> Buffer:
    return Buffer(kind, _element(value), shape_of(value), **more)


def _new_buffer(value: Any) -> View:
    return _temporary(_element(value), shape_of(value))


def _temporary(element: str, shape: tuple[int, ...]) -> View:
    try:
        storage_type(element)
    except NotANestError as error:
        raise CompileError(f"a tensor that has no place in memory: {error}") from None
    return View.whole(Buffer("temporary", element, shape))


def _element(value: Any) -> str:
    return str(ir.RankedTensorType(value.type).element_type)


def _identity(view: View) -> list[Index]:
    """Return the indices of all elements of a view."""
    return [({loop: 1}, 0) for loop in range(len(view.shape))]


def _inits(op: Any) -> list[Any]:
    """Return the tensors from which an op of linalg starts its results."""
    values = list(op.operands)
    return values[len(values) - ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1] :]


def _yielded_constant(op: Any) -> Expression | None:
    """Return the constant with which an op fills its only result, or None if the op does anything else."""
    body = list(op.regions[0].blocks[0].operations)
    if len(op.results) != 1 or len(body) > 1:
        return None
    return constant_of(body[0].operation.operands[0])


# The scalars that a step uses.
_USED_SCALARS: Mapping[type, Callable[[Any], Iterable[Scalar]]] = {
    LoopNest: lambda step: step.all_scalars,
    Scatter: lambda step: step.nest.all_scalars,
    OutlinedRegion: lambda step: step.scalars,
    LoadStep: lambda step: step.indices,
    StoreStep: lambda step: (step.scalar, *step.indices),
    ScalarStep: lambda step: step.operands,
    AssertStep: lambda step: (step.condition,),
}


def _remove_unused_scalars(steps: Sequence[Step]) -> list[Step]:
    """Return ``steps`` without unused scalars: the bodies of nests have their own constants."""
    used: set[Scalar] = set()
    remaining: list[Step] = []
    for step in reversed(steps):
        if not isinstance(step, ScalarStep) or step.result in used:
            used.update(_USED_SCALARS[type(step)](step))
            remaining.append(step)
    return remaining[::-1]


def _flatten_fixed(step: LoopNest | Scatter) -> None:
    """Replace the indices of accesses to fixed buffers by one flat index."""
    loops = len((step.nest if isinstance(step, Scatter) else step).sizes)

    def flat(access: Access) -> Access:
        return replace(access, indices=(access.linearise(loops),)) if access.buffer.fixed else access

    step.map_accesses(flat)


def _scaled_index(index: Expression, stride: int) -> Expression:
    """Return an index from memory as a distance in elements."""
    wide = index if index.type == "i64" else operation("arith.extsi", [index], "i64")
    return wide if stride == 1 else operation("arith.muli", [wide, constant(stride, "i64")], "i64")


def _loop_sizes(maps: Sequence[Any], values: Sequence[Any], loops: int) -> list[int]:
    """Return the sizes of loops. By the definition of linalg, each loop is a plain dimension of some operand."""
    sizes: dict[int, int] = {}
    for affine_map, value in zip(maps, values, strict=True):
        for expression, size in zip(affine_map.results, shape_of(value), strict=True):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    if len(sizes) != loops:
        raise NotANestError("a loop bound is not an operand's size")
    return [sizes[i] for i in range(loops)]


def _linear(expression: Any) -> Index:
    """Return the factor of each loop in a linear expression, and its constant."""
    if isinstance(expression, ir.AffineDimExpr):
        return {expression.position: 1}, 0
    if isinstance(expression, ir.AffineConstantExpr):
        return {}, expression.value
    if isinstance(expression, ir.AffineAddExpr):
        return add_indices(_linear(expression.lhs), _linear(expression.rhs))
    if isinstance(expression, ir.AffineMulExpr) and isinstance(expression.rhs, ir.AffineConstantExpr):
        return scale_index(_linear(expression.lhs), expression.rhs.value)
    raise NotANestError(f"index {expression} is not linear")


def _global_text(symbol: str, value: Any, attribute: Any) -> str:
    text = str(attribute)
    if text.startswith("dense_resource"):
        raise CompileError("a constant that is stored outside of the program's text")
    shape = shape_of(value)
    array = _element(value)
    for size in reversed(shape or (1,)):
        array = f"array<{size} x {array}>"
    if not shape:
        text = text.replace("tensor<", "tensor<1x")
    return f"llvm.mlir.global internal constant @{symbol}({text}) {{alignment = 64 : i64}} : !llvm.{array}"
