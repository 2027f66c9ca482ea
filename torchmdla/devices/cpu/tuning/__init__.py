"""Tuner of the CPU device: measures algorithms for a program's contractions, then schedules for its kernels.

Kernels that take the most time are first. The results are records (:mod:`torchmdla.compiler.records`). Their decisions
are algorithms, or schedules as JSON in the format of ``schedule/plan.py``. The tuner runs in a separate process, since
a kernel or a compiler may crash.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch_mlir import ir

from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Program
from torchmdla.compiler.records import Record, TunedKernel
from torchmdla.compiler.sizes import static as static_size
from torchmdla.devices.capabilities import Progress
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, specialise
from torchmdla.devices.cpu.ir.loop_program import (
    KernelStep,
    LoopNest,
    LoopProgram,
    TileLoop,
    flatten,
)
from torchmdla.devices.cpu.ir.work import work_of
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.schedule import Schedule, Symbols
from torchmdla.devices.cpu.schedule.plan import (
    Decisions,
    Plan,
    ScheduledKernel,
    kernel_name,
    override_schedule,
    plan_schedules,
    to_json_data,
)
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.tuning.algorithms import tune_algorithms
from torchmdla.devices.cpu.tuning.measuring import Bench, Unmeasurable
from torchmdla.devices.cpu.tuning.search import Search
from torchmdla.devices.cpu.tuning.whole import RunningProgram, measure_in_turn, with_records
from torchmdla.errors import CompileError

# The least share of a program's time for which a kernel is measured. Then the least and the most seconds for one
# kernel.
_LEAST_SHARE = 0.004
_LEAST_SECONDS, _MOST_SECONDS = 2.0, 20.0

# Limits for running the whole program. The time for kernels is reduced by this many times the compile time, but at
# least _LEAST_PART of it remains.
_COMPILES, _LEAST_PART = 8.0, 0.6

# The part of the time in which algorithms are measured, before schedules. Then the rounds of the whole program, and the
# relative time that tuned kernels must reach in it.
_ALGORITHMS_PART = 0.4
_ROUNDS = 8
_BETTER = 0.99

# Kinds of buffers for weights and constants, which are read from memory once in a call.
_COLD = frozenset(("parameter", "packed", "global"))


@dataclass
class _Use:
    """Use of a kernel in a program.

    Attributes:
        kernel: the kernel.
        step: the nest that runs it.
        is_warm: whether weights are in the caches when it runs.
        loops: the sizes of its loops, for humans.
        count: how often it runs in a call.
        seconds: the time of these runs.
        places: the positions of these runs in the entry.
    """

    kernel: ScheduledKernel
    step: LoopNest
    is_warm: bool
    loops: str
    count: int = 0
    seconds: float = 0.0
    places: list[int] = field(default_factory=list)

    def describe(self) -> TunedKernel:
        name = kernel_name(self.kernel.nest, self.kernel.schedule.ahead)
        return TunedKernel(name, self.loops, self.count, self.seconds)


@dataclass(frozen=True)
class _PlannedProgram:
    """Static program, its steps, and its plan."""

    program: Program
    steps: LoopProgram
    plan: Plan

    @classmethod
    def of(cls, program: Program) -> _PlannedProgram:
        with new_context(), ir.Location.unknown():
            steps, _ = loop_program(program, {})
            machine = Machine.of(program.target, program.options)
            return cls(program, steps, plan_schedules(steps, machine, Symbols(), Decisions.of(program)))


def tune(
    program: Program,
    places: Sequence[float],
    seconds: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    progress: Progress,
) -> Iterator[TunedKernel]:
    """Yield tuned kernels, as :meth:`torchmdla.devices.Tuning.tune` specifies."""
    if program.symbols:
        raise CompileError("kernels for any sizes are left to the cost model")
    begin, compiled = time.monotonic(), _PlannedProgram.of(program)
    planned = _PlannedProgram.of(with_records(program, ()))
    now = time.monotonic()
    compiling = _COMPILES * (now - begin) / 2
    until = now + _ALGORITHMS_PART * seconds
    algorithms = yield from tune_algorithms(planned.program, planned.steps, compiling, until, known, skip, progress)
    if algorithms:
        planned = _PlannedProgram.of(with_records(program, algorithms))
    if planned.steps.contractions != compiled.steps.contractions:
        places = RunningProgram(planned.program).seconds()
    until = begin + max(seconds - compiling, _LEAST_PART * seconds)
    yield from _tune_schedules(planned, algorithms, places, until, known, skip, progress)


def _tune_schedules(
    planned: _PlannedProgram,
    algorithms: Sequence[Record],
    places: Sequence[float],
    until: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    progress: Progress,
) -> Iterator[TunedKernel]:
    """Yield the tuned kernels of a program whose contractions use ``algorithms``."""
    program = planned.program
    uses = sorted(_uses(planned.steps, planned.plan, places), key=lambda use: -use.seconds)
    least = _LEAST_SHARE * sum(places)
    new: list[tuple[_Use, TunedKernel]] = []
    for use, tuned in _tune_kernels(program, uses, until, least, known, skip, progress):
        yield tuned
        if tuned.record is not None and tuned.record.decisions:
            new.append((use, tuned))
    if any(tuned.record != known.get(tuned.kernel) for _, tuned in new):
        yield from _confirm_in_program(program, algorithms, new)


def _tune_kernels(
    program: Program,
    uses: Sequence[_Use],
    until: float,
    least: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    progress: Progress,
) -> Iterator[tuple[_Use, TunedKernel]]:
    """Yield kernels that are measured alone, each in its share of the remaining time."""
    rest = sum(use.seconds for use in uses)
    for use in uses:
        description, left = use.describe(), until - time.monotonic()
        share = left * use.seconds / rest if rest else 0.0
        rest -= use.seconds
        if description.kernel in skip:
            yield use, replace(description, reason="measuring it has ended the process")
        elif description.kernel in known and known[description.kernel].finished:
            yield use, replace(description, record=known[description.kernel])
        elif use.seconds < least:
            yield use, replace(description, reason="takes too little time")
        elif left <= 0:
            yield use, replace(description, record=known.get(description.kernel), reason="the time was over")
        else:
            end = time.monotonic() + min(left, max(_LEAST_SECONDS, min(_MOST_SECONDS, share)))
            yield use, _measure_kernel(use, program, end, known.get(description.kernel), progress)


def _confirm_in_program(
    program: Program, algorithms: Sequence[Record], tuned_uses: Sequence[tuple[_Use, TunedKernel]]
) -> Iterator[TunedKernel]:
    """Yield the kernels with measured decisions, after a run of the whole program.

    Decisions that are not faster in the whole program are dropped.
    """
    measured_records = [tuned.record for _, tuned in tuned_uses if tuned.record is not None]
    programs = [RunningProgram(program), RunningProgram(with_records(program, [*algorithms, *measured_records]))]
    before, after = measure_in_turn(programs, _ROUNDS)
    for use, tuned in tuned_uses:
        assert tuned.record is not None
        slower, faster = (sum(seconds[place] for place in use.places) for seconds in (before, after))
        if faster > _BETTER * slower:
            yield replace(tuned, record=tuned.record.without_decisions)
        else:
            yield replace(tuned, record=replace(tuned.record, gain_among_others=slower / faster))


def _uses(steps: LoopProgram, plan: Plan, places: Sequence[float]) -> list[_Use]:
    """Return the kernels of a static program.

    ``places`` are the times in seconds of the steps that its entry runs, in order.
    """
    called = [s for s in flatten(steps.steps) if isinstance(s, KernelStep)]
    if len(called) != len(places):
        raise CompileError("the times are those of another program")
    uses: dict[int, _Use] = {}
    for place, (step, seconds) in enumerate(zip(called, places, strict=True)):
        # Weights of a tile loop stay in the caches from tile to tile.
        is_warm = isinstance(step, TileLoop)
        for kernel, nest, count, share in _parts(step, plan, seconds):
            use = uses.setdefault(id(kernel), _Use(kernel, nest, is_warm, work_of(nest).loops))
            use.count += count
            use.seconds += share
            use.places.append(place)
    return list(uses.values())


def _parts(step: KernelStep, plan: Plan, seconds: float) -> Iterator[tuple[ScheduledKernel, LoopNest, int, float]]:
    """Yield the kernels that a step runs, with their nest, their number of runs, and their seconds of a call.

    The kernels of a tile loop are those of its members over full tiles. The time is divided by the work of each member.
    """
    if isinstance(step, LoopNest):
        yield plan.kernel(step), step, 1, seconds
    elif isinstance(step, TileLoop):
        tiles = plan.tile_loops[step]
        full = tuple(choices[0] for choices in tiles.choices)
        members = [step.part(position, full) for position in range(len(step.members))]
        weights = [_weight(member) for member in members]
        count = math.prod(-(-static_size(extent) // tile) for extent, tile in zip(step.extents, step.tile, strict=True))
        for member, fetched, weight in zip(members, tiles.fetched, weights, strict=True):
            yield plan.kernel(member, fetched.ahead), member, count, seconds * weight / sum(weights)


def _weight(member: LoopNest) -> float:
    work = work_of(member)
    assert isinstance(work.flops, int) and isinstance(work.bytes, int), "a static program"
    return 1.0 + work.flops + work.bytes


def _measure_kernel(use: _Use, program: Program, until: float, known: Record | None, progress: Progress) -> TunedKernel:
    description, nest, chosen = use.describe(), specialise(use.kernel.nest, ()), use.kernel.schedule
    places = use.step.places[: len(nest.operands)]
    progress(description, 0, 1.0)
    try:
        cold = [k for k, (buffer, _) in enumerate(places) if buffer.kind in _COLD and not use.is_warm]
        bench = Bench(nest, cold, chosen.ahead)
        search = Search(nest, chosen, program, bench, until, lambda tried, gain: progress(description, tried, gain))
        result = search.run(_recorded_schedules(nest, chosen, known, Machine.of(program.target, program.options)))
    except (Unmeasurable, CompileError) as error:
        return replace(description, reason=str(error).partition("\n")[0])
    decisions = "" if result.best == chosen else json.dumps(to_json_data(result.best))
    tried = max(result.tried, known.tried if known else 0)
    seconds = result.chosen_seconds, result.best_seconds
    record = Record(description.kernel, description.loops, decisions, *seconds, tried, result.finished)
    return replace(description, record=record)


def _recorded_schedules(nest: AnyNest, chosen: Schedule, known: Record | None, machine: Machine) -> list[Schedule]:
    if known is None or not known.decisions:
        return []
    try:
        return [override_schedule(nest, chosen, json.loads(known.decisions), machine)]
    except ValueError:
        return []
