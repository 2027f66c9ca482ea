"""Locks that every fork of this process takes first and gives back after.

Its child has none of the other threads, but finds these locks free, and what they guard whole.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import Protocol, TypeVar


class Lock(Protocol):
    """What can be held over a fork. Whoever has it may take it again (``threading.RLock``)."""

    def acquire(self, blocking: bool = ...) -> bool: ...

    def release(self) -> None: ...


_Held = TypeVar("_Held", bound=Lock)

# Seconds between two attempts to have all locks at once.
_PAUSE = 0.001

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_taken: list[Lock] = []


def held(lock: _Held) -> _Held:
    """``lock``, which forks take from now on, as long as somebody else has it.

    A fork waits for whoever holds it, so it is for short work, or such as cannot be left half done (linking).
    """
    _locks.add(lock)
    return lock


def _before() -> None:
    while not _take_all():
        time.sleep(_PAUSE)


def _take_all() -> bool:
    """Takes all locks or none: whoever holds one of them may be waiting for another."""
    taken: list[Lock] = []
    try:
        for lock in list(_locks):
            if not lock.acquire(blocking=False):
                return False
            taken.append(lock)
        _taken[:], taken = taken, []
        return True
    finally:
        for lock in taken:
            lock.release()


def _after() -> None:
    while _taken:
        _taken.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
