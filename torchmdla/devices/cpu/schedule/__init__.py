"""Schedules of nests: loop order, register tile, vector loop, and the loops that threads share.

A schedule is data; it never changes the result. ``kernels`` generates code from a nest and its schedule. The schedule
of a dynamic nest is optimised for typical sizes and valid for all sizes. It never assumes that a number divides a
dynamic size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torchmdla.compiler.sizes import Size, at
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.expressions import Expression, contents
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelSpec, Operand, specialise
from torchmdla.devices.cpu.schedule.blocking import (
    Level,
    Prefetch,
    choose_levels,
    choose_prefetch,
    idle_cycles,
    miss_cycles,
)
from torchmdla.devices.cpu.schedule.dataflow import serial_loops, varying_loops
from torchmdla.devices.cpu.schedule.matrix_tile import MatrixTile, best_matrix_blocks, matrix_reduction
from torchmdla.devices.cpu.schedule.partition import join_cycles, largest_share
from torchmdla.devices.cpu.schedule.register_tile import UNROLLED_WINDOW, choose_tile, reduction_order, tiles_by_cost
from torchmdla.devices.cpu.schedule.streams import streams
from torchmdla.devices.cpu.target import math_library
from torchmdla.devices.cpu.target.machine import Machine

# Ops that combine a reduction's partial results in any order, with their neutral elements.
NEUTRAL = {
    "arith.addf": "-0.0",
    "arith.addi": "0",
    "arith.mulf": "1.0",
    "arith.muli": "1",
    "arith.maximumf": "-inf",
    "arith.maxnumf": "-inf",
    "arith.minimumf": "inf",
    "arith.maxsi": "min",
    "arith.minsi": "max",
    "arith.andi": "-1",
    "arith.ori": "0",
    "arith.xori": "0",
}

# Integer division traps on values in masked lanes.
_TRAPPING = frozenset(
    f"arith.{name}" for name in ("divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "ceildivui")
)

# Rough costs in cycles, to choose between schedules and to size tasks.
_CALL_COST = 20.0
_GATHER_LANE_COST = 0.8
_SCATTER_LANE_COST = 1.2
_BROADCAST_COST = 0.3
_SHUFFLED_COST = 2.5

# The least cycles of a task of a nest that one or two threads share, and of one that more threads share.
_TASK_COST = 40_000.0
_SMALL_TASK_COST = 1_000.0

# The cycles to find the place of a block in a range of several loops, for each loop but the outermost.
_PLACE_COST = 20.0

# The cost of a half vector relative to a full vector that is computed in halves. Two half vectors take slightly longer.
_HALF = 0.52

# Strides between lanes for which whole vectors are read and shuffled.
_SHUFFLED = (-1, 2)

# The number of instructions from which dependences, not memory, limit a body's speed.
_LONG_BODY = 16
BYTE_COST = 1 / 16

# The vectors of an elementwise tile, by the fewest instructions of the body. Longer chains of dependent instructions
# need more vectors to overlap. The last column is for 16 registers, which fewer vectors fill.
_VECTORS_OF_TILE = ((48, 8, 6), (_LONG_BODY, 6, 4), (0, 2, 2))
_MANY_REGISTERS = 32

# The most vectors of a tile along a loop of unknown size. A remainder of vectors is computed one by one.
_MOST_UNKNOWN_VECTORS = 4

# The register tiles for which the levels that threads share are compared, if more than this part of the arithmetic's
# time is lost to misses and to waiting.
_SHARED_TILES = 6
_MOST_LOST = 0.05

# The blocks of a range that are enough for one and two threads, wherever their tasks end.
_ENOUGH_BLOCKS = 64

# The tiles in a block of a scatter that one thread computes.
_SCATTER_BLOCK = 4

# The bytes of a page, and the number of pages in the second-level TLB. It has 2048 (Intel) to 4096 entries (Zen 5),
# 3072 on Zen 4.
_PAGE, _PAGES = 4096, 3072

# The limit on points of the register tile times unrolled steps, for a loop that is partly unrolled. The most
# instructions of a body whose loops are unrolled.
_UNROLLED_LOOP = 64
_MOST_UNROLLED = 24

# In dynamic nests, blocks of a reduction are multiples of _BLOCK_STEPS. At least _LEAST_ROWS iterations of a parallel
# loop share the data of such a block.
_BLOCK_STEPS = 16
_LEAST_ROWS = 64

# Loops whose size is known only at run time. Static nests do not have any.
Unknown = frozenset[int]
_NONE: Unknown = frozenset()


@dataclass(frozen=True)
class Fetch:
    """Prefetch by a kernel, wherever it accesses ``operand``.

    Attributes:
        operand: the number of the operand.
        distance: the distance of the prefetched address from the accessed one, in bytes.
        beside: the number of another buffer, which is written next. Then the same offset in that buffer is prefetched.
            Pointers to such buffers are the last arguments of the kernel.
    """

    operand: int
    distance: int | Size = 0
    beside: int | None = None


Ahead = tuple[Fetch, ...]

# For each loop of a range of blocks, its iterations and the iterations per block.
Blocks = Sequence[tuple[int | Size, int]]


@dataclass(frozen=True)
class Symbols:
    """Symbols of a module. Static programs do not have any.

    Attributes:
        count: the number of the program's symbols.
        typical: values for which schedules are chosen. The program's symbols come first, then the symbols for the sizes
            of last tiles.
    """

    count: int = 0
    typical: tuple[int, ...] = ()

    @property
    def is_used(self) -> bool:
        """Return whether the program is dynamic."""
        return self.count > 0


def count(blocks: Blocks, typical: Sequence[int] = ()) -> int:
    """Return the number of blocks of all loops together, where the symbols have the values ``typical``."""
    return math.prod(-(-at(size, typical) // step) for size, step in blocks)


@dataclass(frozen=True)
class Schedule:
    """Schedule of a nest.

    Attributes:
        levels: the loops around the register tile, outermost first. The last level of a parallel loop steps by its
            tile. A level of a loop that reduces is a block. Between blocks, partial results are in a scratch buffer. A
            reduction across lanes does not have blocks.
        reduction: the loops that reduce inside the tile, outermost first.
        tiles: the number of iterations of each loop that are computed at once in registers.
        unroll: the unroll factor of each loop that reduces inside the tile.
        vector: the loop across vector lanes; -1 if the code is scalar. Its tile is a multiple of ``lanes``. Its last
            vector is masked.
        lanes: the number of vector lanes.
        ranged: the number of leading levels, all parallel, that are the kernel's range.
        iterations: the number of iterations of that range. For a dynamic nest it is for typical sizes; see
            :func:`ranges`.
        grain: the number of iterations of a task; 0 if the nest is not worth sharing between threads.
        prefetch: the data that tiles prefetch for later tiles.
        ahead: the data that the kernel prefetches for later kernels.
        matrix: the tile of sums of the matrix unit, if it computes the nest. Then the register tile is a block of such
            tiles.
    """

    levels: tuple[Level, ...]
    reduction: tuple[int, ...]
    tiles: tuple[int, ...]
    unroll: tuple[int, ...]
    vector: int
    lanes: int
    ranged: int
    iterations: int
    grain: int
    prefetch: Prefetch | None = None
    ahead: Ahead = ()
    matrix: MatrixTile | None = None


@lru_cache(maxsize=4096)
def choose_schedule(nest: AnyNest, machine: Machine, typical: tuple[int, ...] = (), ahead: Ahead = ()) -> Schedule:
    """Return a schedule for ``nest``, by a simple cost model.

    ``typical`` are common values of the symbols of a dynamic nest. ``ahead`` is the data that the kernel prefetches.
    """
    known, unknown = assume_typical(nest, typical)
    loops = _choose_loops(known, machine, unknown)
    levels = _bound_scratch(nest, known, loops.levels, unknown)
    context = ScheduleContext(nest, machine, typical, ahead, loops.matrix)
    return complete_schedule(context, loops.vector, loops.lanes, loops.tiles, levels, loops.cycles)


def estimate_cycles(nest: AnyNest, machine: Machine, typical: tuple[int, ...] = ()) -> float:
    """Return the cycles that ``nest`` takes by the cost model, with repeated cache misses."""
    known, unknown = assume_typical(nest, typical)
    loops = _choose_loops(known, machine, unknown)
    if any(known.reduction):
        return loops.cycles + miss_cycles(known, machine, loops.levels)
    return max(loops.cycles, _bytes(known) * BYTE_COST)


@dataclass(frozen=True)
class _Loops:
    """Loops of a schedule: its fields of these names, and the cycles of the nest's arithmetic."""

    vector: int
    lanes: int
    tiles: tuple[int, ...]
    levels: tuple[Level, ...]
    cycles: float
    matrix: MatrixTile | None = None


@lru_cache(maxsize=4096)
def _choose_loops(nest: KernelSpec, machine: Machine, unknown: Unknown) -> _Loops:
    vector, lanes = _choose_vector(nest, machine, unknown)
    reduction, order = reduction_order(nest, vector), parallel_order(nest, vector, machine)
    if reduction:
        tiles, cycles = choose_tile(nest, machine, vector, lanes, unknown)
        by_unit = _choose_matrix_loops(nest, machine, unknown)
        if by_unit is not None and by_unit.cycles < cycles:
            return by_unit
        levels = choose_levels(nest, machine, order, reduction, tiles, cycles)
        lost = _lost_cycles(nest, machine, levels, cycles)
        if machine.threads > 1 and not unknown and lost > _MOST_LOST * cycles and is_worth_sharing(machine, cycles):
            # The levels that threads share limit the tile, and the other way round.
            for others, time in itertools.islice(tiles_by_cost(nest, machine, vector, lanes), _SHARED_TILES):
                around = choose_levels(nest, machine, order, reduction, others, time)
                more = _lost_cycles(nest, machine, around, time)
                if time + more < cycles + lost:
                    tiles, cycles, levels, lost = others, time, around, more
        return _Loops(vector, lanes, tiles, levels, cycles)
    tiles = _tile_elementwise(nest, machine, vector, lanes, unknown)
    if nest.place:
        levels = _scatter_levels(nest, vector, tiles)
    else:
        levels = tuple(Level(loop, tiles[loop]) for loop in _order_for_tlb(nest, vector, order))
    return _Loops(vector, lanes, tiles, levels, elementwise_cycles(nest, machine, vector, lanes))


def _choose_matrix_loops(nest: KernelSpec, machine: Machine, unknown: Unknown) -> _Loops | None:
    """Return the loops of a schedule for the matrix unit, or None if it cannot compute the nest."""
    candidates = []
    for block in best_matrix_blocks(nest, machine, unknown):
        order = choose_levels(
            nest, machine, parallel_order(nest, block.vector, machine), (), block.points, block.cycles
        )
        for levels in block.orders(nest, order):
            loops = _Loops(block.vector, block.lanes, block.points, levels, block.cycles, block.tile)
            candidates.append((block.cycles + miss_cycles(nest, machine, levels), loops))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _lost_cycles(nest: KernelSpec, machine: Machine, levels: Sequence[Level], cycles: float) -> float:
    """Return the cycles for repeated cache misses, and for threads that wait for the busiest one."""
    return miss_cycles(nest, machine, levels) + idle_cycles(nest, machine, levels, cycles)


@dataclass(frozen=True)
class ScheduleContext:
    """Context of a schedule: the arguments of :func:`choose_schedule`, and the matrix unit's tile if that is used."""

    nest: AnyNest
    machine: Machine
    typical: tuple[int, ...] = ()
    ahead: Ahead = ()
    matrix: MatrixTile | None = None


def complete_schedule(
    context: ScheduleContext, vector: int, lanes: int, tiles: tuple[int, ...], levels: tuple[Level, ...], cycles: float
) -> Schedule:
    """Return the schedule with the given tiles and levels. The other decisions follow from them.

    ``cycles`` is the time of the nest's arithmetic.
    """
    nest, (known, unknown) = context.nest, assume_typical(context.nest, context.typical)
    cycles = max(cycles, _bytes(known) * BYTE_COST)
    ranged, iterations = _choose_range(known, levels, cycles, context.machine.threads)
    is_dynamic = any(isinstance(nest.sizes[level.loop], Size) for level in levels[:ranged])
    grain = choose_grain(context.machine, iterations, cycles, is_dynamic)
    if not grain:
        # Loops inside the kernel cost less than levels of the range, and values that outer loops determine stay
        # hoisted.
        ranged, iterations = next(_ranges(known, levels), (0, 1))
    if (matrix := context.matrix) is not None:
        reduction = matrix_reduction(known, vector, matrix)
        once = (1,) * len(nest.sizes)
        return Schedule(
            levels, reduction, tiles, once, vector, lanes, ranged, iterations, grain, ahead=context.ahead, matrix=matrix
        )
    reduction = reduction_order(known, vector)
    prefetch = choose_prefetch(nest, known, context.machine, levels) if reduction else None
    # Prefetches of a whole row would be at one place.
    is_spread = bool(context.ahead) or (prefetch is not None and prefetch.distance > 0)
    whole = _UNROLLED_LOOP if is_spread else UNROLLED_WINDOW
    unroll = _choose_unroll(known, reduction, tiles, lanes, unknown, whole)
    return Schedule(levels, reduction, tiles, unroll, vector, lanes, ranged, iterations, grain, prefetch, context.ahead)


def assume_typical(nest: AnyNest, typical: Sequence[int]) -> tuple[KernelSpec, Unknown]:
    """Return the nest at typical sizes, which are replaced by 1 where they are 0, and the loops of dynamic size."""
    unknown = frozenset(d for d, size in enumerate(nest.sizes) if isinstance(size, Size))
    known = specialise(nest, typical)
    return replace(known, sizes=tuple(max(1, s) if d in unknown else s for d, s in enumerate(known.sizes))), unknown


def ranges(nest: AnyNest, schedule: Schedule) -> Blocks:
    """Return the sizes and steps of the levels in a kernel's range.

    The range has the product of ``ceil(size / step)`` iterations.
    """
    return [(nest.sizes[level.loop], level.step) for level in schedule.levels[: schedule.ranged]]


def scratch_extents(nest: AnyNest, schedule: Schedule) -> dict[int, int]:
    """Return the iterations of each parallel loop inside the blocks of the reduction.

    The result is empty if the schedule does not have such blocks.
    """
    first = next((k for k, level in enumerate(schedule.levels) if nest.reduction[level.loop]), None)
    if first is None:
        return {}
    outside = {level.loop: level.step for level in schedule.levels[:first]}
    inside = dict.fromkeys(level.loop for level in schedule.levels[first:] if not nest.reduction[level.loop])
    extents: dict[int, int] = {}
    for loop in inside:
        extent = outside.get(loop, nest.sizes[loop])
        assert isinstance(extent, int), "a dynamic loop inside blocks of a reduction is itself in blocks"
        extents[loop] = extent
    extents.update({d: tile for d, tile in enumerate(schedule.tiles) if d not in extents and not nest.reduction[d]})
    if schedule.vector >= 0:
        extents[schedule.vector] = -(-extents[schedule.vector] // schedule.lanes) * schedule.lanes
    return extents


def scratch_elements(nest: AnyNest, schedule: Schedule) -> int:
    """Return the number of elements in a buffer of partial results."""
    return math.prod(scratch_extents(nest, schedule).values())


def is_reorderable(nest: AnyNest) -> bool:
    """Return whether iterations may run in any order.

    Then the value of each output is an op that combines the accumulator with a new value.
    """
    body = contents((*nest.values, *nest.checks))
    for position, value in enumerate(nest.values):
        old = [operand for operand in value.operands if operand.op == "accumulator" and operand.payload == position]
        if value.op not in NEUTRAL or len(old) != 1:
            return False
        if body.users(old[0]) != [value] or body.users(value) or value in nest.checks:
            return False
    return True


def vectors_by_cost(nest: KernelSpec, machine: Machine) -> list[tuple[int, int]]:
    """Return the loops of a static nest that can be vectorised, with their lanes.

    The least cost per element is first.
    """
    loops = (loop for loop in range(len(nest.sizes)) if may_vectorise(nest, loop))
    pairs = [(loop, _lanes(nest, machine, loop, _NONE)[0]) for loop in loops]
    return sorted((p for p in pairs if p[1] > 1), key=lambda pair: _element_cost(nest, machine, *pair))


def _choose_vector(nest: KernelSpec, machine: Machine, unknown: Unknown) -> tuple[int, int]:
    """Return the vector loop and its lanes with the least cost per element; ``(-1, 1)`` if scalars are cheapest."""
    best = (_element_cost(nest, machine, -1, 1, unknown), -1, 1)
    for loop in (loop for loop in range(len(nest.sizes)) if may_vectorise(nest, loop)):
        for lanes in (lanes for lanes in _lanes(nest, machine, loop, unknown) if lanes > 1):
            cost = _element_cost(nest, machine, loop, lanes, unknown)
            if cost < best[0] or (cost == best[0] and best[1] >= 0 and nest.sizes[loop] > nest.sizes[best[1]]):
                best = (cost, loop, lanes)
    return best[1], best[2]


def _lanes(nest: KernelSpec, machine: Machine, loop: int, unknown: Unknown) -> Sequence[int]:
    """Return the possible numbers of lanes across ``loop``.

    They are limited by the widest type that varies with the loop and by its iterations. Half of the full vector is
    included where it is as fast, since fewer of its lanes may be empty.
    """
    whole = _full_lanes(nest, machine, loop)
    if loop in unknown:
        return (whole,)
    lanes = min(whole, 1 << (nest.sizes[loop] - 1).bit_length())
    return (lanes, lanes // 2) if machine.splits and lanes == whole else (lanes,)


def _full_lanes(nest: KernelSpec, machine: Machine, loop: int) -> int:
    """Return the lanes of the widest vector, of the widest type that varies with ``loop``."""
    types = [o.element for o in nest.operands if o.strides[loop] != 0]
    types += [o.element for o in nest.outputs if any(nest.reduction)]
    types += [e.type for e in _computed_along(nest, loop)]
    widths = [ELEMENT_BYTES[storage_type(t)] for t in types]
    return machine.vector_bytes // max(widths, default=1)


def may_vectorise(nest: AnyNest, loop: int) -> bool:
    """Return whether a loop can be vectorised.

    Its iterations must be independent of order, and must not trap on values in masked lanes.
    """
    if loop in serial_loops(nest) or any(e.op in _TRAPPING for e in _computed_along(nest, loop)):
        return False
    return not nest.reduction[loop] or is_reorderable(nest)


def _computed_along(nest: AnyNest, loop: int) -> Iterator[Expression]:
    """Yield the expressions, including the epilogue's, that vary with a loop."""
    varying = varying_loops(nest)
    return (expression for expression in nest.all_computed if loop in varying[expression])


def _element_cost(nest: KernelSpec, machine: Machine, loop: int, lanes: int, unknown: Unknown = _NONE) -> float:
    """Return the cycles per innermost iteration if ``loop`` is across ``lanes`` lanes (-1: scalars)."""
    repeats = math.prod(size for size, reduced in zip(nest.sizes, nest.reduction, strict=True) if reduced)
    is_half = machine.splits and 1 < lanes < _full_lanes(nest, machine, loop)
    vector = _HALF if is_half else 1.0
    cost = sum(_access_cost(o.strides[loop] if loop >= 0 else 1, lanes, _GATHER_LANE_COST, vector) for o in nest.inputs)
    for output in nest.outputs:
        stride = output.strides[loop] if loop >= 0 else 1
        cost += _access_cost(stride, lanes, _SCATTER_LANE_COST, vector) / repeats
    for expression in nest.body:
        cost += _instruction_cost(expression, machine, lanes, vector)
    if loop < 0:
        return cost
    size = nest.sizes[loop]
    return cost * (size / lanes + 0.5 if loop in unknown else math.ceil(size / lanes)) / size


def _access_cost(stride: int, lanes: int, lane_cost: float, vector: float) -> float:
    if stride == 0:
        return _BROADCAST_COST
    if stride == 1:
        return vector
    return _SHUFFLED_COST if stride in _SHUFFLED else lane_cost * lanes


def _instruction_cost(expression: Expression, machine: Machine, lanes: int, vector: float) -> float:
    if expression.op == "constant":
        return 0.0
    if expression.op == "gather":
        return 1.0 + _GATHER_LANE_COST * lanes
    if math_library.is_call(expression.op):
        known = math_library.vector_function(expression.op, expression.type, lanes, machine.called_vector_bytes)
        return _CALL_COST if known or lanes == 1 else _CALL_COST * lanes
    return 0.5 * vector


def _factor(size: int, limit: int) -> int:
    """Return a tile of at most ``limit`` that leaves a small remainder or none."""
    for tile in range(limit, limit // 2, -1):
        if size % tile == 0:
            return tile
    return min(limit, size)


def _tile_elementwise(nest: KernelSpec, machine: Machine, vector: int, lanes: int, unknown: Unknown) -> tuple[int, ...]:
    """Return the tile of an elementwise nest: a few vectors.

    It is one vector where functions are called, and more where instructions form long dependence chains. If another
    loop is contiguous in some operand (a transpose), a block of that loop uses whole cache lines.
    """
    tiles = [1] * len(nest.sizes)
    if vector < 0:
        return tuple(tiles)
    vectors = math.ceil(nest.sizes[vector] / lanes)
    most = _most_vectors(nest, machine, vector in unknown)
    even = math.ceil(vectors / math.ceil(vectors / most))
    tiles[vector] = lanes * (min(most, vectors) if vector in unknown else even)
    for loop in range(len(nest.sizes) if not nest.place else 0):
        if loop != vector and any(o.strides[loop] == 1 and o.strides[vector] > 1 for o in nest.operands):
            tiles[vector], tiles[loop] = lanes, _rows_of_block(nest.sizes[loop], lanes, loop in unknown)
            break
    return tuple(tiles)


def _most_vectors(nest: KernelSpec, machine: Machine, is_unknown: bool) -> int:
    """Return the most vectors of a tile of an elementwise nest."""
    if any(math_library.is_call(e.op) for e in nest.body):
        return 1
    many, few = next(vectors for least, *vectors in _VECTORS_OF_TILE if len(nest.body) >= least)
    most = many if machine.registers >= _MANY_REGISTERS else few
    return min(most, _MOST_UNKNOWN_VECTORS) if is_unknown else most


def _scatter_levels(nest: KernelSpec, vector: int, tiles: tuple[int, ...]) -> tuple[Level, ...]:
    """Return the levels of a scatter: serial loops in order, outside of all others.

    Threads share blocks of the vector loop, if it is long enough. Each block goes through all serial iterations.
    """
    serial = serial_loops(nest)
    loops = [*sorted(serial), *sorted(set(range(len(nest.sizes))) - serial, key=lambda loop: (loop == vector, loop))]
    blocks: list[Level] = []
    if vector >= 0 and nest.sizes[vector] > (block := _SCATTER_BLOCK * tiles[vector]):
        blocks = [Level(vector, block)]
    return (*blocks, *(Level(loop, tiles[loop]) for loop in loops))


def _order_for_tlb(nest: KernelSpec, vector: int, order: Sequence[int]) -> list[int]:
    """Return the order of the loops of an elementwise nest, chosen by the number of memory pages.

    If all inputs are transposed, and the innermost loop touches more pages than the TLB holds, the input's contiguous
    loop becomes innermost. This requires that the outputs then touch fewer pages.
    """
    inside = {loop for o in nest.inputs for loop, stride in enumerate(o.strides) if stride == 1}
    if len(inside) != 1 or vector < 0 or vector in inside:
        return list(order)
    (turned,) = inside
    read, written = _pages(nest, nest.inputs, vector), _pages(nest, nest.outputs, turned)
    return sorted(order, key=lambda loop: loop == turned) if read > max(_PAGES, written) else list(order)


def _pages(nest: KernelSpec, operands: Sequence[Operand], loop: int) -> float:
    """Return the number of pages that a loop touches."""
    spans = (o.strides[loop] * ELEMENT_BYTES[storage_type(o.element)] / _PAGE for o in operands)
    return sum(nest.sizes[loop] * min(1.0, span) for span in spans)


def _rows_of_block(size: int, lanes: int, is_unknown: bool) -> int:
    """Return the rows of a block that is transposed.

    Square blocks read whole cache lines, each once. Blocks of dynamic sizes are smaller, so that the remainder is
    smaller.
    """
    if is_unknown:
        return min(size, 8)
    return lanes if size >= lanes else _factor(size, 8)


def _choose_unroll(
    nest: KernelSpec, reduction: Sequence[int], tiles: Sequence[int], lanes: int, unknown: Unknown, whole: int
) -> tuple[int, ...]:
    """Return the unroll factor of each loop, chosen from the innermost loop outwards while the code stays short.

    A convolution's window is unrolled completely (``whole`` points at most), so that neighbouring points share loads. A
    long loop is unrolled a few times. LLVM would reorder several steps of a long body until registers are spilled.
    """
    unroll = [1] * len(nest.sizes)
    if sum(e.op != "constant" for e in nest.body) > _MOST_UNROLLED:
        return tuple(unroll)
    points = math.prod(tiles) // lanes * max(1, len(nest.body) // _LONG_BODY)
    for loop in reversed(reduction):
        if loop in unknown and tiles[loop] > 1:
            break
        steps = nest.sizes[loop] // tiles[loop]
        if steps > 1 and steps * points <= whole and loop not in unknown:
            unroll[loop] = steps
            points *= steps
            continue
        unroll[loop] = max((u for u in (1, 2, 4) if u * points <= _UNROLLED_LOOP and u <= steps), default=1)
        break
    return tuple(unroll)


def parallel_order(nest: KernelSpec, vector: int, machine: Machine) -> tuple[int, ...]:
    """Return the parallel loops by stride, the largest outermost, with the vector loop innermost.

    In a contraction, loops that index the largest operands come first. Then the operands that inner loops read
    repeatedly are small.
    """
    loops = [d for d, reduced in enumerate(nest.reduction) if not reduced]
    # For few rows, the streamed operand is not reused, wherever the rows are in the order.
    large = streams(nest, machine) or (nest.inputs if any(nest.reduction) else ())

    def rank(loop: int) -> tuple[int, bool, int, int]:
        footprint = sum(_elements(nest, o) for o in large if o.strides[loop] != 0)
        stride = max((o.strides[loop] for o in nest.outputs), default=0)
        return -footprint, loop == vector, -stride, loop

    return tuple(sorted(loops, key=rank))


def _elements(nest: KernelSpec, operand: Operand) -> int:
    return math.prod(size for size, stride in zip(nest.sizes, operand.strides, strict=True) if stride != 0)


def _bound_scratch(nest: AnyNest, known: KernelSpec, levels: tuple[Level, ...], unknown: Unknown) -> tuple[Level, ...]:
    """Return levels for which the scratch buffer of a blocked reduction has a bounded size.

    Dynamic loops inside the blocks get blocks, too. A loop that may have zero iterations is not blocked, since its last
    block stores the results.
    """
    first = next((k for k, level in enumerate(levels) if nest.reduction[level.loop]), None)
    if first is None or not unknown:
        return levels
    size = nest.sizes[levels[first].loop]
    if isinstance(size, Size):
        if any(factor < 0 for _, factor in size.terms):
            return tuple(level for level in levels if not nest.reduction[level.loop])
        step = -(-levels[first].step // _BLOCK_STEPS) * _BLOCK_STEPS
        levels = (*levels[:first], Level(levels[first].loop, step), *levels[first + 1 :])
    outside = {level.loop for level in levels[:first]}
    blocks = []
    for level in levels[first + 1 :]:
        if level.loop in unknown and level.loop not in outside:
            rows = max(known.sizes[level.loop], _LEAST_ROWS)
            blocks.append(Level(level.loop, -(-rows // level.step) * level.step))
    return (*blocks, *levels)


def is_worth_sharing(machine: Machine, cycles: float) -> bool:
    """Return whether threads gain from sharing work that takes one thread ``cycles``."""
    if machine.threads == 1:
        return cycles >= 2 * _TASK_COST
    return cycles > join_cycles(machine.threads)


def choose_grain(machine: Machine, iterations: int, cycles: float, is_dynamic: bool = False) -> int:
    """Return the number of iterations of a task; 0 if threads do not share the range.

    The iterations of the range take ``cycles`` together. The runtime does not share a range with only one task, so any
    range of dynamic size is worth sharing.
    """
    if not is_dynamic and (iterations < 2 or not is_worth_sharing(machine, cycles)):
        return 0
    grain = math.ceil((_TASK_COST if machine.threads == 1 else _SMALL_TASK_COST) * iterations / cycles)
    return max(1, grain if is_dynamic else min(grain, iterations // machine.threads))


def _choose_range(nest: KernelSpec, levels: Sequence[Level], cycles: float, threads: int) -> tuple[int, int]:
    """Return the number of leading levels that threads share, and their blocks.

    One and two threads share the fewest levels with enough blocks. More threads share the levels for which the busiest
    thread takes the least time.
    """
    candidates = list(_ranges(nest, levels)) or [(0, 1)]
    if threads == 1:
        return next((each for each in candidates if each[1] >= _ENOUGH_BLOCKS), candidates[-1])

    def time(candidate: tuple[int, int]) -> float:
        ranged, iterations = candidate
        blocks = [(nest.sizes[level.loop], level.step) for level in levels[:ranged]]
        return cycles * largest_share(blocks, 1, threads) + _PLACE_COST * (ranged - 1) * iterations / threads

    return min(candidates, key=time)


def _ranges(nest: KernelSpec, levels: Sequence[Level]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of leading levels that threads may share, each with the number of their blocks."""
    iterations, seen, serial = 1, set[int](), serial_loops(nest)
    for ranged, level in enumerate(levels, 1):
        if nest.reduction[level.loop] or level.loop in serial or level.loop in seen:
            return
        seen.add(level.loop)
        iterations *= math.ceil(nest.sizes[level.loop] / level.step)
        yield ranged, iterations


def elementwise_cycles(nest: KernelSpec, machine: Machine, vector: int, lanes: int) -> float:
    return math.prod(nest.sizes) * _element_cost(nest, machine, vector, lanes)


def _bytes(nest: KernelSpec) -> int:
    """Return the bytes of all operands."""
    return sum(_elements(nest, o) * ELEMENT_BYTES[storage_type(o.element)] for o in nest.operands)
