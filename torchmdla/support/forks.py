"""Locks that every fork of this process acquires before and releases afterwards, and state that the child resets.

The child process does not have the other threads. It finds these locks free and the data that they guard consistent.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Protocol, TypeVar


class Lock(Protocol):
    """Lock that can be hold_over_fork over a fork. Its owner may acquire it again (``threading.RLock``)."""

    def acquire(self, blocking: bool = ...) -> bool: ...

    def release(self) -> None: ...


_AnyLock = TypeVar("_AnyLock", bound=Lock)

# Seconds between two attempts to acquire all locks at once.
_PAUSE = 0.001

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_acquired: list[Lock] = []
# References to the functions, in the order of their registration.
_resets: dict[Callable[[], Callable[[], object] | None], None] = {}


def hold_over_fork(lock: _AnyLock) -> _AnyLock:
    """Return ``lock``, which forks acquire from now on, as long as it is referenced elsewhere.

    A fork waits for the owner of the lock. Therefore the lock is for short work, or for work that must not be
    interrupted (linking).
    """
    _locks.add(lock)
    return lock


def reset_in_child(reset: Callable[[], object]) -> None:
    """Call ``reset`` in the child after every fork. A method is called as long as its object is referenced."""
    _resets[weakref.WeakMethod(reset, _resets.pop) if isinstance(reset, MethodType) else lambda: reset] = None


def _acquire_before_fork() -> None:
    while not _try_acquire_all():
        time.sleep(_PAUSE)


def _try_acquire_all() -> bool:
    """Acquire all locks or none, because the owner of one lock may be waiting for another."""
    taken: list[Lock] = []
    try:
        for lock in list(_locks):
            if not lock.acquire(blocking=False):
                return False
            taken.append(lock)
        _acquired[:], taken = taken, []
        return True
    finally:
        for lock in taken:
            lock.release()


def _release_after_fork() -> None:
    while _acquired:
        _acquired.pop().release()


def _start_child() -> None:
    _release_after_fork()
    for reference in list(_resets):
        if reset := reference():
            reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_before_fork, after_in_parent=_release_after_fork, after_in_child=_start_child)
