"""Work that a process shares with children, which are copies that begin with its memory (``fork``).

Children only save time. A child may fail to start, be killed, crash or raise an exception. Then the process does the
child's work itself. Therefore it ends, or raises, as it would without children.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# PR_SET_PDEATHSIG of Linux's prctl(2).
_DEATH_SIGNAL = 1

# Function of a number of items. It returns how many processes may work on them at once, this one included.
Allotment = Callable[[int], int]

_allotment: Allotment | None = None


def allow(allotment: Allotment) -> None:
    """Allow the processes of ``allotment`` to share the work of this one, which must be single-threaded.

    A child does not have the other threads.
    """
    global _allotment
    _allotment = allotment if hasattr(os, "fork") else None


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the results of ``work`` for each item, in order. The results of children are pickled.

    Each process does one item, then the rest is shared again: CPUs may be free by then, or others may need them.
    """
    results: list[Result] = []
    while rest := items[len(results) :]:
        count = _allotment(len(rest)) if _allotment and len(rest) > 1 else 1
        results += _map_at_once(work, rest[:count])
    return results


def run_apart(work: Callable[[Item], Result], item: Item) -> list[Result]:
    """Return the result of ``work``, done in a child if this process may have children; empty if the child died.

    A crash of ``work`` then does not end this process. The result is pickled.
    """
    if _allotment is None:
        return [work(item)]
    child = _Child(work, item)
    try:
        return child.answer() or []
    finally:
        child.end()


def _map_at_once(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Do ``work`` with each item in a process of its own, the first one in this process."""
    first, *others = items
    with ExitStack() as stack:
        children = [_Child(work, item) for item in others]
        for child in children:
            stack.callback(child.end)
        results = [work(first)]
        for item, child in zip(others, children, strict=True):
            answer = child.answer()
            results += [work(item)] if answer is None else answer
    return results


class _Child:
    """Copy of this process that does ``work`` with ``item``, sends the result and ends."""

    def __init__(self, work: Callable[[Any], Any], item: Any) -> None:
        parent = os.getpid()
        self._answers, sent = os.pipe()
        try:
            self._process = os.fork()
        except OSError:  # No further process can start.
            self._process = -1
        if not self._process:
            _serve(work, item, sent, parent)
        os.close(sent)

    def answer(self) -> list[Any] | None:
        """Wait for the result and return it in a list; return None if the child failed."""
        with open(self._answers, "rb", closefd=False) as pipe:
            data = pipe.read()
        return pickle.loads(data) if self._wait() == 0 else None

    def end(self) -> None:
        """Kill the process if it is still running."""
        os.close(self._answers)
        if self._process > 0:
            os.kill(self._process, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        """Wait for the process to end and return its status."""
        if self._process < 0:
            return -1
        _, status = os.waitpid(self._process, 0)
        self._process = -1
        return status


def describe_exit(code: int) -> str:
    """Return the name of the signal, or the exit status, of a process that ended with ``code``."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _serve(work: Callable[[Any], Any], item: Any, sent: int, parent: int) -> None:
    """Do the work of the child; the function does not return."""
    status = 1
    try:
        _end_with(parent)
        gc.disable()  # The collector visits every object, which would copy its memory pages.
        answer = memoryview(pickle.dumps([work(item)]))
        while answer:
            answer = answer[os.write(sent, answer) :]
        status = 0
    finally:
        os._exit(status)


def _end_with(parent: int) -> None:
    """Have the system kill this process when ``parent`` ends.

    Only Linux supports that. Elsewhere the child completes its work in vain.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
