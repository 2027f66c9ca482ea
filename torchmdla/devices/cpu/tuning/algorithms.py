"""Algorithms of contractions, measured in the whole program: which layer is faster by which one depends on what the
layers around it leave in the caches, and on the threads.

The program is compiled once by each algorithm, taken wherever it applies, and runs in turn with the program by the cost
model's choices. So all contractions are measured at once. Then the program that has the best one of each must win.
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
from torchmdla.devices.cpu.loop_program import Contraction, LoopProgram
from torchmdla.devices.cpu.lowering import loop_program
from torchmdla.devices.cpu.machine import ALGORITHMS, Algorithms, Machine
from torchmdla.devices.cpu.schedule.plan import ALGORITHM
from torchmdla.devices.cpu.tuning.whole import Running, in_turn, with_records
from torchmdla.devices.device import Tell
from torchmdla.errors import CompileError

# Which choose, and are none themselves.
_CHOOSING = ("fast", "winograd")

# Rounds of two programs in turn, and how much faster one must be, alone among layers and then with all that won.
_ROUNDS = 6
_BETTER = 0.97

# What compiling and running a program by another algorithm takes, in parts of compiling it by the cost model's.
_SLOWER = 2.0


@dataclass(frozen=True)
class _Trial:
    """Seconds of a contraction by the cost model's choice, and by an ``algorithm``, in turn."""

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
    tell: Tell,
) -> Generator[TunedKernel, None, list[Record]]:
    """Measures algorithms for the contractions of a static program without records, whose steps are ``steps``.

    Args:
        compiling: seconds that it takes to compile the program, about.
        until: by :func:`time.monotonic`.
        known, skip, tell: as for :meth:`torchmdla.devices.device.Device.tune`.

    Returns:
        the records of those that another algorithm than the cost model's is the fastest for.
    """
    own = steps.contractions
    if Machine.of(program.target).algorithms != "fast" or not own:
        return []
    made = {name: known[name] for name in own if name in known}
    is_finished = len(made) == len(own) and all(record.finished for record in made.values())
    if not is_finished and time.monotonic() + 2 * compiling < until:
        made = _measured(program, own, compiling, until, skip, tell)
    for record in made.values():
        yield TunedKernel(
            record.kernel, record.loops, own[record.kernel].count, record.chosen_seconds, record, is_algorithm=True
        )
    return [record for record in made.values() if record.decisions]


def _measured(
    program: Program,
    own: Mapping[str, Contraction],
    compiling: float,
    until: float,
    skip: Sequence[str],
    tell: Tell,
) -> dict[str, Record]:
    """What is known of contractions after each algorithm has been tried, as far as there is time."""
    base, found, is_finished = Running(program), {name: list[_Trial]() for name in own}, True
    for algorithm in (a for a in get_args(Algorithms) if a not in _CHOOSING):
        variant = TunedKernel(f"{program.key} {algorithm}", f"{algorithm} wherever it applies", 1, 0.0)
        begin = time.monotonic()
        if variant.kernel in skip or begin + _SLOWER * compiling > until:
            is_finished = False
            continue
        tell(variant, 0, 1.0)
        for name, trial in _by(algorithm, program, base, own):
            found[name].append(trial)
        compiling = max(compiling, (time.monotonic() - begin) / _SLOWER)
    made = {name: _record(name, own[name], trials, is_finished) for name, trials in found.items() if trials}
    return _together(program, base, own, made)


def _by(
    algorithm: Algorithms, program: Program, base: Running, contractions: Mapping[str, Contraction]
) -> Iterator[tuple[str, _Trial]]:
    """The contractions that an algorithm computes otherwise than the cost model chooses, and as exactly, with their
    times."""
    features = f"{program.target.features},{ALGORITHMS}{algorithm}"
    forced = replace(program, target=replace(program.target, features=features))
    with new_context(), ir.Location.unknown():
        others = loop_program(forced, {})[0].contractions
    exact = {n: c.algorithm for n, c in others.items() if c.is_exact}
    differing = {n: c for n, c in contractions.items() if exact.get(n, c.algorithm) != c.algorithm}
    if not differing:
        return
    try:
        running = Running(forced)
    except CompileError:
        return
    before, after = in_turn([base, running], _ROUNDS)
    for name, contraction in differing.items():
        pair = [_seconds(contraction, one, own) for one, own in ((base, before), (running, after))]
        yield name, _Trial(others[name].algorithm, *pair)


def _seconds(contraction: Contraction, running: Running, seconds: Sequence[float]) -> float:
    """What the kernels take that compute the contraction's nodes."""
    pairs = zip(running.kernels, seconds, strict=True)
    return sum(own for kernel, own in pairs if contraction.nodes.intersection(kernel.nodes))


def _record(name: str, contraction: Contraction, trials: Sequence[_Trial], is_finished: bool) -> Record:
    """What is known of a contraction, with the fastest algorithm where that is not the cost model's."""
    best = min(trials, key=lambda one: one.seconds / one.chosen_seconds)
    loops = f"{contraction.loops} {contraction.algorithm}"
    record = Record(name, loops, "", best.chosen_seconds, best.chosen_seconds, len(trials) + 1, is_finished)
    if best.seconds >= _BETTER * best.chosen_seconds:
        return record
    decisions = json.dumps({ALGORITHM: best.algorithm})
    return replace(record, loops=f"{loops} → {best.algorithm}", decisions=decisions, best_seconds=best.seconds)


def _together(
    program: Program, base: Running, contractions: Mapping[str, Contraction], made: Mapping[str, Record]
) -> dict[str, Record]:
    """The contractions, without decisions that are no faster in the program that has those of all."""
    won = [record for record in made.values() if record.decisions]
    gains: dict[str, float] = {}
    if won:
        running = Running(with_records(program, won))
        before, after = in_turn([base, running], _ROUNDS)
        if sum(after) < sum(before):
            for record in won:
                own = contractions[record.kernel]
                gains[record.kernel] = _seconds(own, base, before) / _seconds(own, running, after)
    return {name: _confirmed(record, gains.get(name, 0.0)) for name, record in made.items()}


def _confirmed(record: Record, gain: float) -> Record:
    """A record with its ``gain`` among others that won; without decisions where that is too little."""
    if not record.decisions or gain * _BETTER >= 1:
        return replace(record, gain_among_others=gain)
    return record.without_decisions
