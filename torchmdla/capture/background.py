"""Threads that compile beside the program. The interpreter's exit waits for nothing that is queued."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from torchmdla.compile_service import service, worker

_MOST_THREADS = 2

Task = Callable[[], None]


class Background:
    """Runs tasks in order, two at a time. Any thread may submit them, until the interpreter leaves."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.leaving = False

    def submit(self, task: Task) -> None:
        """Has ``task`` run later, or lets go of it where there is no thread to run it."""
        if len(self._threads) < _MOST_THREADS:
            self._start_thread()
        if self._threads and not self.leaving:
            self._tasks.put(task)

    def end(self) -> None:
        """Drops what is queued, and returns once no task runs any more: one that still did would end the process when
        it came back to an interpreter that is gone."""
        self.leaving = True
        while not self._tasks.empty():
            with contextlib.suppress(Exception):
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _start_thread(self) -> None:
        # A daemon, for which the interpreter does not wait of its own: `end` does, when nothing is queued any more.
        thread = threading.Thread(target=self._run, name="torchmdla-compile", daemon=True)
        with contextlib.suppress(RuntimeError):  # There can be no more threads, for now.
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        worker.give_way()
        while (task := self._tasks.get()) is not None:
            # What a fault leaves uncompiled, a later call of the group tries again.
            with contextlib.suppress(Exception):
                task()
            del task  # With it goes the right to compile, which others wait for.


_background = Background()


def submit(task: Task) -> None:
    """:meth:`Background.submit` of this process."""
    _background.submit(task)


def is_leaving() -> bool:
    """Whether the interpreter is, so that compiles end for no reason of theirs."""
    return _background.leaving


def _after_fork_in_child() -> None:
    """Threads do not survive a fork, and what they had to do is the parent's."""
    global _background
    _background = Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _end() -> None:
    _background.leaving = True
    service.end()
    _background.end()
