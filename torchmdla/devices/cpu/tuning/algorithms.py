"""Algorithms of contractions, measured in the whole program.

The fastest algorithm of a layer depends on the data that surrounding layers leave in the caches, and on the threads.
The program is compiled once with each algorithm, which is used wherever it applies. It runs alternately with the
program that the cost model chooses. So all contractions are measured at once. Finally, the program with the best
algorithm for each contraction must be the fastest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from torch_mlir import ir

from torchmdla.compiler.mlir import new_context
from torchmdla.compiler.program import Program
from torchmdla.compiler.records import Record, TunedKernel
from torchmdla.devices.capabilities import Progress
from torchmdla.devices.cpu.ir.loop_program import Contraction, LoopProgram
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.schedule.plan import ALGORITHM
from torchmdla.devices.cpu.target.machine import ALGORITHMS, Algorithms, Machine
from torchmdla.devices.cpu.tuning.whole import RunningProgram, measure_in_turn, with_records
from torchmdla.errors import CompileError

# These are not algorithms themselves: they choose one.
_COST_MODELS = ("fast", "winograd")

# The rounds of two programs in turn. Then the relative time that an algorithm must reach, alone and in the program with
# all decisions.
_ROUNDS = 6
_BETTER = 0.97

# The time to compile and run a program with another algorithm, relative to compiling it with the cost model's choices.
_SLOWER = 2.0


@dataclass(frozen=True)
class _Trial:
    """Seconds of a contraction by the cost model's choice and by another ``algorithm``, measured alternately."""

    algorithm: str
    chosen_seconds: float
    seconds: float


def tune_algorithms(
    program: Program,
    steps: LoopProgram,
    compiling: float,
    until: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    progress: Progress,
) -> Generator[TunedKernel, None, list[Record]]:
    """Yield the records of the contractions of a static program, after measuring their algorithms.

    ``program`` does not have records, and ``steps`` is its loop program. ``compiling`` is the approximate time to
    compile it, in seconds. ``until`` is the end of the time, by :func:`time.monotonic`. The other arguments are those
    of :meth:`torchmdla.devices.Tuning.tune`.

    Returns:
        the records of the contractions for which the cost model's algorithm is not the fastest.
    """
    contractions = steps.contractions
    if Machine.of(program.target).algorithms != "fast" or not contractions:
        return []
    records = {name: known[name] for name in contractions if name in known}
    is_finished = len(records) == len(contractions) and all(record.finished for record in records.values())
    if not is_finished and time.monotonic() + 2 * compiling < until:
        records = _measure_algorithms(program, contractions, compiling, until, skip, progress)
    for record in records.values():
        count, seconds = contractions[record.kernel].count, record.chosen_seconds
        yield TunedKernel(record.kernel, record.loops, count, seconds, record, is_algorithm=True)
    return [record for record in records.values() if record.decisions]


def _measure_algorithms(
    program: Program,
    contractions: Mapping[str, Contraction],
    compiling: float,
    until: float,
    skip: Sequence[str],
    progress: Progress,
) -> dict[str, Record]:
    """Return the records of contractions after each algorithm was tried, as far as time permits."""
    base, trials_of, is_finished = RunningProgram(program), {name: list[_Trial]() for name in contractions}, True
    for algorithm in (a for a in get_args(Algorithms) if a not in _COST_MODELS):
        variant = TunedKernel(f"{program.key} {algorithm}", f"{algorithm} wherever it applies", 1, 0.0)
        begin = time.monotonic()
        if variant.kernel in skip or begin + _SLOWER * compiling > until:
            is_finished = False
            continue
        progress(variant, 0, 1.0)
        for name, trial in _compare_algorithm(algorithm, program, base, contractions):
            trials_of[name].append(trial)
        compiling = max(compiling, (time.monotonic() - begin) / _SLOWER)
    records = {
        name: _record(name, contractions[name], trials, is_finished) for name, trials in trials_of.items() if trials
    }
    return _confirm_in_program(program, base, contractions, records)


def _compare_algorithm(
    algorithm: Algorithms, program: Program, base: RunningProgram, contractions: Mapping[str, Contraction]
) -> Iterator[tuple[str, _Trial]]:
    """Yield the contractions that ``algorithm`` computes differently from the cost model's choice, with their times.

    Algorithms that are less exact are left out.
    """
    features = f"{program.target.features},{ALGORITHMS}{algorithm}"
    forced = replace(program, target=replace(program.target, features=features))
    with new_context(), ir.Location.unknown():
        others = loop_program(forced, {})[0].contractions
    exact = {n: c.algorithm for n, c in others.items() if c.is_exact}
    differing = {n: c for n, c in contractions.items() if exact.get(n, c.algorithm) != c.algorithm}
    if not differing:
        return
    try:
        running = RunningProgram(forced)
    except CompileError:
        return
    before, after = measure_in_turn([base, running], _ROUNDS)
    for name, contraction in differing.items():
        pair = [_seconds(contraction, timed, seconds) for timed, seconds in ((base, before), (running, after))]
        yield name, _Trial(others[name].algorithm, *pair)


def _seconds(contraction: Contraction, running: RunningProgram, seconds: Sequence[float]) -> float:
    pairs = zip(running.kernels, seconds, strict=True)
    return sum(kernel_seconds for kernel, kernel_seconds in pairs if contraction.nodes.intersection(kernel.nodes))


def _record(name: str, contraction: Contraction, trials: Sequence[_Trial], is_finished: bool) -> Record:
    """Return the record of a contraction, with the fastest algorithm if the cost model chose another one."""
    best = min(trials, key=lambda trial: trial.seconds / trial.chosen_seconds)
    loops = f"{contraction.loops} {contraction.algorithm}"
    record = Record(name, loops, "", best.chosen_seconds, best.chosen_seconds, len(trials) + 1, is_finished)
    if best.seconds >= _BETTER * best.chosen_seconds:
        return record
    decisions = json.dumps({ALGORITHM: best.algorithm})
    return replace(record, loops=f"{loops} → {best.algorithm}", decisions=decisions, best_seconds=best.seconds)


def _confirm_in_program(
    program: Program, base: RunningProgram, contractions: Mapping[str, Contraction], records: Mapping[str, Record]
) -> dict[str, Record]:
    """Return the records after running the program with all decisions.

    Decisions that are not faster in that program are dropped.
    """
    won = [record for record in records.values() if record.decisions]
    gains: dict[str, float] = {}
    if won:
        running = RunningProgram(with_records(program, won))
        before, after = measure_in_turn([base, running], _ROUNDS)
        if sum(after) < sum(before):
            for record in won:
                contraction = contractions[record.kernel]
                gains[record.kernel] = _seconds(contraction, base, before) / _seconds(contraction, running, after)
    return {name: _confirm_record(record, gains.get(name, 0.0)) for name, record in records.items()}


def _confirm_record(record: Record, gain: float) -> Record:
    """Return a record with its ``gain`` in the program with all decisions.

    If the gain is too small, the decisions are dropped.
    """
    if not record.decisions or gain * _BETTER >= 1:
        return replace(record, gain_among_others=gain)
    return record.without_decisions
