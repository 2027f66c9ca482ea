"""The tuner of the cpu device: measures algorithms for the contractions of a program, then schedules for its kernels,
those that take most time first.

What it finds are records (:mod:`torchmdla.compiler.records`) whose decisions are algorithms, or schedules as JSON, as
``schedule/plan.py`` writes and reads them. Runs in a process of its own: a kernel may crash, and so may a compiler.
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
from torchmdla.devices.cpu.kernel_spec import AnyNest, static
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, OutlinedRegion, TileLoop, flattened
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.schedule import Schedule, Symbols
from torchmdla.devices.cpu.schedule.plan import (
    Given,
    Plan,
    ScheduledKernel,
    given_schedule,
    kernel_name,
    plan_schedules,
    to_raw,
)
from torchmdla.devices.cpu.tuning.algorithms import tune_algorithms
from torchmdla.devices.cpu.tuning.measuring import Bench, Unmeasurable
from torchmdla.devices.cpu.tuning.search import Search
from torchmdla.devices.cpu.tuning.whole import Running, in_turn, with_records
from torchmdla.devices.cpu.work import work_of
from torchmdla.devices.device import Tell
from torchmdla.errors import CompileError

# Of a program's time: what a kernel must take to be worth measuring. Seconds for one kernel: at least, and at most.
_LEAST_SHARE = 0.004
_LEAST_SECONDS, _MOST_SECONDS = 2.0, 20.0

# What is left of the time for running the whole program: so many times what it takes to make its schedules, and the
# part that is left for kernels at least. Rounds of it, and how much faster kernels must be in it.
_COMPILES, _LEAST_PART = 8.0, 0.6

# The part of the time in which algorithms are measured, before schedules.
_ALGORITHMS_PART = 0.4
_ROUNDS = 8
_BETTER = 0.99

# Of weights, and constants: what is read from memory once a call.
_COLD = frozenset(("parameter", "packed", "global"))


@dataclass
class _Use:
    """A kernel of a program: the step that runs it, whether weights are in the caches when it does, how often it runs
    in a call, the seconds of that, and the numbers of the places in the entry."""

    kernel: ScheduledKernel
    step: LoopNest
    is_warm: bool
    loops: str
    count: int = 0
    seconds: float = 0.0
    places: list[int] = field(default_factory=list)

    def described(self) -> TunedKernel:
        name = kernel_name(self.kernel.nest, self.kernel.schedule.ahead)
        return TunedKernel(name, self.loops, self.count, self.seconds)


@dataclass(frozen=True)
class _Planned:
    """A static program, its steps, and how they are computed."""

    program: Program
    steps: LoopProgram
    plan: Plan

    @classmethod
    def of(cls, program: Program) -> _Planned:
        with new_context(), ir.Location.unknown():
            steps, _ = loop_program(program, {})
            return cls(
                program,
                steps,
                plan_schedules(steps, Machine.of(program.target, program.options), Symbols(), Given.of(program)),
            )


def tune(
    program: Program,
    places: Sequence[float],
    seconds: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    tell: Tell,
) -> Iterator[TunedKernel]:
    """As :meth:`torchmdla.devices.device.Device.tune`."""
    if program.symbols:
        raise CompileError("kernels for any sizes are left to the cost model")
    begin, compiled = time.monotonic(), _Planned.of(program)
    planned = _Planned.of(with_records(program, ()))
    now = time.monotonic()
    compiling = _COMPILES * (now - begin) / 2
    until = now + _ALGORITHMS_PART * seconds
    algorithms = yield from tune_algorithms(planned.program, planned.steps, compiling, until, known, skip, tell)
    if algorithms:
        planned = _Planned.of(with_records(program, algorithms))
    if planned.steps.contractions != compiled.steps.contractions:
        places = Running(planned.program).seconds()
    until = begin + max(seconds - compiling, _LEAST_PART * seconds)
    yield from _tune_schedules(planned, algorithms, places, until, known, skip, tell)


def _tune_schedules(
    planned: _Planned,
    algorithms: Sequence[Record],
    places: Sequence[float],
    until: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    tell: Tell,
) -> Iterator[TunedKernel]:
    """Those of a program whose contractions are computed by ``algorithms``."""
    program = planned.program
    uses = sorted(_uses(planned.steps, planned.plan, places), key=lambda use: -use.seconds)
    least = _LEAST_SHARE * sum(places)
    new: list[tuple[_Use, TunedKernel]] = []
    for use, tuned in _each(program, uses, until, least, known, skip, tell):
        yield tuned
        if tuned.record is not None and tuned.record.decisions:
            new.append((use, tuned))
    if any(tuned.record != known.get(tuned.kernel) for _, tuned in new):
        yield from _among_others(program, algorithms, new)


def _each(
    program: Program,
    uses: Sequence[_Use],
    until: float,
    least: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    tell: Tell,
) -> Iterator[tuple[_Use, TunedKernel]]:
    """Kernels measured alone, each in its part of the time that is left."""
    rest = sum(use.seconds for use in uses)
    for use in uses:
        own, left = use.described(), until - time.monotonic()
        share = left * use.seconds / rest if rest else 0.0
        rest -= use.seconds
        if own.kernel in skip:
            yield use, replace(own, reason="measuring it has ended the process")
        elif own.kernel in known and known[own.kernel].finished:
            yield use, replace(own, record=known[own.kernel])
        elif use.seconds < least:
            yield use, replace(own, reason="takes too little time")
        elif left <= 0:
            yield use, replace(own, record=known.get(own.kernel), reason="the time was over")
        else:
            end = time.monotonic() + min(left, max(_LEAST_SECONDS, min(_MOST_SECONDS, share)))
            yield use, _measured(use, program, end, known.get(own.kernel), tell)


def _among_others(
    program: Program, algorithms: Sequence[Record], found: Sequence[tuple[_Use, TunedKernel]]
) -> Iterator[TunedKernel]:
    """The kernels that have decisions of their own, without those that are no faster in the whole program."""
    made = [tuned.record for _, tuned in found if tuned.record is not None]
    programs = [Running(program), Running(with_records(program, [*algorithms, *made]))]
    before, after = in_turn(programs, _ROUNDS)
    for use, tuned in found:
        assert tuned.record is not None
        slower, faster = (sum(seconds[place] for place in use.places) for seconds in (before, after))
        if faster > _BETTER * slower:
            yield replace(tuned, record=tuned.record.without_decisions)
        else:
            yield replace(tuned, record=replace(tuned.record, gain_among_others=slower / faster))


def _uses(steps: LoopProgram, plan: Plan, places: Sequence[float]) -> list[_Use]:
    """The kernels of a static program; ``places`` are the seconds of what its entry calls, in order."""
    called = [s for s in flattened(steps.steps) if isinstance(s, LoopNest | TileLoop | OutlinedRegion)]
    if len(called) != len(places):
        raise CompileError("the times are those of another program")
    found: dict[int, _Use] = {}
    for place, (step, seconds) in enumerate(zip(called, places, strict=True)):
        # Between tiles of a chain its weights stay where they are.
        is_warm = isinstance(step, TileLoop)
        for kernel, nest, count, own in _parts(step, plan, seconds):
            use = found.setdefault(id(kernel), _Use(kernel, nest, is_warm, work_of(nest).loops))
            use.count += count
            use.seconds += own
            use.places.append(place)
    return list(found.values())


def _parts(
    step: LoopNest | TileLoop | OutlinedRegion, plan: Plan, seconds: float
) -> Iterator[tuple[ScheduledKernel, LoopNest, int, float]]:
    """What a step runs: kernels, the nests that they are of, how often, and seconds of a call. Those of a loop that
    runs nests tile by tile are its members over full tiles, by what each does."""
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


def _measured(use: _Use, program: Program, until: float, known: Record | None, tell: Tell) -> TunedKernel:
    own, nest, chosen = use.described(), static(use.kernel.nest, ()), use.kernel.schedule
    places = use.step.places[: len(nest.operands)]
    tell(own, 0, 1.0)
    try:
        cold = [k for k, (buffer, _) in enumerate(places) if buffer.kind in _COLD and not use.is_warm]
        bench = Bench(nest, cold, chosen.ahead)
        search = Search(nest, chosen, program, bench, until, lambda tried, gain: tell(own, tried, gain))
        found = search.run(_recorded(nest, chosen, known, Machine.of(program.target, program.options)))
    except (Unmeasurable, CompileError) as error:
        return replace(own, reason=str(error).partition("\n")[0])
    decisions = "" if found.best == chosen else json.dumps(to_raw(found.best))
    tried = max(found.tried, known.tried if known else 0)
    record = Record(own.kernel, own.loops, decisions, found.chosen_seconds, found.best_seconds, tried, found.finished)
    return replace(own, record=record)


def _recorded(nest: AnyNest, chosen: Schedule, known: Record | None, machine: Machine) -> list[Schedule]:
    """The schedule that an unfinished record has."""
    if known is None or not known.decisions:
        return []
    try:
        return [given_schedule(nest, chosen, json.loads(known.decisions), machine)]
    except ValueError:
        return []
