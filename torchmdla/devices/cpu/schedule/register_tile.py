"""The register tile of a reduction: how many points of each loop are accumulated at once.

Every combination of tile sizes that the registers hold is costed: cycles of one step of the reduction (arithmetic,
loads, latency of the accumulators' chains), times the steps, over full and partial tiles. Nothing is known of kinds of
nests; a matrix product's rows by columns, or a convolution's pixels by blocks of channels, come out of the costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu import math_library
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, stored
from torchmdla.devices.cpu.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.schedule.dataflow import multiply_adds, varying_loops
from torchmdla.devices.cpu.schedule.streams import is_read_once, streams

# Cycles, on a core that does two vector operations and two loads in each.
_OPERATION = 0.5
_CALL = 20.0
_LOAD = 0.5
_GATHERED_LANE = 0.8
_LATENCY = 4.0
# What loads cost although arithmetic hides them, as later levels of the memory are slower: of a vector, and of a value
# that is broadcast, 16 of which lie in a line. Accumulators that share nothing are so many streams from memory, which
# processors foresee while a step reads few bytes of them.
_HIDDEN_VECTOR = 0.15
_HIDDEN_BROADCAST = 0.05
# Vectors next to each other that are fetched as one; fewer of them cost as much.
_RUN = 4
_STREAMS, _STREAM_BYTES = 8, 256
_STREAM = 0.1
_EVICTED = 0.5

# Ways of the first cache that points at the same place in it may fill.
_WAYS = 8
# To open a tile, and to start and store one of its accumulators; to store or read one that does not lie next to the one
# before it, most of it for pages and lines that the processor does not foresee; to combine the lanes of one.
_TILE = 12.0
_ACCUMULATOR = 1.5
_JUMP = 3.0
_LANES = 6.0
# An epilogue of more instructions than this, all but constants, needs registers: without so many free ones, each
# instruction beyond it costs as many cycles more for each accumulator.
_SHORT_EPILOGUE = 8
_EPILOGUE_REGISTERS = 14
_SPILLED = 0.5

# More code for partial tiles is worth avoiding at the same speed.
_PARTIAL = 1.005

# So are tiles over a loop of unknown size, where another loop does as well.
_UNKNOWN = 1.05

# Steps of a reduction that is short enough to be unrolled whole; points of a tile times steps of the innermost loop
# that reduces, for that alone to be.
_WINDOW = 25
UNROLLED_WINDOW = 144

# Values of a body that are in registers at once, of those that each point of a tile has its own of, and of those that
# are computed for several: in long bodies instructions read them one after the other.
_MOST_LIVE, _MOST_SHARED = 4, 2

# Loops that a tile extends over, the vector loop included.
_MOST_AXES = 4

# The most points of a loop of unknown size in a tile, so that not much of it is left to partial tiles: rows that are no
# power of two take several, vectors are computed one by one.
_MOST_UNKNOWN_ROWS = 8
_MOST_UNKNOWN_VECTORS = 2


@dataclass(frozen=True)
class _Term:
    """A value of the body that is computed or loaded in every step, once for each point of ``axes``. ``windows``: axes
    along which a short reduction slides, as (axis, step, length): neighbouring points share what they read.
    ``crowded``: how many points of an axis, as (axis, points), the first cache holds although they lie a power of two
    apart. ``run``: the axis along which vectors lie next to each other, and how many do, up to those that are fetched
    as one. ``slides``: a window of the innermost loop, as in ``windows``: what neighbouring points share of a value
    that is broadcast stays in registers from step to step once that loop is unrolled. ``memory``: the cycles in
    which it comes from memory, where it comes from there, and is read once; ``streams``: how many of it a processor
    foresees."""

    axes: tuple[int, ...]
    arithmetic: float
    loads: float
    is_vector: bool
    windows: tuple[tuple[int, int, int], ...] = ()
    crowded: tuple[tuple[int, int], ...] = ()
    run: tuple[int, int] = (0, 1)
    slides: tuple[tuple[int, int, int], ...] = ()
    memory: float = 0.0
    streams: int = _STREAMS

    def loaded(self, tile: Sequence[int]) -> float:
        """Loads in a step, on average over a window."""
        points = float(math.prod(tile[k] for k in self.axes))
        for axis, step, length in self.windows or (self.slides if self.kept(tile) else ()):
            points *= min(1.0, ((tile[axis] - 1) * step + length) / (tile[axis] * length))
        return points

    def kept(self, tile: Sequence[int]) -> int:
        """Values that are broadcast and stay in registers while a window slides over them."""
        for axis, step, length in self.slides:
            if step < length and tile[axis] > 1 and math.prod(tile) * length <= UNROLLED_WINDOW:
                others = math.prod(tile[k] for k in self.axes if k != axis)
                return others * ((tile[axis] - 1) * step + length)
        return 0

    def hidden(self, tile: Sequence[int]) -> float:
        """Cycles of a step's loads although arithmetic hides them."""
        axis, length = self.run
        each = _HIDDEN_VECTOR * length / min(length, tile[axis]) if self.is_vector else _HIDDEN_BROADCAST
        return self.loaded(tile) * self.loads * each


def choose_tile(
    nest: KernelSpec, machine: Machine, vector: int, lanes: int, unknown: frozenset[int] = frozenset()
) -> tuple[tuple[int, ...], float]:
    """Iterations of each loop in a register tile of a ``nest`` that reduces, ``vector`` lying across ``lanes`` (-1:
    none), and the cycles that the whole nest takes with it while its operands are in the first cache. The sizes of the
    loops ``unknown`` are only typical ones."""
    if vector < 0:
        return (1,) * len(nest.sizes), _LATENCY * math.prod(nest.sizes)
    search = _Search(nest, machine, vector, lanes, unknown)
    return search.of_loops(*search.best())


def tiles_by_cost(
    nest: KernelSpec, machine: Machine, vector: int, lanes: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every register tile of a static nest that the registers hold, as :func:`choose_tile` has them, best first."""
    search = _Search(nest, machine, vector, lanes, frozenset())
    return itertools.starmap(search.of_loops, search.ranked())


class _Search:
    """The costs of a nest's tiles. A tile is counted in points of each axis; a point of the vector loop is a vector."""

    def __init__(self, nest: KernelSpec, machine: Machine, vector: int, lanes: int, unknown: frozenset[int]) -> None:
        self._machine, self._nest, self._vector, self._lanes = machine, nest, vector, lanes
        self._outputs = len(nest.outputs)
        self._across = nest.reduction[vector]
        self.axes = _axes(nest, vector, machine)
        self._sizes = [-(-nest.sizes[d] // lanes) if d == vector else nest.sizes[d] for d in self.axes]
        self._reduced = [nest.reduction[d] for d in self.axes]
        most = {d: _MOST_UNKNOWN_VECTORS if d == vector else _MOST_UNKNOWN_ROWS for d in unknown}
        self._most = [most.get(d, 0) for d in self.axes]
        self._steps = math.prod(size for d, size in enumerate(nest.sizes) if nest.reduction[d] and d != vector)
        self._terms = _terms(nest, machine, self.axes, vector, lanes)
        body = nest.epilogue.body if nest.epilogue else ()
        operands = nest.epilogue.inputs + nest.epilogue.outputs if nest.epilogue else nest.outputs
        # For all that results are stored to or meet: the axes along which vectors lie next to each other.
        vectors = [o for o in operands if o.strides[vector] == 1]
        self._adjacent = [[k for k, d in enumerate(self.axes) if _are_adjacent(o, d, vector, lanes)] for o in vectors]
        self._epilogue_ops = max(0, sum(e.op != "constant" for e in body) - _SHORT_EPILOGUE)
        self._costs: dict[tuple[int, ...], float] = {}

    def best(self) -> tuple[tuple[int, ...], float]:
        """The tile of the least cost, and that cost."""
        parallel = [k for k, reduced in enumerate(self._reduced) if not reduced]
        points = math.prod(self._sizes[k] for k in parallel)
        found = (1,) * len(self.axes)
        least = self._total(found)
        for tile in self._candidates():
            if not self._fits(tile) or self._cost(tile) * points >= least * math.prod(tile[k] for k in parallel):
                continue
            total = self._total(tile)
            if total < least:
                found, least = tile, total
        return found, least

    def ranked(self) -> list[tuple[tuple[int, ...], float]]:
        """Every tile that fits and its cost, best first."""
        found = [(tile, self._total(tile)) for tile in self._candidates() if self._fits(tile)]
        return sorted(found, key=lambda one: one[1])

    def of_loops(self, tile: tuple[int, ...], cycles: float) -> tuple[tuple[int, ...], float]:
        """Iterations of each loop of the nest in a tile that takes ``cycles`` in all, and what the whole nest takes."""
        points = dict(zip(self.axes, tile, strict=True))
        if self._vector in points:
            points[self._vector] *= self._lanes
        sizes = enumerate(self._nest.sizes)
        untiled = (size for d, size in sizes if not self._nest.reduction[d] and d not in self.axes)
        return tuple(points.get(d, 1) for d in range(len(self._nest.sizes))), cycles * math.prod(untiled)

    def _candidates(self) -> Iterator[tuple[int, ...]]:
        limit = self._machine.registers // self._outputs

        def extend(axis: int, product: int) -> Iterator[tuple[int, ...]]:
            if axis == len(self.axes):
                yield ()
                return
            for points in _balanced(self._sizes[axis], limit // product, self._most[axis]):
                for rest in extend(axis + 1, product * points):
                    yield (points, *rest)

        return extend(0, 1)

    def _fits(self, tile: Sequence[int]) -> bool:
        """Whether accumulators, and what is reused between them, stay in registers."""
        accumulators = math.prod(tile)
        live = accumulators * self._outputs + (0 if self._machine.embeds_broadcasts else 1)
        reused = kept = 0
        single: list[int] = []
        shared: list[int] = []
        for term in self._terms:
            points = math.prod(tile[k] for k in term.axes)
            if points < accumulators:
                if term.is_vector and term.loads:
                    live += points
                elif term.is_vector:
                    shared.append(points)
                kept += term.kept(tile)
                reused += term.is_vector is False and accumulators // points > 1
            elif term.is_vector and accumulators > 1:
                single.append(points if term.loads else 1)
        live += sum(single[:_MOST_LIVE]) + sum(shared[:_MOST_SHARED])
        return live + max(kept, 1 if reused else 0) <= self._machine.registers or accumulators == 1

    def _cost(self, tile: tuple[int, ...]) -> float:
        """Cycles of one whole tile."""
        if tile not in self._costs:
            arithmetic = loads = hidden = memory = 0.0
            for term in self._terms:
                points = math.prod(tile[k] for k in term.axes)
                arithmetic += points * term.arithmetic
                memory += points * term.memory
                loads += term.loaded(tile) * term.loads
                hidden += term.hidden(tile)
                if term.loads and points == math.prod(tile):
                    hidden += _STREAM * max(0, points - term.streams)
                hidden += sum(_EVICTED * max(0, tile[axis] - most) for axis, most in term.crowded)
            step = max(arithmetic, loads, memory, _LATENCY) + hidden
            steps, accumulators = self._steps, math.prod(tile) * self._outputs
            if self._across:
                vectors, taken = next((s, t) for s, t, r in zip(self._sizes, tile, self._reduced, strict=True) if r)
                steps *= -(-vectors // taken)
            jumps = sum(math.prod(tile) / max([tile[k] for k in axes], default=1) for axes in self._adjacent)
            epilogue = jumps * _JUMP + accumulators * (_ACCUMULATOR + (_LANES if self._across else 0))
            if accumulators + _EPILOGUE_REGISTERS > self._machine.registers:
                epilogue += accumulators * self._epilogue_ops * _SPILLED
            self._costs[tile] = steps * step + epilogue + _TILE
        return self._costs[tile]

    def _total(self, tile: tuple[int, ...]) -> float:
        """Cycles of all tiles, partial ones at the ends of loops included."""
        parts: list[list[tuple[float, int]]] = []
        for size, points, reduced, most in zip(self._sizes, tile, self._reduced, self._most, strict=True):
            if most and not reduced:
                parts.append([(size / points * (_UNKNOWN if points > 1 else 1), points)])
                continue
            full, rest = divmod(size, points)
            parts.append([(1, points)] if reduced else [p for p in ((full, points), (1, rest)) if p[0] and p[1]])
        return math.prod(_PARTIAL for part in parts if len(part) > 1) * sum(
            math.prod(count for count, _ in choice) * self._cost(tuple(points for _, points in choice))
            for choice in itertools.product(*parts)
        )


def reduction_order(nest: KernelSpec, vector: int) -> tuple[int, ...]:
    """The loops that reduce, outermost first: large strides outside, the vector loop inside. Of a short window those
    are inside that slide over other loops than the vector one, where neighbours share what they read."""
    loops = [d for d, reduced in enumerate(nest.reduction) if reduced]
    short = math.prod(nest.sizes[d] for d in loops) <= _WINDOW
    slid = {d for d in loops if short and _shares(nest, vector, d)}
    return tuple(
        sorted(loops, key=lambda d: (d == vector, d in slid, -max((o.strides[d] for o in nest.inputs), default=0), d))
    )


def _shares(nest: KernelSpec, vector: int, loop: int) -> bool:
    """Whether neighbours along another loop than the vector one share what ``loop`` reads."""
    parallel = [d for d, reduced in enumerate(nest.reduction) if not reduced]
    windows = (window for own in nest.inputs for window in _windows(nest, own.strides, parallel, vector, [loop]))
    return any(0 < step < length for _, step, length in windows)


def _axes(nest: KernelSpec, vector: int, machine: Machine) -> list[int]:
    """The vector loop, and the loops that reuse some input, those that reuse the most first. What few rows read from
    front to back is read at one place at a time."""
    adjacent = [] if nest.reduction[vector] else [o for o in streams(nest, machine) if o.strides[vector] == 1]
    reused = [
        d
        for d, size in enumerate(nest.sizes)
        if d != vector and size > 1 and not nest.reduction[d] and any(o.strides[d] == 0 for o in nest.inputs)
        if not any(o.strides[d] for o in adjacent)
    ]
    reused.sort(key=lambda d: (-sum(o.strides[d] == 0 for o in nest.inputs), -nest.sizes[d]))
    return sorted([vector, *reused[: _MOST_AXES - 1]])


def _balanced(size: int, limit: int, most: int) -> list[int]:
    """Tile sizes of a loop, without those that need as many tiles as a smaller one. A loop of unknown size has tiles of
    at most ``most`` points (0: it is known)."""
    if most:
        return list(range(1, min(size, limit, most) + 1))
    return [t for t in range(1, min(size, limit) + 1) if t == 1 or -(-size // t) < -(-size // (t - 1))]


def _terms(nest: KernelSpec, machine: Machine, axes: Sequence[int], vector: int, lanes: int) -> list[_Term]:
    varying = varying_loops(nest)
    fused = set(multiply_adds(nest).values()) if machine.fused else set()
    reduction = {d for d, reduced in enumerate(nest.reduction) if reduced}
    innermost = [d for d in reduction_order(nest, vector) if d != vector][-1:]
    terms = []
    for expression in (*nest.loads, *nest.body):
        varies = varying[expression]
        if not varies & reduction or expression in fused or expression.op == "assert":
            continue
        own = tuple(k for k, d in enumerate(axes) if d in varies)
        if expression.op != "operand":
            cost = 0.0 if expression.op == "constant" else _OPERATION
            cost = _CALL if math_library.is_call(expression.op) else cost
            cost = _GATHERED_LANE * lanes if expression.op == "gather" else cost
            terms.append(_Term(own, cost, 0.0, vector in varies))
        else:
            operand = nest.operands[expression.payload]
            stride = operand.strides[vector]
            cost = _LOAD if stride in (0, 1) else (2 * _LOAD + 1 if stride in (-1, 2) else _GATHERED_LANE * lanes)
            short = math.prod(nest.sizes[d] for d in reduction) <= _WINDOW
            windows = tuple(_windows(nest, operand.strides, axes, vector, sorted(reduction))) if short else ()
            slides = () if stride else tuple(_windows(nest, operand.strides, axes, vector, innermost))
            crowded = tuple(_crowded(operand, axes, vector, machine))
            run = axes.index(vector), _run(nest, operand, vector, lanes)
            memory = _memory(nest, operand, machine) if stride == 1 else 0.0
            foreseen = _STREAM_BYTES // (lanes * ELEMENT_BYTES[stored(operand.element)])
            foreseen = min(_STREAMS, foreseen) if memory else _STREAMS
            terms.append(_Term(own, 0.0, cost, stride != 0, windows, crowded, run, slides, memory * lanes, foreseen))
    return terms


def _memory(nest: KernelSpec, operand: Operand, machine: Machine) -> float:
    """The cycles in which an element comes from memory, if it does, and is read once."""
    comes = operand in streams(nest, machine) and is_read_once(nest, operand)
    return ELEMENT_BYTES[stored(operand.element)] / machine.memory_bytes if comes else 0.0


def _are_adjacent(operand: Operand, loop: int, vector: int, lanes: int) -> bool:
    """Whether the vectors of neighbouring iterations of ``loop`` lie next to each other."""
    return operand.strides[vector] == 1 and operand.strides[loop] == (1 if loop == vector else lanes)


def _run(nest: KernelSpec, operand: Operand, vector: int, lanes: int) -> int:
    """How many vectors of an operand lie next to each other before the next step of a reduction, at most _RUN."""
    if operand.strides[vector] != 1:
        return 1
    steps = [operand.strides[d] for d, reduced in enumerate(nest.reduction) if reduced and operand.strides[d]]
    return max(1, min(_RUN, -(-nest.sizes[vector] // lanes), *(step // lanes for step in steps)))


def _crowded(operand: Operand, axes: Sequence[int], vector: int, machine: Machine) -> Iterator[tuple[int, int]]:
    sets = machine.first_level // (_WAYS * machine.line)
    for axis, loop in enumerate(axes):
        distance, rest = divmod(operand.strides[loop] * ELEMENT_BYTES[stored(operand.element)], machine.line)
        if loop != vector and distance and not rest:
            yield axis, _WAYS * (sets // math.gcd(sets, distance))


def _windows(
    nest: KernelSpec, strides: Sequence[int], axes: Sequence[int], vector: int, reduction: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Where the loops ``reduction`` slide over what an operand's axes walk."""
    for axis, loop in enumerate(axes):
        for other in reduction:
            if loop != vector and strides[other] and strides[loop] and strides[loop] % strides[other] == 0:
                yield axis, strides[loop] // strides[other], nest.sizes[other]
                break
