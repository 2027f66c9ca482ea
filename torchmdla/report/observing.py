"""Times and ``torch.profiler`` ranges of the kernels of compiled groups, and traces of compilations, on request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from torchmdla import _C
from torchmdla.support import forks, trace

_lock = forks.hold_over_fork(threading.RLock())
_asked: Counter[Literal["times", "ranges"]] = Counter()


@contextmanager
def profile_kernels() -> Iterator[None]:
    """Make every kernel of a compiled group a range in ``torch.profiler`` within the block.

    This applies to all threads. The range is below the range of the kernel's group, and its name has the operators that
    the kernel computes. Groups are always ranges. Kernels are ranges only on request, because a range takes about a
    microsecond.
    """
    with _observe("ranges"):
        yield


@contextmanager
def timed_kernels() -> Iterator[None]:
    """Add the calls of every executable within the block to its :class:`torchmdla._C.KernelTimes`."""
    with _observe("times"):
        yield


@contextmanager
def _observe(what: Literal["times", "ranges"]) -> Iterator[None]:
    _change_requests(what, 1)
    try:
        yield
    finally:
        _change_requests(what, -1)


def _change_requests(what: Literal["times", "ranges"], more: int) -> None:
    with _lock:
        _asked[what] += more
        _C.observe_kernels(times=_asked["times"] > 0, ranges=_asked["ranges"] > 0)


@contextmanager
def trace_compiles(path: str | Path) -> Iterator[None]:
    """Write a trace of all compilations within the block, in all threads, to ``path`` when it ends.

    The trace has importing, every stage and pass of the compiler, and loading, with their times.
    https://ui.perfetto.dev and ``chrome://tracing`` open it. A program that is found in memory or on disk has only that
    lookup in the trace.

    Raises:
        OSError: ``path`` cannot be written; this is raised before the block runs.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        try:
            with trace.recording() as spans:
                yield
        finally:
            file.write(trace.chrome_trace(spans))
