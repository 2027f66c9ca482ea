"""Interpreter of loop programs in NumPy, by the definitions in ``loop_program.py``.

Iterations of loops that do not reduce are unordered. Each iteration reads the values from before the nest, and it is an
error if another iteration writes them. The same holds for the tiles of a tile loop. Loops that reduce run in order.

Unwritten memory has values that programs do not expect (:func:`_make_uninitialised`). An access outside of its buffer
is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
from torch_mlir import ir

from torchmdla.compiler.sizes import AnySize, Size, at
from torchmdla.devices.cpu.ir.accesses import Access, Buffer, Scalar, TableAccess
from torchmdla.devices.cpu.ir.expressions import Expression, contents
from torchmdla.devices.cpu.ir.loop_program import (
    AssertStep,
    ElementStep,
    LoadStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    RepeatLoop,
    ScalarStep,
    Scatter,
    Step,
    StoreStep,
    TileLoop,
)
from torchmdla.devices.cpu.reference.operations import (
    ASSOCIATIVE,
    DTYPES,
    Array,
    apply,
    from_bits,
    round_to_type,
    to_bits,
)
from torchmdla.devices.cpu.reference.regions import OutOfBounds, parse_region


class InvalidProgram(Exception):
    """Violation of a rule that all programs must satisfy. The message describes it."""


class _CallFails(Exception):
    """Check that does not hold."""


@dataclass(frozen=True)
class CallArguments:
    """Arguments of a call.

    Attributes:
        symbols: the values of the symbols.
        elements: a function that returns the elements of a buffer, given their number.
        scalar: a function that returns a scalar argument, by position.
    """

    symbols: Sequence[int]
    elements: Callable[[Buffer, int], Array]
    scalar: Callable[[int], float]


@dataclass
class Footprint:
    """Elements that a program accesses. They are the same in all calls with the same symbols.

    Attributes:
        places: the access and its element offsets, by access, sizes of the loops, first iterations and first element.
        is_independent: whether iterations of all nests are known to be independent, since a complete call was checked.
    """

    places: dict[tuple[Hashable, ...], tuple[Access, Array]] = field(default_factory=dict)
    is_independent: bool = False


@dataclass
class Outcome:
    """Result of a call.

    Attributes:
        fails: whether the call fails.
        memory: the final content of each buffer.
    """

    fails: bool = False
    memory: dict[Buffer, Array] = field(default_factory=dict)

    @property
    def results(self) -> dict[int, Array]:
        """Return the results that the caller receives, by position."""
        return {buffer.position: array for buffer, array in self.memory.items() if buffer.kind == "result"}


def run(program: LoopProgram, arguments: CallArguments, footprint: Footprint | None = None) -> Outcome:
    """Run a program, including its packings.

    Args:
        program: the program.
        arguments: the arguments of the call.
        footprint: the footprint of earlier calls with the same symbols, which is reused.

    Raises:
        InvalidProgram: an access is outside of its buffer, or iterations depend on each other.
        UnsupportedOperation: the program has an operation that is not supported.
    """
    machine = _Machine(arguments, program.globals, footprint or Footprint())
    with np.errstate(all="ignore"):
        try:
            for packing in program.packings:
                machine.run(packing.steps)
            machine.run(program.steps)
            machine.footprint.is_independent = True
        except _CallFails:
            machine.outcome.fails = True
    return machine.outcome


def count_iterations(program: LoopProgram, symbols: Sequence[int]) -> int:
    """Return the number of iterations that the nests of a call run."""
    every = [*program.steps, *(step for packing in program.packings for step in packing.steps)]
    return sum(_iterations(step, symbols) for step in every)


def _iterations(step: Step, symbols: Sequence[int]) -> int:
    if isinstance(step, LoopNest):
        sizes = [at(size, symbols) for size in step.sizes]
        if _factors(step) is not None:
            return 1 + math.prod(sizes) // _PRODUCTS_IN_ITERATION
        reduced = math.prod(size for size, reduces in zip(sizes, step.reduction, strict=True) if reduces)
        in_turn = reduced if any(step.reduction) and _terms(step) is None else 0
        return 1 + math.prod(sizes) + _SEQUENTIAL_COST * in_turn
    if isinstance(step, Scatter):
        return 1 + _SEQUENTIAL_COST * math.prod(at(size, symbols) for size in step.nest.sizes)
    if isinstance(step, TileLoop):
        whole = (step.part(member, step.extents) for member in range(len(step.members)))
        return sum(_iterations(nest, symbols) for nest in whole)
    if isinstance(step, RepeatLoop):
        return at(step.count, symbols) * sum(_iterations(each, symbols) for each in step.steps)
    return 1


# The cost of an iteration of a sequential reduction, relative to other iterations.
_SEQUENTIAL_COST = 100

# The products of a sum of products that cost as much as one iteration of another nest.
_PRODUCTS_IN_ITERATION = 32

# Values of all iterations of a nest. Each array has a dimension for each loop, of size 1 where the value does not vary
# with it.
_Values = dict[Expression, Array]


class _Machine:
    """State of a call."""

    def __init__(self, arguments: CallArguments, texts: Mapping[str, str], footprint: Footprint) -> None:
        self.outcome = Outcome()
        self.footprint = footprint
        self._arguments = arguments
        self._globals = texts
        self._scalars: dict[Scalar, Array] = {}
        # The base and the first element of each view of a repeat loop, in its current iteration.
        self._views: dict[Buffer, tuple[Buffer, int]] = {}
        self._steps: Mapping[type, Callable[[Any], None]] = {
            LoopNest: self._nest,
            TileLoop: self._tile_loop,
            RepeatLoop: self._repeat,
            Scatter: self._scatter,
            OutlinedRegion: self._region,
            LoadStep: self._load_element,
            StoreStep: self._store_element,
            ScalarStep: self._compute,
            AssertStep: self._check,
        }

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._steps[type(step)](step)

    def _evaluate_size(self, size: AnySize) -> int:
        return at(size, self._arguments.symbols)

    # Memory.

    def _memory(self, buffer: Buffer) -> Array:
        """Return the elements of a buffer, in order. For a view, return those of its base."""
        if buffer in self._views:
            return self._memory(self._views[buffer][0])
        if buffer not in self.outcome.memory:
            count = self._evaluate_size(buffer.count)
            if buffer.kind == "global":
                content = _constant(self._globals[buffer.symbol], buffer.element)
            elif buffer.kind in ("input", "parameter"):
                content = self._arguments.elements(buffer, count)
            else:
                content = _make_uninitialised(count, buffer.element)
            self.outcome.memory[buffer] = content
        return self.outcome.memory[buffer]

    def _first(self, buffer: Buffer) -> int:
        """Return the offset of a buffer's first element in its memory."""
        return self._views[buffer][1] if buffer in self._views else 0

    def _places(self, access: Access, sizes: Sequence[int], origin: Sequence[int]) -> Array:
        """Return the offset of the first element that each iteration accesses.

        ``origin`` are the first iterations of the loops.
        """
        first = self._first(access.buffer)
        # Comparing accesses is slow, so the key is an id. The footprint keeps each access alive, so its id is not
        # reused.
        key = (id(access), first, *sizes, *origin)
        if key not in self.footprint.places:
            self.footprint.places[key] = access, self._compute_places(access, first, sizes, origin)
        return self.footprint.places[key][1]

    def _compute_places(self, access: Access, first: int, sizes: Sequence[int], origin: Sequence[int]) -> Array:
        flat = access.linearise(len(sizes))
        places = np.full((1,) * len(sizes), first + self._evaluate_size(flat.constant), np.int64)
        for loop, factor in enumerate(flat.factors):
            places = places + self._evaluate_size(factor) * (origin[loop] + _indices(loop, sizes)) if factor else places
        count = len(self._memory(access.buffer))
        if 0 not in sizes and (places.min() < 0 or places.max() + access.width > count):
            touched = f"elements {places.min()} to {places.max() + access.width - 1}"
            raise InvalidProgram(f"{touched} of a {access.buffer.kind} buffer of {count} are touched")
        return places

    def _read(self, access: Access, places: Array) -> Array:
        memory, element = self._memory(access.buffer), access.buffer.element
        if not access.word:
            return _elements(memory, places)
        bits = np.stack([to_bits(memory[places + k], element) for k in range(access.width)], axis=-1)
        return from_bits(bits.view(f"u{access.width * bits.itemsize}")[..., 0], access.word)

    def _write(self, access: Access, places: Array, value: Array) -> None:
        memory, element = self._memory(access.buffer), access.buffer.element
        shape = np.broadcast_shapes(places.shape, value.shape)
        places, value = np.broadcast_to(places, shape), np.broadcast_to(value, shape)
        if not access.word:
            memory[places] = round_to_type(value, element)
            return
        words = np.ascontiguousarray(to_bits(value, access.word))[..., None]
        parts = words.view(f"u{words.itemsize // access.width}")
        for k in range(access.width):
            memory[places + k] = from_bits(np.ascontiguousarray(parts[..., k]), element)

    # Nests.

    def _nest(self, step: LoopNest, origin: Sequence[int] = ()) -> None:
        """Run a nest. For a part of a nest, ``origin`` are the iterations of its loops that it begins with."""
        sizes = [self._evaluate_size(size) for size in step.sizes]
        origin = origin or [0] * len(sizes)
        result_sizes = [1 if reduces else size for size, reduces in zip(sizes, step.reduction, strict=True)]
        if 0 in result_sizes:
            return
        self._check_independence([(step, origin, np.arange(math.prod(result_sizes)).reshape(result_sizes))])
        evaluate = partial(self._evaluate, origin=origin)
        stored, outputs = step.values, step.outputs
        has_results = any(step.reduction) or step.initial is not None or step.epilogue is not None
        values: _Values = {}
        if not has_results:
            accumulators = _accumulators(step.body.expressions)
            old = {e: self._read_old(step.outputs[e.payload], sizes, origin) for e in accumulators}
            values = evaluate(step.body.expressions, sizes, old)
            self._check_all(step.checks, values)
        else:
            values = self._reduce(step, sizes, result_sizes, origin)
        if step.epilogue is not None:
            expressions = contents(step.epilogue.values).expressions
            results = {e: values[step.values[e.payload]] for e in expressions if e.op == "reduced"}
            values = evaluate(expressions, result_sizes, results)
            stored, outputs = step.epilogue.values, step.epilogue.outputs
        shape = result_sizes if has_results else sizes
        for access, value in zip(outputs, [values[each] for each in stored], strict=True):
            self._write(access, self._places(access, shape, self._origin(access, origin)), value)

    def _origin(self, access: Access, origin: Sequence[int]) -> Sequence[int]:
        """Return the origin of an access. Locals contain only the current tile, so they begin at 0."""
        return [0] * len(origin) if access.buffer.kind == "local" else origin

    def _read_old(self, access: Access, sizes: Sequence[int], origin: Sequence[int]) -> Array:
        return self._read(access, self._places(access, sizes, self._origin(access, origin)))

    def _check_all(self, checks: Iterable[Expression], values: _Values) -> None:
        if not all(values[check].all() for check in checks):
            self.outcome.fails = True

    def _evaluate(
        self, expressions: Iterable[Expression], sizes: Sequence[int], known: _Values, origin: Sequence[int]
    ) -> _Values:
        """Return the values of expressions in the given order, beside those that are ``known``."""
        values = dict(known)
        for expression in expressions:
            if expression not in values:
                values[expression] = self._value(expression, values, sizes, origin)
        return values

    def _value(self, e: Expression, values: _Values, sizes: Sequence[int], origin: Sequence[int]) -> Array:
        operands = [values[operand] for operand in e.operands]
        if e.op == "load":
            return self._read(e.payload, self._places(e.payload, sizes, self._origin(e.payload, origin)))
        if e.op == "gather":
            return self._gather(e.payload, operands)
        if e.op == "scalar":
            return self._scalar(e.payload).reshape((1,) * len(sizes))
        if e.op == "index":
            return _indices(e.payload, sizes)
        if e.op in ("constant", "size"):
            number = self._evaluate_size(e.payload) if isinstance(e.payload, Size) else e.payload
            return round_to_type(np.full((1,) * len(sizes), number), e.type)
        return apply(e.op, operands, e.type, e.attributes, e.operands[0].type)

    def _gather(self, access: TableAccess, indices: Sequence[Array]) -> Array:
        """Return elements of a table. The call fails if an index is out of range."""
        places = np.asarray(self._first(access.buffer) + self._evaluate_size(access.offset))
        for index, size, stride in zip(indices, access.table.sizes, access.table.strides, strict=True):
            is_inside = (index >= 0) & (index < self._evaluate_size(size))
            self.outcome.fails |= not is_inside.all()
            places = places + np.where(is_inside, index, 0) * self._evaluate_size(stride)
        memory = self._memory(access.buffer)
        if places.size and not 0 <= places.min() <= places.max() < len(memory):
            raise InvalidProgram(f"element {places.max()} of a table of {len(memory)} is looked up")
        return _elements(memory, places)

    def _check_independence(self, parts: Sequence[tuple[LoopNest, Sequence[int], Array]]) -> None:
        """Check that iterations with different numbers are independent.

        ``parts`` are nests, their origins, and a number for each of their iterations. Iterations with different numbers
        are unordered, so one must not access elements that another writes.

        Raises:
            InvalidProgram: an iteration does.
        """
        if self.footprint.is_independent:
            return
        owners: dict[Buffer, Array] = {}
        for step, origin, numbers in parts:
            for access, places in self._accessed_places(step, step.written_accesses, origin):
                buffer = self._base(access.buffer)
                owner = owners.setdefault(buffer, np.full(len(self._memory(buffer)), -1))
                places, iterations = np.broadcast_arrays(places, numbers)
                is_other = (owner[places] != -1) & (owner[places] != iterations)
                owner[places] = iterations
                if is_other.any() or (owner[places] != iterations).any():
                    raise InvalidProgram(f"two iterations write one element of a {buffer.kind} buffer")
        for step, origin, numbers in parts:
            for access, places in self._accessed_places(step, step.read_accesses, origin):
                owned = owners.get(self._base(access.buffer))
                if owned is not None and ((owned[places] != -1) & (owned[places] != numbers)).any():
                    raise InvalidProgram(f"an iteration reads what another writes to a {access.buffer.kind} buffer")

    def _accessed_places(
        self, step: LoopNest, accesses: Iterable[Access], origin: Sequence[int]
    ) -> Iterator[tuple[Access, Array]]:
        """Yield the element offsets of a nest's accesses, except those to locals of a tile."""
        sizes = [self._evaluate_size(size) for size in step.sizes]
        result_sizes = [1 if reduces else size for size, reduces in zip(sizes, step.reduction, strict=True)]
        for access in accesses:
            if access.buffer.kind != "local":
                places = self._places(access, result_sizes if access in step.written_accesses else sizes, origin)
                yield from ((access, places + k) for k in range(access.width))

    def _base(self, buffer: Buffer) -> Buffer:
        return self._views[buffer][0] if buffer in self._views else buffer

    # Reductions.

    def _reduce(
        self, step: LoopNest, sizes: Sequence[int], result_sizes: Sequence[int], origin: Sequence[int]
    ) -> _Values:
        """Return the values of a nest after its loops that reduce."""
        if (factors := _factors(step)) is not None:
            known = self._evaluate(contents(factors).expressions, sizes, {}, origin)
            start = self._initial_accumulator(step, 0, result_sizes, origin)
            if 0 in sizes:
                return {step.values[0]: start}
            left, right = (known[factor] for factor in factors)
            return {step.values[0]: start + _sum_of_products(left, right, sizes, result_sizes)}
        body = step.body.expressions
        carried = _carried(body)
        known = self._evaluate([e for e in body if e not in carried], sizes, {}, origin)
        totals = [self._initial_accumulator(step, k, result_sizes, origin) for k in range(len(step.outputs))]
        if (terms := _terms(step)) is not None:
            return {step.values[0]: self._reduce_in_any_order(step, known[terms], totals[0], sizes)}
        loops = [loop for loop, reduces in enumerate(step.reduction) if reduces]
        self._check_all([check for check in step.checks if check not in carried], known)
        for iteration in itertools.product(*(range(sizes[loop]) for loop in loops)):
            values = {e: _part(value, loops, iteration) for e, value in known.items()}
            values |= {e: totals[e.payload] for e in _accumulators(body)}
            values = self._evaluate(body, result_sizes, values, origin)
            self._check_all([check for check in step.checks if check in carried], values)
            totals = [values[value] for value in step.values]
        # Two outputs with the same expression have different initial accumulators if there were zero iterations.
        return dict(zip(step.values, totals, strict=True))

    def _initial_accumulator(
        self, step: LoopNest, output: int, result_sizes: Sequence[int], origin: Sequence[int]
    ) -> Array:
        if step.initial is not None:
            (number,) = self._evaluate([step.initial], result_sizes, {}, origin).values()
            return np.broadcast_to(number, result_sizes)
        if step.outputs[output] in step.carried:
            return self._read_old(step.outputs[output], result_sizes, origin)
        unwritten = _make_uninitialised(1, step.values[output].type)
        return np.broadcast_to(unwritten.reshape((1,) * len(result_sizes)), result_sizes)

    def _reduce_in_any_order(self, step: LoopNest, terms: Array, start: Array, sizes: Sequence[int]) -> Array:
        (total,) = step.values
        terms, combine = np.broadcast_to(terms, sizes), ASSOCIATIVE[total.op]
        for loop in (loop for loop, reduces in enumerate(step.reduction) if reduces):
            if not sizes[loop]:
                return start
            terms = _fold(combine, terms, loop)
        return round_to_type(combine(start, terms), total.type)

    # Other steps.

    def _tile_loop(self, step: TileLoop) -> None:
        extents = [self._evaluate_size(extent) for extent in step.extents]
        starts = itertools.product(*(range(0, extent, tile) for extent, tile in zip(extents, step.tile, strict=True)))
        tiles = [self._tile(step, extents, start) for start in starts]
        self._check_independence([(*part, np.asarray(number)) for number, tile in enumerate(tiles) for part in tile])
        for tile in tiles:
            for buffer in step.locals:
                self.outcome.memory.pop(buffer, None)
            for nest, origin in tile:
                self._nest(nest, origin)

    def _tile(
        self, step: TileLoop, extents: Sequence[int], start: Sequence[int]
    ) -> list[tuple[LoopNest, Sequence[int]]]:
        """Return the members over one tile, and their origins."""
        part = [min(tile, extent - first) for tile, extent, first in zip(step.tile, extents, start, strict=True)]
        nests: list[tuple[LoopNest, Sequence[int]]] = []
        for member, loops in enumerate(step.loops):
            nest = step.part(member, part)
            firsts = dict(zip(loops, start, strict=True))
            nests.append((nest, [firsts.get(loop, 0) for loop in range(len(nest.sizes))]))
        return nests

    def _scatter(self, step: Scatter) -> None:
        """Run a scatter: the loops that its place varies with run in order."""
        nest, place = step.nest, step.nest.place
        assert place is not None
        sizes = [self._evaluate_size(size) for size in nest.sizes]
        origin = [0] * len(sizes)
        if 0 in sizes:
            return
        body = nest.body.expressions
        carried = _carried(body)
        known = self._evaluate([e for e in body if e not in carried], sizes, {}, origin)
        self._check_all(nest.checks, known)
        serial = [loop for loop, extent in enumerate(known[place].shape) if extent > 1]
        firsts = [self._places(access, sizes, origin) for access in nest.outputs]
        for iteration in itertools.product(*(range(sizes[loop]) for loop in serial)):
            values = {e: _part(value, serial, iteration) for e, value in known.items()}
            reached = [_part(first, serial, iteration) + values[place] for first in firsts]
            for access, elements in zip(nest.outputs, reached, strict=True):
                if elements.min() < 0 or elements.max() >= len(self._memory(access.buffer)):
                    raise InvalidProgram(f"a scatter writes outside of a {access.buffer.kind} buffer")
            values |= {e: self._read(nest.outputs[e.payload], reached[e.payload]) for e in _accumulators(body)}
            values = self._evaluate(body, [1 if loop in serial else n for loop, n in enumerate(sizes)], values, origin)
            for access, elements, value in zip(nest.outputs, reached, nest.values, strict=True):
                self._write(access, elements, values[value])

    def _repeat(self, step: RepeatLoop) -> None:
        for iteration in range(self._evaluate_size(step.count)):
            for view in step.views:
                first = self._evaluate_size(view.offset) + iteration * self._evaluate_size(view.distance)
                self._views[view.buffer] = view.base, first
            self.run(step.steps)

    def _region(self, step: OutlinedRegion) -> None:
        """Run a region. Its function determines the types and shapes of temporaries."""
        region, buffers = parse_region(step.text), [*step.inputs, *step.outputs]
        views = [np.zeros(0)] * len(buffers + list(step.temporaries))
        for number, (kind, shape) in region.buffers.items():
            is_given = number < len(buffers)
            memory = self._memory(buffers[number]) if is_given else _make_uninitialised(math.prod(shape), kind)
            views[number] = memory.reshape(shape)
        try:
            results = region.run([*views, *map(self._scalar, step.scalars)])
        except OutOfBounds:
            if self.outcome.fails:
                raise _CallFails from None
            raise InvalidProgram(f"an index in @{step.symbol} is outside of its buffer") from None
        self._scalars.update(zip(step.results, map(np.asarray, results), strict=True))

    def _scalar(self, value: Scalar) -> Array:
        if value.argument >= 0:
            return np.asarray(self._arguments.scalar(value.argument))
        return self._scalars[value]

    def _place(self, step: ElementStep) -> int:
        pairs = zip(step.indices, step.strides, strict=True)
        place = self._evaluate_size(step.offset)
        place += sum(int(self._scalar(index)) * self._evaluate_size(stride) for index, stride in pairs)
        if not 0 <= place < len(self._memory(step.buffer)):
            raise InvalidProgram(f"element {place} of a {step.buffer.kind} buffer is touched")
        return place

    def _load_element(self, step: LoadStep) -> None:
        self._scalars[step.scalar] = self._memory(step.buffer)[self._place(step)].reshape(())

    def _store_element(self, step: StoreStep) -> None:
        self._memory(step.buffer)[self._place(step)] = round_to_type(self._scalar(step.scalar), step.buffer.element)

    def _compute(self, step: ScalarStep) -> None:
        if step.value is not None:
            number = self._evaluate_size(step.value) if isinstance(step.value, Size) else step.value
            self._scalars[step.result] = round_to_type(np.asarray(number), step.result.type)
            return
        operands = [self._scalar(operand) for operand in step.operands]
        result = apply(step.name, operands, step.result.type, step.attributes, step.operands[0].type)
        self._scalars[step.result] = np.asarray(result)

    def _check(self, step: AssertStep) -> None:
        if not self._scalar(step.condition):
            raise _CallFails


def _factors(step: LoopNest) -> tuple[Expression, Expression] | None:
    """Return the two factors if a nest only sums products of floats, else None."""
    if len(step.values) != 1 or step.checks or not any(step.reduction):
        return None
    value = step.values[0]
    carried = [k for k, operand in enumerate(value.operands) if operand.op == "accumulator"]
    factors: tuple[Expression, ...] = ()
    if (value.op, carried) == ("math.fma", [2]):
        factors = value.operands[:2]
    elif value.op == "arith.addf" and len(carried) == 1 and value.operands[1 - carried[0]].op == "arith.mulf":
        factors = value.operands[1 - carried[0]].operands
    if not factors or any(_accumulators(contents(factors).expressions)):
        return None
    return factors[0], factors[1]


def _terms(step: LoopNest) -> Expression | None:
    """Return the terms if a nest only sums them, or combines them by another associative operation, else None."""
    if len(step.values) != 1 or step.checks or step.values[0].op not in ASSOCIATIVE:
        return None
    others = [operand for operand in step.values[0].operands if operand.op != "accumulator"]
    return others[0] if len(others) == 1 and not any(_accumulators(contents((others[0],)).expressions)) else None


def _sum_of_products(left: Array, right: Array, sizes: Sequence[int], result_sizes: Sequence[int]) -> Array:
    """Return the sum of ``left * right`` over the loops that reduce, without an array of all products."""
    summed = {loop for loop, size in enumerate(sizes) if size > 1 and result_sizes[loop] == 1}
    # Broadcast both factors along summed loops that only one varies with. Otherwise einsum would multiply the other
    # factor by the sum of one, which is another value if a factor is infinite.
    shape = np.broadcast_shapes(left.shape, right.shape)
    both = [
        np.broadcast_to(each, [shape[loop] if loop in summed else size for loop, size in enumerate(each.shape)])
        for each in (left, right)
    ]
    over = [[loop for loop, size in enumerate(each.shape) if size > 1] for each in both]
    values = [each.reshape([each.shape[loop] for loop in loops]) for each, loops in zip(both, over, strict=True)]
    result = [loop for loop in range(len(sizes)) if loop in {*over[0], *over[1]} and loop not in summed]
    total: Array = np.einsum(values[0], over[0], values[1], over[1], result, optimize=True)
    repeats = math.prod(sizes[loop] for loop in summed if loop not in {*over[0], *over[1]})
    return total.reshape([result_sizes[loop] if loop in result else 1 for loop in range(len(sizes))]) * repeats


def _accumulators(expressions: Iterable[Expression]) -> Iterator[Expression]:
    return (e for e in expressions if e.op == "accumulator")


def _carried(body: Sequence[Expression]) -> set[Expression]:
    """Return the accumulators of ``body`` and the expressions that depend on them."""
    carried = set(_accumulators(body))
    for expression in body:
        if carried.intersection(expression.operands):
            carried.add(expression)
    return carried


def _indices(loop: int, sizes: Sequence[int]) -> Array:
    shape = [1] * len(sizes)
    shape[loop] = sizes[loop]
    return np.arange(sizes[loop], dtype=np.int64).reshape(shape)


def _elements(memory: Array, places: Any) -> Array:
    result: Array = memory[places]
    return result


def _part(value: Array, loops: Sequence[int], iteration: Sequence[int]) -> Array:
    cut = [slice(None)] * value.ndim
    for loop, index in zip(loops, iteration, strict=True):
        cut[loop] = slice(index, index + 1) if value.shape[loop] > 1 else slice(None)
    return _elements(value, tuple(cut))


def _fold(combine: Callable[[Array, Array], Array], terms: Array, loop: int) -> Array:
    """Return all terms along a loop combined into one."""
    while (count := terms.shape[loop]) > 1:
        first, second, rest = np.split(terms, [count // 2, count // 2 * 2], axis=loop)
        terms = np.concatenate([combine(first, second), rest], axis=loop)
    return terms


def _make_uninitialised(count: int, kind: str) -> Array:
    """Return the content of memory that was never written."""
    dtype = np.dtype(DTYPES[kind])
    if dtype.kind == "f":
        return np.full(count, np.nan)
    return np.full(count, 0x5A, np.int64).astype(dtype)


@lru_cache(maxsize=32)
def _constant(text: str, kind: str) -> Array:
    """Return the elements of a constant tensor from the text of its LLVM global."""
    start = text.index("(") + 1
    with ir.Context():
        attribute = ir.Attribute.parse(text[start : text.rindex(") {alignment")])
        is_float = DTYPES[kind] is np.float64
        elements = (ir.DenseFPElementsAttr if is_float else ir.DenseIntElementsAttr)(attribute)
        return np.array([elements[k] for k in range(len(elements))], DTYPES[kind])
