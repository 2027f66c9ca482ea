"""Tuner, which measures decisions of the cost model for all programs of compiled groups.

A model is called, and its kernels are timed. Then each program of its groups is sent to a separate process
(``process.py``). There the device measures decisions for the most expensive kernels. The best decisions are kept on
disk (:mod:`torchmdla.compile_service.records`). They go into all programs that are made from then on, of any model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from torchmdla import devices
from torchmdla.capture.specialise import Compiled
from torchmdla.compile_service.records import Records
from torchmdla.compiler.program import Program
from torchmdla.compiler.records import TunedKernel
from torchmdla.devices.capabilities import Progress
from torchmdla.errors import CompileError
from torchmdla.report.groups import calls_by_group, executables_of, groups_called_since, reset_times
from torchmdla.report.observing import time_calls, without_comparisons
from torchmdla.support import logs
from torchmdla.tuning.process import measure_kernels
from torchmdla.tuning.report import TuningReport

# Default time to measure, in seconds.
SECONDS = 120.0

# Seconds for which calls of the model are timed, and the least and most calls.
_CALL_SECONDS, _LEAST_CALLS, _MOST_CALLS = 1.0, 5, 200


@dataclass(frozen=True)
class _TimedProgram:
    """Program that a call runs, with the seconds of each of its kernels in a call of the model."""

    program: Program
    places: Sequence[float]

    @property
    def seconds(self) -> float:
        return sum(self.places)


def tune(call: Callable[[], Any], seconds: float = SECONDS) -> TuningReport:
    """Measure decisions for the kernels that ``call`` runs, and keep the fastest.

    Programs that are compiled from then on use them. Compiled programs do not change.

    Args:
        call: function that calls a compiled model. The model has been called before and runs on a device that can be
            tuned.
        seconds: most seconds to spend, beside the model's own calls.

    Raises:
        ValueError: no group runs compiled for a device that can be tuned.
    """
    begin = time.monotonic()
    timed = _timed_programs(call)
    total = sum(entry.seconds for entry in timed)
    kernels, reasons = dict[str, TunedKernel](), list[str]()
    problem = ""
    with _show_progress(seconds) as progress:
        for entry in sorted(timed, key=lambda entry: -entry.seconds):
            left = begin + seconds - time.monotonic()
            rest = sum(other.seconds for other in timed if other.seconds <= entry.seconds)
            records = Records(devices.get(entry.program.target.device))
            try:
                for kernel in measure_kernels(
                    entry.program, entry.places, left * entry.seconds / rest, records.load(), progress
                ):
                    kernels[f"{entry.program.key} {kernel.kernel}"] = kernel
                    # Stored at once, so that an interrupted tuner keeps its results.
                    if kernel.record is not None and not records.add([kernel.record]):
                        problem = records.problem
            except CompileError as error:
                reasons.append(error.reason)
    report = TuningReport(tuple(kernels.values()), total, time.monotonic() - begin, tuple(reasons), problem)
    logs.logger("tuning").info(report.summary)
    return report


def _timed_programs(call: Callable[[], Any]) -> list[_TimedProgram]:
    with torch.no_grad():
        before = calls_by_group()
        call()
        called = groups_called_since(before)
        reset_times(called)
        with without_comparisons():
            calls = len(time_calls(call, _CALL_SECONDS, _LEAST_CALLS, _MOST_CALLS))
    executables = [
        executable for report in called for executable in executables_of(report) if executable.times.sums()["calls"]
    ]
    tunable = list(_merge_by_program(executables, calls))
    if not tunable:
        raise ValueError("there is nothing to tune: no group runs compiled, on a device that can be tuned")
    if not any(entry.seconds for entry in tunable):
        name = tunable[0].program.target.device
        raise ValueError(
            f"there is nothing to tune: the code of device {name!r} does not report kernels (mdla_begin_kernel)"
        )
    return tunable


def _merge_by_program(executables: Sequence[Compiled], calls: int) -> Iterator[_TimedProgram]:
    """Yield the timed programs; equal programs, of layers that are alike, are merged."""
    places: dict[str, list[float]] = {}
    programs: dict[str, Program] = {}
    for compiled in executables:
        program, sums = Program.from_bytes(compiled.program), compiled.times.sums()
        device = devices.get(program.target.device)
        # A device with other settings would store its results under another machine's name.
        if not isinstance(device, devices.Tuning) or not device.machine or program.target != device.target():
            continue
        seconds = [least * 1e-9 * sums["calls"] / calls for _, least in sums["kernels"]]
        key = compiled.manifest.program
        programs[key] = program
        places[key] = [a + b for a, b in zip(places.get(key, [0.0] * len(seconds)), seconds, strict=True)]
    for key, program in programs.items():
        yield _TimedProgram(program, places[key])


@contextmanager
def _show_progress(seconds: float) -> Iterator[Progress]:
    """Show a progress bar of the available seconds, on a terminal, and yield the function that updates it."""
    form = "{l_bar}{bar}| {n:.0f}/{total:.0f} s{postfix}"
    begin = time.monotonic()
    with tqdm(
        total=seconds, desc="tuning", file=sys.stderr, dynamic_ncols=True, leave=False, disable=None, bar_format=form
    ) as bar:

        def update(kernel: TunedKernel, tried: int, gain: float) -> None:
            bar.n = min(bar.total, time.monotonic() - begin)
            bar.set_postfix_str(f"{kernel.loops}: {tried} tried, × {gain:.2f}")

        yield update
