"""The fastest schedule of a nest that can be found in some time: from the cost model's choice on, stage by stage.

Timings are noisy, and a machine has slow phases. So whatever is compared is timed in turn, round by round, the least
round counts, and a schedule is taken to be faster than the cost model's only if it wins twice by more than noise.
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
from torchmdla.devices.cpu.schedule.validity import faults
from torchmdla.devices.cpu.tuning.candidates import STAGES
from torchmdla.devices.cpu.tuning.measuring import Bench, Kernel, differ
from torchmdla.errors import CompileError

# A schedule must be faster by this much to be taken: while searching, and in the end.
_BETTER = 0.985
NOISE = 0.97

# Candidates of a stage; times through all stages; rounds of a first look, and of one that decides; how much slower than
# the best after the first round is out.
_WIDTH = 8
_PASSES = 2
_ROUNDS = 4
_DECIDING_ROUNDS = 12
_OUT = 1.2

# Blocks of its range that a nest keeps for threads, if it has as many.
_LEAST_TASKS = 8


@dataclass(frozen=True)
class Found:
    """``best`` is ``chosen``, the cost model's, unless another one is faster for certain; ``tried``: how many were
    timed; ``finished``: none was left to try. Seconds are of a call with each of the two, measured in turn."""

    chosen: Schedule
    best: Schedule
    chosen_seconds: float
    best_seconds: float
    tried: int
    finished: bool


class Search:
    """Looks for schedules of one nest.

    Args:
        chosen: the cost model's.
        others: to try first, those of records say.
        until: by :func:`time.monotonic`.
        on_step: called with how many were tried and the best gain so far.
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

    def run(self, others: Iterable[Schedule] = ()) -> Found:
        self._try(others)
        for _ in range(_PASSES):
            before = self._best
            for stage in STAGES:
                self._try(stage(self._nest, self._machine, self._best.schedule))
            if self._best is before or self._is_over:
                break
        self._finished = not self._is_over
        return self._decided()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    def _try(self, schedules: Iterable[Schedule]) -> None:
        """Times the first few of the schedules that are new and valid, beside the best so far."""
        if self._is_over:
            return
        kernels = [self._best]
        for schedule in islice(filter(self._is_worth_trying, schedules), _WIDTH):
            self._seen.add(schedule)
            if (made := self._made(schedule)) is not None:
                kernels.append(made)
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
        return not any(faults(self._nest, schedule, self._machine))

    def _made(self, schedule: Schedule) -> Kernel | None:
        """Its kernel; None where that computes something else, or cannot be compiled."""
        try:
            kernel = Kernel(self._nest, schedule, self._program)
        except CompileError:
            return None
        return None if differ(self._bench.results(kernel), self._expected) else kernel

    def _times(self, kernels: Sequence[Kernel], rounds: int) -> list[float]:
        """The least seconds of a call of each. Those far behind the best are left out after the first round."""
        times = [float("inf")] * len(kernels)
        for round_ in range(rounds):
            order = range(len(kernels))
            for k in reversed(order) if round_ % 2 else order:
                if k and times[k] != float("inf") and times[k] > _OUT * min(times):
                    continue
                calls = self._calls if k == 0 or round_ else max(1, self._calls // 2)
                times[k] = min(times[k], self._bench.seconds(kernels[k], calls))
        return times

    def _decided(self) -> Found:
        chosen, best = self._chosen, self._best
        pairs = [self._times([chosen, best], _DECIDING_ROUNDS) for _ in range(2 if best is not chosen else 1)]
        least = [min(times) for times in zip(*pairs, strict=True)]
        if best is chosen or any(faster > NOISE * slower for slower, faster in pairs):
            best, least[1:] = chosen, least[:1]
        return Found(chosen.schedule, best.schedule, least[0], least[1], len(self._seen), self._finished)
