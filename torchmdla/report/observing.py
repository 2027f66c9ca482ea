"""Kernels of compiled groups as ranges of ``torch.profiler``, and their times: while someone asks for them."""

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
    """Within the block every kernel of a compiled group is a range in ``torch.profiler``, in all threads, below the
    range of its group and named by the operators that it computes.

    Groups are ranges always. Kernels are so on request alone, because a range takes about a microsecond.
    """
    with _observing("ranges"):
        yield


@contextmanager
def timed_kernels() -> Iterator[None]:
    """Within the block the calls of every executable add to its :class:`torchmdla._C.KernelTimes`."""
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
