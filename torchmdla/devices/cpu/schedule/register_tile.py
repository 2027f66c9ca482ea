"""Register tile of a reduction: the number of points of each loop that are accumulated at once.

The cost model evaluates every combination of tile sizes that fits the registers. One step of the reduction takes cycles
for arithmetic, loads, and the latency of the accumulator chains. The total covers all steps of full and partial tiles.
The model does not depend on kinds of nests. Rows by columns of a matrix product, or pixels by channel blocks of a
convolution, result from the costs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.schedule.dataflow import multiply_adds, varying_loops
from torchmdla.devices.cpu.schedule.partition import join_cycles, largest_share
from torchmdla.devices.cpu.schedule.streams import is_read_in_order, is_read_once, streams
from torchmdla.devices.cpu.target import math_library
from torchmdla.devices.cpu.target.machine import Machine

# Cycles on a core that begins two vector operations and two loads in each.
_OPERATION = 0.5
_CALL = 20.0
_LOAD = 0.5
# A load from two lines takes longer.
_CROSSING = 0.25
_GATHERED_LANE = 0.8
# The latency of an addition is four cycles. A step with just enough chains to hide it waits for every late load.
_LATENCY = 5.0
# The cost of loads that arithmetic hides, since later levels of memory are slower. It is for a vector, and for a
# broadcast value, 16 of which are in a line. Accumulators without shared operands read one stream from memory each.
# Hardware prefetches these while a step computes vectors of few bytes.
_HIDDEN_VECTOR = 0.15
_HIDDEN_BROADCAST = 0.05
# Contiguous vectors that are fetched as one. Fewer of them cost as much.
_RUN = 4
_STREAMS, _STREAM_BYTES = 8, 256
_STREAM = 0.1
_EVICTED = 0.5

# The cycles of a step for neighbouring points of an operand that steps before have evicted from the first-level cache:
# for vectors, and for broadcast values, whose lines the hardware does not prefetch.
_EVICTED_VECTOR, _EVICTED_BROADCAST = 5.0, 8.0

# The ways of the first-level cache that points at the same place in it may fill.
_WAYS = 8
# The cycles to begin a tile, and to start and store one of its accumulators. Then the cycles to store or read an
# accumulator that is not contiguous with the previous one, mostly for pages and lines that the hardware does not
# prefetch. Last, the cycles to combine the lanes of one accumulator.
_TILE = 12.0
_ACCUMULATOR = 1.5
_JUMP = 3.0
_LANES = 6.0
# The cycles to store a lane to a line that other rows of the tile evict.
_EVICTED_STORE = 14.0
# An epilogue with more instructions than this, without constants, needs registers. If fewer are free, each further
# instruction costs _SPILLED cycles for each accumulator.
_SHORT_EPILOGUE = 8
_EPILOGUE_REGISTERS = 14
_SPILLED = 0.5

# The penalty for partial tiles, to avoid their code at the same speed.
_PARTIAL = 1.005

# The penalty for tiles over a loop of unknown size, to prefer another loop at the same speed.
_UNKNOWN = 1.05

# The steps of a reduction that is short enough to be unrolled completely. Then the limit on a tile's points times
# steps, for unrolling only the innermost loop that reduces.
_WINDOW = 25
UNROLLED_WINDOW = 144

# The values of a body that are live at once: those that each point of a tile has, and those that are computed for
# several points. In long bodies, instructions use them one after the other.
_MOST_LIVE, _MOST_SHARED = 4, 2

# The most loops that a tile extends over, including the vector loop.
_MOST_AXES = 4

# The most points of a loop of unknown size in a tile, so that little remains for partial tiles. A remainder of rows
# takes several partial tiles, one for each power of two. A remainder of vectors is computed one by one.
_MOST_UNKNOWN_ROWS = 8
_MOST_UNKNOWN_VECTORS = 2


@dataclass(frozen=True)
class _Term:
    """Value of the body that each step computes or loads, once for each point of ``axes``.

    Attributes:
        axes: the axes that the value varies with.
        arithmetic: the cycles to compute one point.
        loads: the cycles to load one point.
        is_vector: whether the value varies with the vector loop.
        windows: the axes along which a short reduction slides, as (axis, step, length). Neighbouring points share
            loads.
        crowded: axes whose points are a power of two apart, as (axis, points). ``points`` is how many the first-level
            cache can hold.
        run: the axis along which vectors are contiguous, and the number of contiguous vectors, up to those that are
            fetched as one.
        slides: the windows of the innermost loop, as in ``windows``. Once that loop is unrolled, broadcast values that
            neighbouring points share stay in registers from step to step.
        memory: the cycles to read one point from memory, if it is a stream that is read once.
        streams: the number of points that the hardware prefetches.
        evicted: the axes whose points are in separate lines, if those of the next steps evict them.
    """

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
    evicted: tuple[int, ...] | None = None

    def loads_per_step(self, tile: Sequence[int]) -> float:
        """Return the loads in a step, on average over a window."""
        points = float(math.prod(tile[k] for k in self.axes))
        for axis, step, length in self.windows or (self.slides if self.live_values(tile) else ()):
            points *= min(1.0, ((tile[axis] - 1) * step + length) / (tile[axis] * length))
        return points

    def live_values(self, tile: Sequence[int]) -> int:
        """Return the number of broadcast values that stay in registers while a window slides over them."""
        for axis, step, length in self.slides:
            if step < length and tile[axis] > 1 and math.prod(tile) * length <= UNROLLED_WINDOW:
                others = math.prod(tile[k] for k in self.axes if k != axis)
                return others * ((tile[axis] - 1) * step + length)
        return 0

    def hidden_cycles(self, tile: Sequence[int]) -> float:
        """Return the cost in cycles of a step's loads that arithmetic hides."""
        axis, length = self.run
        each = _HIDDEN_VECTOR * length / min(length, tile[axis]) if self.is_vector else _HIDDEN_BROADCAST
        return self.loads_per_step(tile) * self.loads * each


def choose_tile(
    nest: KernelSpec, machine: Machine, vector: int, lanes: int, unknown: frozenset[int] = frozenset()
) -> tuple[tuple[int, ...], float]:
    """Return the register tile of a ``nest`` that reduces, and the cycles of the whole nest.

    The tile is the number of iterations of each loop. ``vector`` is the loop across ``lanes`` (-1 for scalar code). The
    cycles are for operands in the first-level cache. The sizes of the loops ``unknown`` are only typical.
    """
    if vector < 0:
        return (1,) * len(nest.sizes), _LATENCY * math.prod(nest.sizes)
    search = _Search(nest, machine, vector, lanes, unknown)
    return search.to_loops(*search.best())


def tiles_by_cost(
    nest: KernelSpec, machine: Machine, vector: int, lanes: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Return every register tile of a static nest that fits the registers, as :func:`choose_tile` does, best first."""
    search = _Search(nest, machine, vector, lanes, frozenset())
    return itertools.starmap(search.to_loops, search.rank())


class _Search:
    """Search for a nest's tile, by cost.

    A tile is counted in points of each axis. A point of the vector loop is a vector.
    """

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
        sizes = enumerate(nest.sizes)
        self._untiled = math.prod(size for d, size in sizes if not nest.reduction[d] and d not in self.axes)
        self._terms = _terms(nest, machine, self.axes, vector, lanes)
        body = nest.epilogue.body if nest.epilogue else ()
        operands = nest.epilogue.inputs + nest.epilogue.outputs if nest.epilogue else nest.outputs
        # For each operand of the epilogue or output: the axes along which its vectors are contiguous.
        vectors = [o for o in operands if o.strides[vector] == 1]
        # For each output with scattered lanes: the lines that the first-level cache can hold, and their axes.
        self._scattered = [
            (most // lanes, [k for k, d in enumerate(self.axes) if any(_held_points(o, d, machine))])
            for o in (nest.epilogue or nest).outputs
            for most in _held_points(o, vector, machine)
        ]
        self._adjacent = [[k for k, d in enumerate(self.axes) if _are_adjacent(o, d, vector, lanes)] for o in vectors]
        self._epilogue_ops = max(0, sum(e.op != "constant" for e in body) - _SHORT_EPILOGUE)
        self._costs: dict[tuple[int, ...], float] = {}

    def best(self) -> tuple[tuple[int, ...], float]:
        """Return the tile of the least time, and its cost."""
        parallel = [k for k, reduced in enumerate(self._reduced) if not reduced]
        points, threads = math.prod(self._sizes[k] for k in parallel), self._machine.threads
        chosen = (1,) * len(self.axes)
        least = self._time(chosen)
        for tile in self._candidates():
            fewest = math.prod(tile[k] for k in parallel) * threads
            if not self._fits(tile) or self._cost(tile) * points >= least * fewest:
                continue
            time = self._time(tile)
            if time < least:
                chosen, least = tile, time
        return chosen, self._total(chosen)

    def _time(self, tile: tuple[int, ...]) -> float:
        """Return the time of the threads that share the tiles, or of one thread if that is less."""
        total, threads = self._total(tile), self._machine.threads
        if threads == 1:
            return total
        axes = zip(self._sizes, tile, self._reduced, strict=True)
        blocks = [(size, points) for size, points, reduced in axes if not reduced]
        share = largest_share([(self._untiled, 1), *blocks], 1, threads)
        return min(total, total * share + join_cycles(threads) / self._untiled)

    def rank(self) -> list[tuple[tuple[int, ...], float]]:
        """Return every tile that fits, and its cost, best first."""
        costed = [(tile, self._total(tile)) for tile in self._candidates() if self._fits(tile)]
        return sorted(costed, key=lambda pair: pair[1])

    def to_loops(self, tile: tuple[int, ...], cycles: float) -> tuple[tuple[int, ...], float]:
        """Return the iterations of each loop in a tile, and the cycles of the whole nest.

        ``cycles`` is the total of all tiles.
        """
        points = dict(zip(self.axes, tile, strict=True))
        if self._vector in points:
            points[self._vector] *= self._lanes
        return tuple(points.get(d, 1) for d in range(len(self._nest.sizes))), cycles * self._untiled

    def _candidates(self) -> Iterator[tuple[int, ...]]:
        limit = self._machine.registers // self._outputs

        def extend(axis: int, product: int) -> Iterator[tuple[int, ...]]:
            if axis == len(self.axes):
                yield ()
                return
            for points in _balanced_sizes(self._sizes[axis], limit // product, self._most[axis]):
                for rest in extend(axis + 1, product * points):
                    yield (points, *rest)

        return extend(0, 1)

    def _fits(self, tile: Sequence[int]) -> bool:
        """Return whether accumulators, and the values that are reused between them, fit the registers."""
        accumulators = math.prod(tile)
        live = accumulators * self._outputs
        # A broadcast value has a register, unless instructions read it from memory and it is used once.
        reused, resident = not self._machine.embeds_broadcasts, 0
        single: list[int] = []
        shared: list[int] = []
        for term in self._terms:
            points = math.prod(tile[k] for k in term.axes)
            if points < accumulators:
                if term.is_vector and term.loads:
                    live += points
                elif term.is_vector:
                    shared.append(points)
                resident += term.live_values(tile)
                reused = reused or (term.is_vector is False and accumulators // points > 1)
            elif term.is_vector and accumulators > 1:
                single.append(points if term.loads else 1)
        live += sum(single[:_MOST_LIVE]) + sum(shared[:_MOST_SHARED])
        return live + max(resident, 1 if reused else 0) <= self._machine.registers or accumulators == 1

    def _cost(self, tile: tuple[int, ...]) -> float:
        if tile not in self._costs:
            arithmetic = loads = hidden_cycles = memory = 0.0
            for term in self._terms:
                points = math.prod(tile[k] for k in term.axes)
                arithmetic += points * term.arithmetic
                memory += points * term.memory
                if term.evicted is not None:
                    each = _EVICTED_VECTOR if term.is_vector else _EVICTED_BROADCAST
                    memory += each * math.prod(tile[k] for k in term.evicted)
                loads += term.loads_per_step(tile) * term.loads
                hidden_cycles += term.hidden_cycles(tile)
                if term.loads and points == math.prod(tile):
                    hidden_cycles += _STREAM * max(0, points - term.streams)
                hidden_cycles += sum(_EVICTED * max(0, tile[axis] - most) for axis, most in term.crowded)
            step = max(arithmetic, loads, memory, _LATENCY) + hidden_cycles
            steps, accumulators = self._steps, math.prod(tile) * self._outputs
            if self._across:
                vectors, taken = next((s, t) for s, t, r in zip(self._sizes, tile, self._reduced, strict=True) if r)
                steps *= -(-vectors // taken)
            jumps = sum(math.prod(tile) / max([tile[k] for k in axes], default=1) for axes in self._adjacent)
            epilogue = jumps * _JUMP + accumulators * (_ACCUMULATOR + (_LANES if self._across else 0))
            evicted = sum(math.prod(tile[k] for k in axes) > most for most, axes in self._scattered)
            epilogue += evicted * math.prod(tile) * self._lanes * _EVICTED_STORE
            if accumulators + _EPILOGUE_REGISTERS > self._machine.registers:
                epilogue += accumulators * self._epilogue_ops * _SPILLED
            self._costs[tile] = steps * step + epilogue + _TILE
        return self._costs[tile]

    def _total(self, tile: tuple[int, ...]) -> float:
        """Return the cycles of all tiles, including partial ones at the ends of loops."""
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
    """Return the loops that reduce, outermost first: large strides outside, the vector loop inside.

    In a short window, loops that slide over a loop other than the vector loop are inside, where neighbours share loads.
    """
    loops = [d for d, reduced in enumerate(nest.reduction) if reduced]
    short = math.prod(nest.sizes[d] for d in loops) <= _WINDOW
    slid = {d for d in loops if short and _shares(nest, vector, d)}
    return tuple(
        sorted(loops, key=lambda d: (d == vector, d in slid, -max((o.strides[d] for o in nest.inputs), default=0), d))
    )


def _shares(nest: KernelSpec, vector: int, loop: int) -> bool:
    """Return whether neighbours along a parallel loop other than the vector loop share the loads of ``loop``."""
    parallel = [d for d, reduced in enumerate(nest.reduction) if not reduced]
    windows = (
        window for operand in nest.inputs for window in _windows(nest, operand.strides, parallel, vector, [loop])
    )
    return any(0 < step < length for _, step, length in windows)


def _axes(nest: KernelSpec, vector: int, machine: Machine) -> list[int]:
    """Return the loops that a tile extends over: the vector loop, and the loops with the most reuse of inputs.

    A stream that is read sequentially is read at one place at a time, so the tile does not extend over its loops.
    """
    adjacent = [o for o in streams(nest, machine) if is_read_in_order(nest, o, vector, machine)]
    reused = [
        d
        for d, size in enumerate(nest.sizes)
        if d != vector and size > 1 and not nest.reduction[d] and any(o.strides[d] == 0 for o in nest.inputs)
        if not any(o.strides[d] for o in adjacent)
    ]
    reused.sort(key=lambda d: (-sum(o.strides[d] == 0 for o in nest.inputs), -nest.sizes[d]))
    return sorted([vector, *reused[: _MOST_AXES - 1]])


def _balanced_sizes(size: int, limit: int, most: int) -> list[int]:
    """Return the tile sizes of a loop, without those that need as many tiles as a smaller one.

    A loop of unknown size has tiles of at most ``most`` points (0: the size is known).
    """
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
        term_axes = tuple(k for k, d in enumerate(axes) if d in varies)
        if expression.op != "operand":
            cost = 0.0 if expression.op == "constant" else _OPERATION
            cost = _CALL if math_library.is_call(expression.op) else cost
            cost = _GATHERED_LANE * lanes if expression.op == "gather" else cost
            terms.append(_Term(term_axes, cost, 0.0, vector in varies))
        else:
            operand = nest.operands[expression.payload]
            stride = operand.strides[vector]
            cost = _LOAD if stride in (0, 1) else (2 * _LOAD + 1 if stride in (-1, 2) else _GATHERED_LANE * lanes)
            cost += _CROSSING * _crossings(nest, operand, lanes, machine) if stride == 1 else 0.0
            short = math.prod(nest.sizes[d] for d in reduction) <= _WINDOW
            windows = tuple(_windows(nest, operand.strides, axes, vector, sorted(reduction))) if short else ()
            slides = () if stride else tuple(_windows(nest, operand.strides, axes, vector, innermost))
            crowded = tuple(_conflicting_axes(operand, axes, vector, machine))
            run = axes.index(vector), _contiguous_vectors(nest, operand, vector, lanes)
            memory = _memory(nest, operand, machine) if stride == 1 else 0.0
            evicted = any(_is_evicted(nest, operand, d, machine) for d in innermost) and stride in (0, 1)
            foreseen = min(_STREAMS, _STREAM_BYTES // machine.vector_bytes) if memory else _STREAMS
            separate = tuple(k for k, d in enumerate(axes) if d != vector and any(_held_points(operand, d, machine)))
            terms.append(
                _Term(
                    term_axes,
                    0.0,
                    cost,
                    stride != 0,
                    windows,
                    crowded,
                    run,
                    slides,
                    memory * lanes,
                    foreseen,
                    separate if evicted else None,
                )
            )
    return terms


def _crossings(nest: KernelSpec, operand: Operand, lanes: int, machine: Machine) -> float:
    """Return the part of an operand's vectors that are in two lines, as rows begin anywhere in a line."""
    size = ELEMENT_BYTES[storage_type(operand.element)]
    rows = (stride for stride, reduces in zip(operand.strides, nest.reduction, strict=True) if reduces)
    aligned = math.gcd(machine.line, *(stride * size for stride in rows))
    return max(0, lanes * size - aligned) / machine.line


def _memory(nest: KernelSpec, operand: Operand, machine: Machine) -> float:
    """Return the cycles to read an element from memory, or 0 if it is not a stream that is read once."""
    comes = operand in streams(nest, machine) and is_read_once(nest, operand)
    return ELEMENT_BYTES[storage_type(operand.element)] / machine.memory_bytes if comes else 0.0


def _is_evicted(nest: KernelSpec, operand: Operand, loop: int, machine: Machine) -> bool:
    """Return whether the first-level cache cannot hold the operand's lines along ``loop``, as they share sets.

    The lines of panels are neighbours, which the hardware fetches in time.
    """
    most = machine.first_level // machine.line
    row = max((size for size, stride in zip(nest.sizes, operand.strides, strict=True) if stride == 1), default=1)
    is_apart = operand.strides[loop] > row
    return is_apart and any(held < min(most, nest.sizes[loop]) for held in _held_points(operand, loop, machine))


def _are_adjacent(operand: Operand, loop: int, vector: int, lanes: int) -> bool:
    return operand.strides[vector] == 1 and operand.strides[loop] == (1 if loop == vector else lanes)


def _contiguous_vectors(nest: KernelSpec, operand: Operand, vector: int, lanes: int) -> int:
    """Return the number of contiguous vectors of an operand in one step of a reduction, at most _RUN."""
    if operand.strides[vector] != 1:
        return 1
    steps = [operand.strides[d] for d, reduced in enumerate(nest.reduction) if reduced and operand.strides[d]]
    return max(1, min(_RUN, -(-nest.sizes[vector] // lanes), *(step // lanes for step in steps)))


def _conflicting_axes(
    operand: Operand, axes: Sequence[int], vector: int, machine: Machine
) -> Iterator[tuple[int, int]]:
    for axis, loop in enumerate(axes):
        for most in _held_points(operand, loop, machine) if loop != vector else ():
            yield axis, most


def _held_points(operand: Operand, loop: int, machine: Machine) -> Iterator[int]:
    """Yield the points along ``loop`` that the first-level cache can hold, if each is whole lines after the last."""
    sets = machine.first_level // (_WAYS * machine.line)
    distance, rest = divmod(operand.strides[loop] * ELEMENT_BYTES[storage_type(operand.element)], machine.line)
    if distance and not rest:
        yield _WAYS * (sets // math.gcd(sets, distance))


def _windows(
    nest: KernelSpec, strides: Sequence[int], axes: Sequence[int], vector: int, reduction: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Yield the axes of an operand that the loops ``reduction`` slide over, as (axis, step, length)."""
    for axis, loop in enumerate(axes):
        for other in reduction:
            if loop != vector and strides[other] and strides[loop] and strides[loop] % strides[other] == 0:
                yield axis, strides[loop] // strides[other], nest.sizes[other]
                break
