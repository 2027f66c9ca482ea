"""Times and ``torch.profiler`` ranges of kernels, traces of compilations, and the progress bar of long ones."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from torchmdla import _C
from torchmdla.support import forks, trace

# Seconds before a bar appears, and between two reads of the counts.
_DELAY = 1.0
_INTERVAL = 0.2

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


def time_calls(call: Callable[[], Any], seconds: float, least: int, most: int) -> list[float]:
    """Call until ``seconds`` are over, at least and at most so often, and return the seconds of each call.

    Every executable adds its calls to its :class:`torchmdla._C.KernelTimes`.
    """
    spent: list[float] = []
    with _observe("times"):
        while len(spent) < least or (sum(spent) < seconds and len(spent) < most):
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
    return spent


@contextmanager
def without_comparisons() -> Iterator[None]:
    """Let groups run their code within the block, also where PyTorch's operators are faster."""
    is_on = _C.is_check_speed_on()
    _C.set_check_speed(False)
    try:
        yield
    finally:
        _C.set_check_speed(is_on)


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


@contextmanager
def show_progress(counts: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Show a bar on a terminal once the block has run for a second.

    Args:
        counts: function that returns the numbers of ``groups`` formed and ``specialisations`` compiled so far in this
            process.
    """
    if not sys.stderr.isatty():
        yield
        return
    finished = threading.Event()
    thread = threading.Thread(target=_show, args=(finished, counts, counts()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _show(finished: threading.Event, counts: Callable[[], Mapping[str, Any]], before: Mapping[str, Any]) -> None:
    if finished.wait(_DELAY):
        return
    with tqdm(desc="torchmdla: compiling", unit="group", leave=False) as bar:
        while not finished.wait(_INTERVAL):
            now = counts()
            bar.total = now["groups"] - before["groups"]
            bar.n = min(bar.total, now["specialisations"] - before["specialisations"])
            bar.refresh()
