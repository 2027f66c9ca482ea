"""Work that a process shares with children: copies of it, which begin with its memory as it is (``fork``).

They only save time. What a child did not do, because it could not be started, was killed, crashed or raised something,
the process does itself: so it ends, or raises, as if there were no children.
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
Made = TypeVar("Made")

# PR_SET_PDEATHSIG of Linux's prctl(2).
_DEATH_SIGNAL = 1

# How many processes share work, this one among them.
_processes = 1


def allow(processes: int) -> None:
    """Lets ``processes`` share the work of this one, which must have one thread: a child has none of the others."""
    global _processes
    _processes = processes if hasattr(os, "fork") else 1


def shared(work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """What ``work`` makes of each item, in order. The results of children are pickled."""
    count = min(_processes, len(items))
    made: list[Any] = [None] * len(items)
    with ExitStack() as stack:
        children = [_Child(work, items[k::count]) for k in range(1, count)]
        for child in children:
            stack.callback(child.end)
        made[::count] = list(map(work, items[::count]))
        for k, child in enumerate(children, 1):
            answers = child.answers()
            made[k::count] = list(map(work, items[k::count])) if answers is None else answers
    return made


class _Child:
    """A copy of this process that does ``work`` with ``items``, sends the results and ends."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any]) -> None:
        parent = os.getpid()
        self._answers, sent = os.pipe()
        try:
            self._process = os.fork()
        except OSError:  # There can be no more processes.
            self._process = -1
        if not self._process:
            _serve(work, items, sent, parent)
        os.close(sent)

    def answers(self) -> list[Any] | None:
        """The results, when they are there; None if they will not be."""
        with open(self._answers, "rb", closefd=False) as pipe:
            data = pipe.read()
        return pickle.loads(data) if self._ended() == 0 else None

    def end(self) -> None:
        """Kills the process, if it is still there."""
        os.close(self._answers)
        if self._process > 0:
            os.kill(self._process, signal.SIGKILL)
            self._ended()

    def _ended(self) -> int:
        """The status of the process, which ends."""
        if self._process < 0:
            return -1
        _, status = os.waitpid(self._process, 0)
        self._process = -1
        return status


def _serve(work: Callable[[Any], Any], items: Sequence[Any], sent: int, parent: int) -> None:
    """In the child, which does not return."""
    status = 1
    try:
        _end_with(parent)
        gc.disable()  # It looks at every object, and so copies the memory that they are in.
        answers = memoryview(pickle.dumps(list(map(work, items))))
        while answers:
            answers = answers[os.write(sent, answers) :]
        status = 0
    finally:
        os._exit(status)


def _end_with(parent: int) -> None:
    """Has the system kill this process when ``parent`` ends. Linux alone does; elsewhere its work is in vain then."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
