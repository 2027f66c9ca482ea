"""How fast a processor runs, sampled beside a measurement that runs on it.

A virtual processor shares a core with those of other machines. A fixed loop takes up to twice as long while these are
busy, for tenths of a second or for minutes, and the processor's time counts all of it. A measurement of many programs
then compares the neighbours, not the programs. :class:`SpeedMeter` times a short loop a hundred times a second on the
same processor, from which :meth:`SpeedLog.full_speed` computes the seconds that work takes at full speed.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import TracebackType

_SAMPLE = struct.Struct("<dd")
_ITERATIONS = 5000
_PAUSE = 0.01  # seconds


@dataclass(frozen=True)
class Span:
    """``seconds`` of a processor's time that were taken between two times of the clock ``monotonic``."""

    start: float
    end: float
    seconds: float


@dataclass(frozen=True)
class SpeedLog:
    """The samples of a meter on one ``processor``: time of the clock ``monotonic``, seconds of the loop."""

    path: str
    processor: int

    def full_speed(self, spans: Sequence[Span]) -> float:
        """Return the seconds that ``spans`` take at the highest speed of the log."""
        samples = list(_SAMPLE.iter_unpack(_whole_samples(Path(self.path).read_bytes())))
        clock, durations = [at for at, _ in samples], [seconds for _, seconds in samples]
        total = 0.0
        for span in spans:
            first, last = bisect_left(clock, span.start), bisect_right(clock, span.end)
            # A short span has no sample of its own; the next one is at most a pause away.
            during = durations[first:last] or durations[first : first + 1] or durations[-1:]
            total += span.seconds * fmean(min(durations) / duration for duration in during)
        return total

    def pin(self, process: int = 0) -> None:
        """Let all threads of a process, of this one by default, run on the log's processor only."""
        for thread in os.listdir(f"/proc/{process or 'self'}/task"):
            os.sched_setaffinity(int(thread), {self.processor})


class SpeedMeter:
    """A process that writes a :class:`SpeedLog` until the ``with`` statement ends."""

    def __enter__(self) -> SpeedLog:
        self._file = tempfile.NamedTemporaryFile(prefix="torchmdla-benchmark-")
        log = SpeedLog(self._file.name, min(os.sched_getaffinity(0)))
        command = [sys.executable, "-S", __file__, str(log.processor)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._file)
        return log

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.communicate()
        self._file.close()


def _whole_samples(data: bytes) -> bytes:
    return data[: len(data) // _SAMPLE.size * _SAMPLE.size]


def _sample_speed(processor: int) -> None:
    """Write a sample to standard output after each pause, until the process ends."""
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
