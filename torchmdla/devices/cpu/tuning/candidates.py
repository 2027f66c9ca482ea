"""Candidate schedules of a nest: neighbours of a given schedule.

Each stage changes one kind of decision, best first by the cost model. Candidates may be invalid;
:func:`torchmdla.devices.cpu.schedule.validity.find_faults` detects that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from torchmdla.devices.cpu.kernel_spec import KernelSpec
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.schedule import (
    Schedule,
    ScheduleContext,
    complete_schedule,
    elementwise_cycles,
    parallel_order,
    vectors_by_cost,
)
from torchmdla.devices.cpu.schedule.blocking import Level, levels_by_cost
from torchmdla.devices.cpu.schedule.register_tile import reduction_order, tiles_by_cost

Stage = Callable[[KernelSpec, Machine, Schedule], Iterator[Schedule]]

# The number of orders of loops for each tile. Tiles are usually measured with the best order only. A second one is
# useful if the best has blocks of a reduction.
_ORDERS_OF_A_TILE = 2

# The unroll factors of loops that reduce, and the vectors and rows of an elementwise tile.
_UNROLLS = (1, 2, 4, 8, 16)
_VECTORS = (1, 2, 4, 8)
_ROWS = (1, 2, 4, 8, 16)

Tile = tuple[int, ...]


def vectors(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other vector loops, and with half of the lanes, each with its best tile."""
    for loop, lanes in vectors_by_cost(nest, machine):
        for taken in (lanes, lanes // 2):
            if taken > 1 and (loop, taken) != (best.vector, best.lanes):
                yield from _with_tiles(nest, machine, best, loop, taken, ranked_tiles(nest, machine, loop, taken)[:1])


def tiles(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other tiles and the same vector loop."""
    ranked = ranked_tiles(nest, machine, best.vector, best.lanes)
    yield from _with_tiles(nest, machine, best, best.vector, best.lanes, ranked)


def orders(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other orders and blocks around the same tile."""
    known = dict(ranked_tiles(nest, machine, best.vector, best.lanes))
    cycles = known.get(best.tiles, min(known.values(), default=0.0))
    for levels in _levels(nest, machine, best.vector, best.tiles):
        schedule = _complete(nest, machine, best, best.vector, best.lanes, best.tiles, levels, cycles)
        yield replace(schedule, unroll=best.unroll)


def unrolling(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other unroll factors of loops that reduce, and with other orders of these loops."""
    for loop in reversed(best.reduction):
        steps = -(-nest.sizes[loop] // best.tiles[loop])
        for times in dict.fromkeys((*_UNROLLS, *([steps] if steps <= max(_UNROLLS) else []))):
            if times <= steps and times != best.unroll[loop]:
                yield replace(best, unroll=tuple(times if d == loop else u for d, u in enumerate(best.unroll)))
    for k in range(len(best.reduction) - 1):
        order = list(best.reduction)
        order[k], order[k + 1] = order[k + 1], order[k]
        yield replace(best, reduction=tuple(order))


def prefetching(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield the schedule without its prefetch, or with one if it does not have any."""
    if best.prefetch is not None:
        yield replace(best, prefetch=None)
        return
    cycles = ranked_tiles(nest, machine, best.vector, best.lanes)[0][1]
    schedule = _complete(nest, machine, best, best.vector, best.lanes, best.tiles, best.levels, cycles)
    yield replace(best, prefetch=schedule.prefetch)


# The stages, in the order in which they are tried.
STAGES: Sequence[Stage] = (vectors, tiles, orders, unrolling, prefetching)


@lru_cache(maxsize=256)
def ranked_tiles(nest: KernelSpec, machine: Machine, vector: int, lanes: int) -> Sequence[tuple[Tile, float]]:
    """Return tiles, and the cycles of the whole nest with each, best first."""
    if vector < 0:
        return [((1,) * len(nest.sizes), elementwise_cycles(nest, machine, vector, lanes))]
    if any(nest.reduction):
        return list(tiles_by_cost(nest, machine, vector, lanes))
    cycles = elementwise_cycles(nest, machine, vector, lanes)
    return [(tile, cycles) for tile in dict.fromkeys(_elementwise_tiles(nest, vector, lanes))]


def _elementwise_tiles(nest: KernelSpec, vector: int, lanes: int) -> Iterator[Tile]:
    """Yield tiles of some vectors, and of rows if another loop is contiguous in an operand."""
    others = [d for d in range(len(nest.sizes)) if d != vector and any(o.strides[d] in (0, 1) for o in nest.operands)]
    for count in _VECTORS:
        if (count - 1) * lanes >= nest.sizes[vector]:
            break
        for loop in (vector, *others):
            for rows in _ROWS if loop != vector else (1,):
                if rows <= nest.sizes[loop] and rows * count <= max(_ROWS):
                    points = {loop: rows, vector: count * lanes}
                    yield tuple(points.get(d, 1) for d in range(len(nest.sizes)))


def _with_tiles(
    nest: KernelSpec, machine: Machine, best: Schedule, vector: int, lanes: int, tiles: Sequence[tuple[Tile, float]]
) -> Iterator[Schedule]:
    for tile, cycles in tiles:
        for levels in _levels(nest, machine, vector, tile)[:_ORDERS_OF_A_TILE]:
            yield _complete(nest, machine, best, vector, lanes, tile, levels, cycles)


@lru_cache(maxsize=4096)
def _levels(nest: KernelSpec, machine: Machine, vector: int, tile: Tile) -> Sequence[tuple[Level, ...]]:
    order, reduction = parallel_order(nest, vector, machine), reduction_order(nest, vector)
    return levels_by_cost(nest, machine, order, reduction, tile)


def _complete(
    nest: KernelSpec,
    machine: Machine,
    best: Schedule,
    vector: int,
    lanes: int,
    tile: Tile,
    levels: tuple[Level, ...],
    cycles: float,
) -> Schedule:
    return complete_schedule(ScheduleContext(nest, machine, ahead=best.ahead), vector, lanes, tile, levels, cycles)
