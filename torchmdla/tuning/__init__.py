"""Measures what the cost model decides otherwise: the tuner, for whatever runs in compiled groups.

A model is called, and its kernels are timed. Then each program of its groups goes to a process of its own
(``process.py``), in which the device measures decisions for the kernels that take most time. What wins is kept on disk
(:mod:`torchmdla.compile_service.records`), and goes into all programs that are made from then on, of whatever model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from torchmdla import devices
from torchmdla.capture.specialise import Compiled
from torchmdla.compile_service.records import Records
from torchmdla.compiler.program import Program
from torchmdla.compiler.records import TunedKernel
from torchmdla.errors import CompileError
from torchmdla.report.groups import calls_by_group, executables_of, groups_called_since, reset_times
from torchmdla.report.observing import timed_kernels
from torchmdla.support import logs
from torchmdla.tuning.process import Step, measured
from torchmdla.tuning.report import TuningReport

# Seconds to measure, where nothing else is said.
SECONDS = 120.0

# Calls of the model are timed for so long, within these bounds.
_CALL_SECONDS, _LEAST_CALLS, _MOST_CALLS = 1.0, 5, 200


@dataclass(frozen=True)
class _Timed:
    """A program that a call runs: seconds of each of its kernels in a call of the model."""

    program: Program
    places: Sequence[float]

    @property
    def seconds(self) -> float:
        return sum(self.places)


def tune(call: Callable[[], Any], seconds: float = SECONDS) -> TuningReport:
    """Measures decisions for the kernels of what ``call`` runs, and keeps those that are fastest. Programs that are
    compiled from then on use them; what is compiled already stays as it is.

    Args:
        call: calls a compiled model, which has been called before, and runs on a device that can be tuned.
        seconds: to take at most, beside the model's own calls.

    Raises:
        ValueError: no group runs compiled for a device that can be tuned.
    """
    begin = time.monotonic()
    timed = _timed_programs(call)
    total = sum(one.seconds for one in timed)
    kernels, reasons = dict[str, TunedKernel](), list[str]()
    problem = ""
    with _Bar(seconds) as bar:
        for one in sorted(timed, key=lambda one: -one.seconds):
            left = begin + seconds - time.monotonic()
            rest = sum(other.seconds for other in timed if other.seconds <= one.seconds)
            records = Records(devices.get(one.program.target.device))
            try:
                for kernel in measured(one.program, one.places, left * one.seconds / rest, records.load(), bar.show):
                    kernels[f"{one.program.key} {kernel.kernel}"] = kernel
                    # At once: who interrupts a tuner keeps what was found.
                    if kernel.record is not None and not records.add([kernel.record]):
                        problem = records.problem
            except CompileError as error:
                reasons.append(error.reason)
    report = TuningReport(tuple(kernels.values()), total, time.monotonic() - begin, tuple(reasons), problem)
    logs.logger("tuning").info(report.summary)
    return report


def _timed_programs(call: Callable[[], Any]) -> list[_Timed]:
    with torch.no_grad():
        before = calls_by_group()
        call()
        called = groups_called_since(before)
        reset_times(called)
        calls, begin = 0, time.perf_counter()
        with timed_kernels():
            while calls < _LEAST_CALLS or (time.perf_counter() - begin < _CALL_SECONDS and calls < _MOST_CALLS):
                call()
                calls += 1
    found = [one for report in called for one in executables_of(report) if one.times.sums()["calls"]]
    tunable = list(_by_program(found, calls))
    if not tunable:
        raise ValueError("there is nothing to tune: no group runs compiled, on a device that can be tuned")
    return tunable


def _by_program(found: Sequence[Compiled], calls: int) -> Iterator[_Timed]:
    """Equal programs, of layers that are alike, as one."""
    places: dict[str, list[float]] = {}
    programs: dict[str, Program] = {}
    for compiled in found:
        program, sums = Program.from_bytes(compiled.program), compiled.times.sums()
        device = devices.get(program.target.device)
        # What the device was configured otherwise for would be kept under another machine's name.
        if not device.machine or program.target != device.target():
            continue
        own = [least * 1e-9 * sums["calls"] / calls for _, least in sums["kernels"]]
        key = compiled.manifest.program
        programs[key] = program
        places[key] = [a + b for a, b in zip(places.get(key, [0.0] * len(own)), own, strict=True)]
    for key, program in programs.items():
        yield _Timed(program, places[key])


class _Bar:
    """A progress bar of the seconds that there are, on a terminal."""

    def __init__(self, seconds: float) -> None:
        form = "{l_bar}{bar}| {n:.0f}/{total:.0f} s{postfix}"
        self._bar = tqdm(
            total=seconds,
            desc="tuning",
            file=sys.stderr,
            dynamic_ncols=True,
            leave=False,
            disable=None,
            bar_format=form,
        )
        self._begin = time.monotonic()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def show(self, step: Step) -> None:
        self._bar.n = min(self._bar.total, time.monotonic() - self._begin)
        self._bar.set_postfix_str(f"{step.kernel.loops}: {step.tried} tried, × {step.gain:.2f}")
