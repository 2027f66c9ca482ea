"""Meter of a processor's speed, during a measurement on this processor.

A virtual processor shares a core with those of other machines. A fixed loop lasts up to twice as long while these are
busy, for tenths of a second or for minutes, and the processor time counts all of it. A measurement of many programs
then compares the neighbours, not the programs. :func:`speed_log` times a short loop a hundred times a second on the
same processor. Work in loops (:meth:`SpeedLog.loops`) does not depend on the speed. Its product with the time of the
fastest loop is the number of seconds at full speed.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

_SAMPLE = struct.Struct("<dd")
_ITERATIONS = 5000
_PAUSE = 0.01  # seconds


@dataclass(frozen=True)
class Span:
    """Interval of the ``monotonic`` clock, in which ``seconds`` of processor time were used."""

    start: float
    end: float
    seconds: float


@dataclass(frozen=True)
class SpeedLog:
    """Samples of the loop on one ``processor``: time of the ``monotonic`` clock, and seconds of the loop."""

    path: str
    processor: int

    def loops(self, spans: Sequence[Span]) -> float:
        """Return the number of loops that the processor runs in the time of ``spans``."""
        samples = self._samples()
        clock = [at for at, _ in samples]
        speeds = [1 / seconds for _, seconds in samples]
        total = 0.0
        for span in spans:
            first, last = bisect_left(clock, span.start), bisect_right(clock, span.end)
            # A short span may not contain a sample; the next one is at most a pause away.
            total += span.seconds * fmean(speeds[first:last] or speeds[first : first + 1] or speeds[-1:])
        return total

    @property
    def fastest(self) -> float:
        """Return the seconds of the fastest loop so far."""
        return min(seconds for _, seconds in self._samples())

    def pin(self, process: int = 0) -> None:
        """Pin all threads of a process, by default of this one, to the log's processor."""
        for thread in os.listdir(f"/proc/{process or 'self'}/task"):
            os.sched_setaffinity(int(thread), {self.processor})

    def _samples(self) -> list[tuple[float, float]]:
        data = Path(self.path).read_bytes()
        return list(_SAMPLE.iter_unpack(data[: len(data) // _SAMPLE.size * _SAMPLE.size]))


@contextmanager
def speed_log() -> Iterator[SpeedLog]:
    """Log the speed of this process's first processor in another process, until the ``with`` statement ends."""
    processor = min(os.sched_getaffinity(0))
    command = [sys.executable, "-S", __file__, str(processor)]
    with (
        tempfile.NamedTemporaryFile(prefix="torchmdla-benchmark-") as file,
        subprocess.Popen(command, stdout=file) as process,
    ):
        try:
            yield SpeedLog(file.name, processor)
        finally:
            process.terminate()


def _sample_speed(processor: int) -> None:
    """Write a sample to standard output after each pause, until the parent has ended."""
    os.sched_setaffinity(0, {processor})
    parent = os.getppid()
    while os.getppid() == parent:
        start = time.thread_time()
        total = 0
        for number in range(_ITERATIONS):
            total += number * number
        os.write(sys.stdout.fileno(), _SAMPLE.pack(time.monotonic(), time.thread_time() - start))
        time.sleep(_PAUSE)


if __name__ == "__main__":
    _sample_speed(int(sys.argv[1]))
