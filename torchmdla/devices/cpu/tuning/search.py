"""Search for the fastest schedule of a nest in a limited time, stage by stage, from the cost model's choice on.

Timings are noisy, and a machine has slow phases. So alternatives are timed in turn, in several rounds, and the least
time counts. A schedule replaces the cost model's only if it is faster twice, by more than noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec
from torchmdla.devices.cpu.schedule import (
    Schedule,
    ScheduleContext,
    complete_schedule,
    elementwise_cycles,
    parallel_order,
    vectors_by_cost,
)
from torchmdla.devices.cpu.schedule.blocking import Level, levels_by_cost
from torchmdla.devices.cpu.schedule.plan import MOST_POINTS, points
from torchmdla.devices.cpu.schedule.register_tile import reduction_order, tiles_by_cost
from torchmdla.devices.cpu.schedule.validity import find_faults
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.tuning.measuring import Bench, Kernel, are_different
from torchmdla.errors import CompileError

# The relative time that a schedule must reach to replace another: during the search, and at the end.
_BETTER = 0.985
NOISE = 0.97

# The candidates of a stage; the passes through all stages; the rounds of a first comparison, and of the final one. A
# kernel that is slower than the best by _OUT after the first round is left out.
_WIDTH = 8
_PASSES = 2
_ROUNDS = 4
_DECIDING_ROUNDS = 12
_OUT = 1.2

# The least iterations of a nest's range, for sharing among threads, if the cost model's schedule has that many.
_LEAST_TASKS = 8


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        chosen: the cost model's schedule.
        best: the fastest schedule; ``chosen`` unless another one is certainly faster.
        chosen_seconds: the seconds of a call with ``chosen``, measured in turn with ``best``.
        best_seconds: the seconds of a call with ``best``.
        tried: the number of schedules that were timed.
        finished: whether all candidates were tried.
    """

    chosen: Schedule
    best: Schedule
    chosen_seconds: float
    best_seconds: float
    tried: int
    finished: bool


class Search:
    """Search for schedules of one nest.

    Args:
        nest: the nest.
        chosen: the cost model's schedule.
        program: the program, for its target and options.
        bench: the operands and timings.
        until: the end of the time, by :func:`time.monotonic`.
        on_step: a function that is called with the number of tried schedules and the best gain so far.
    """

    def __init__(
        self,
        nest: KernelSpec,
        chosen: Schedule,
        program: Program,
        bench: Bench,
        until: float,
        on_step: Callable[[int, float], object] = lambda tried, gain: None,
    ) -> None:
        self._nest, self._program, self._bench, self._until, self._on_step = nest, program, bench, until, on_step
        self._machine = Machine.of(program.target, program.options)
        self._chosen = self._best = Kernel(nest, chosen, program)
        self._expected = bench.results(self._chosen)
        self._calls = bench.calls_in(self._chosen)
        self._seen = {chosen}
        self._gain = 1.0
        self._finished = False

    def run(self, others: Iterable[Schedule] = ()) -> SearchResult:
        self._try(others)
        for _ in range(_PASSES):
            before = self._best
            for stage in STAGES:
                self._try(stage(self._nest, self._machine, self._best.schedule))
            if self._best is before or self._is_over:
                break
        self._finished = not self._is_over
        return self._decide()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    def _try(self, schedules: Iterable[Schedule]) -> None:
        """Time the first few of the schedules that are new and valid, with the best one so far."""
        if self._is_over:
            return
        kernels = [self._best]
        for schedule in islice(filter(self._is_worth_trying, schedules), _WIDTH):
            self._seen.add(schedule)
            if (kernel := self._compile(schedule)) is not None:
                kernels.append(kernel)
            if self._is_over:
                break
        if len(kernels) == 1:
            return
        times = self._times(kernels, _ROUNDS)
        least = min(times)
        if least < _BETTER * times[0]:
            self._best = kernels[times.index(least)]
            self._gain *= times[0] / least
        self._on_step(len(self._seen), self._gain)

    def _is_worth_trying(self, schedule: Schedule) -> bool:
        chosen = self._chosen.schedule
        tasks = min(chosen.iterations, _LEAST_TASKS)
        if chosen.grain and not (schedule.grain and schedule.iterations >= tasks):
            return False
        if schedule in self._seen or points(schedule) > MOST_POINTS:
            return False
        return not any(find_faults(self._nest, schedule, self._machine))

    def _compile(self, schedule: Schedule) -> Kernel | None:
        """Return the kernel of a schedule; None if its results are wrong or it cannot be compiled."""
        try:
            kernel = Kernel(self._nest, schedule, self._program)
        except CompileError:
            return None
        return None if are_different(self._bench.results(kernel), self._expected) else kernel

    def _times(self, kernels: Sequence[Kernel], rounds: int) -> list[float]:
        """Return the least seconds of a call for each kernel. Slow ones are left out after the first round."""
        times = [float("inf")] * len(kernels)
        for round_ in range(rounds):
            order = range(len(kernels))
            for k in reversed(order) if round_ % 2 else order:
                if k and times[k] != float("inf") and times[k] > _OUT * min(times):
                    continue
                calls = self._calls if k == 0 or round_ else max(1, self._calls // 2)
                times[k] = min(times[k], self._bench.seconds(kernels[k], calls))
        return times

    def _decide(self) -> SearchResult:
        chosen, best = self._chosen, self._best
        pairs = [self._times([chosen, best], _DECIDING_ROUNDS) for _ in range(2 if best is not chosen else 1)]
        least = [min(times) for times in zip(*pairs, strict=True)]
        if best is chosen or any(faster > NOISE * slower for slower, faster in pairs):
            best, least[1:] = chosen, least[:1]
        return SearchResult(chosen.schedule, best.schedule, least[0], least[1], len(self._seen), self._finished)


# Candidates of each stage.

# The number of orders of loops for each tile. Tiles are usually measured with the best order only. A second one is
# useful if the best has blocks of a reduction.
_ORDERS_OF_A_TILE = 2

# The unroll factors of loops that reduce, and the vectors and rows of an elementwise tile.
_UNROLLS = (1, 2, 4, 8, 16)
_VECTORS = (1, 2, 4, 8)
_ROWS = (1, 2, 4, 8, 16)

Tile = tuple[int, ...]


def _change_vectors(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other vector loops, and with half of the lanes, each with its best tile."""
    for loop, lanes in vectors_by_cost(nest, machine):
        for taken in (lanes, lanes // 2):
            if taken > 1 and (loop, taken) != (best.vector, best.lanes):
                ranked = _rank_tiles(nest, machine, loop, taken)
                yield from _use_tiles(_context(nest, machine, best), loop, taken, ranked[:1])


def _change_tiles(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other tiles and the same vector loop."""
    ranked = _rank_tiles(nest, machine, best.vector, best.lanes)
    yield from _use_tiles(_context(nest, machine, best), best.vector, best.lanes, ranked)


def _change_orders(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield schedules with other orders and blocks around the same tile."""
    known = dict(_rank_tiles(nest, machine, best.vector, best.lanes))
    cycles = known.get(best.tiles, min(known.values(), default=0.0))
    for levels in _levels(nest, machine, best.vector, best.tiles):
        yield replace(_complete(nest, machine, best, levels, cycles), unroll=best.unroll)


def _change_unrolling(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
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


def _change_prefetch(nest: KernelSpec, machine: Machine, best: Schedule) -> Iterator[Schedule]:
    """Yield the schedule without its prefetch, or with one if it does not have any."""
    if best.prefetch is not None:
        yield replace(best, prefetch=None)
        return
    cycles = _rank_tiles(nest, machine, best.vector, best.lanes)[0][1]
    yield replace(best, prefetch=_complete(nest, machine, best, best.levels, cycles).prefetch)


# The stages, in the order in which they are tried.
STAGES: Sequence[Callable[[KernelSpec, Machine, Schedule], Iterator[Schedule]]] = (
    _change_vectors,
    _change_tiles,
    _change_orders,
    _change_unrolling,
    _change_prefetch,
)


@lru_cache(maxsize=256)
def _rank_tiles(nest: KernelSpec, machine: Machine, vector: int, lanes: int) -> Sequence[tuple[Tile, float]]:
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


def _use_tiles(
    context: ScheduleContext, vector: int, lanes: int, tiles: Sequence[tuple[Tile, float]]
) -> Iterator[Schedule]:
    for tile, cycles in tiles:
        for levels in _levels(context.nest, context.machine, vector, tile)[:_ORDERS_OF_A_TILE]:
            yield complete_schedule(context, vector, lanes, tile, levels, cycles)


@lru_cache(maxsize=4096)
def _levels(nest: KernelSpec, machine: Machine, vector: int, tile: Tile) -> Sequence[tuple[Level, ...]]:
    order, reduction = parallel_order(nest, vector, machine), reduction_order(nest, vector)
    return levels_by_cost(nest, machine, order, reduction, tile)


def _complete(nest: KernelSpec, machine: Machine, best: Schedule, levels: tuple[Level, ...], cycles: float) -> Schedule:
    context = replace(_context(nest, machine, best), matrix=best.matrix)
    return complete_schedule(context, best.vector, best.lanes, best.tiles, levels, cycles)


def _context(nest: KernelSpec, machine: Machine, best: Schedule) -> ScheduleContext:
    return ScheduleContext(nest, machine, ahead=best.ahead)
