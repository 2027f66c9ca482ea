"""Times and ``torch.profiler`` ranges of the kernels of compiled groups, on request."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torchmdla import _C
from torchmdla.support import forks

_lock = forks.held(threading.RLock())
_asked: Counter[Literal["times", "ranges"]] = Counter()


@contextmanager
def profile_kernels() -> Iterator[None]:
    """Make every kernel of a compiled group a range in ``torch.profiler`` within the block.

    This applies to all threads. The range is below the range of the kernel's group, and its name has the operators that
    the kernel computes. Groups are always ranges. Kernels are ranges only on request, because a range takes about a
    microsecond.
    """
    with _observing("ranges"):
        yield


@contextmanager
def timed_kernels() -> Iterator[None]:
    """Add the calls of every executable within the block to its :class:`torchmdla._C.KernelTimes`."""
    with _observing("times"):
        yield


@contextmanager
def _observing(what: Literal["times", "ranges"]) -> Iterator[None]:
    _ask(what, 1)
    try:
        yield
    finally:
        _ask(what, -1)


def _ask(what: Literal["times", "ranges"], more: int) -> None:
    with _lock:
        _asked[what] += more
        _C.observe_kernels(times=_asked["times"] > 0, ranges=_asked["ranges"] > 0)
