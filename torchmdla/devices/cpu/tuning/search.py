"""Search for the fastest schedule of a nest in a limited time, stage by stage, from the cost model's choice on.

Timings are noisy, and a machine has slow phases. So alternatives are timed in turn, in several rounds, and the least
time counts. A schedule replaces the cost model's only if it is faster twice, by more than noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.kernel_spec import KernelSpec
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.schedule import Schedule
from torchmdla.devices.cpu.schedule.plan import MOST_POINTS, points
from torchmdla.devices.cpu.schedule.validity import find_faults
from torchmdla.devices.cpu.tuning.candidates import STAGES
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
