"""Threads that compile beside the program. The interpreter's exit does not wait for queued tasks."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

from torchmdla.compile_service import service, worker
from torchmdla.support import forks

_MOST_THREADS = 2

Task = Callable[[], object]


class Background:
    """Queue of tasks that run in order, two at a time. Any thread may submit tasks until the interpreter exits.

    Args:
        is_awaited: whether the program will wait for the compiles, which then have its priority.
    """

    def __init__(self, is_awaited: bool) -> None:
        self._is_awaited = is_awaited
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.leaving = False

    def submit(self, task: Task) -> None:
        """Run ``task`` later, or drop it if no thread can run it."""
        if len(self._threads) < _MOST_THREADS:
            self._start_thread()
        if self._threads and not self.leaving:
            self._tasks.put(task)

    def end(self) -> None:
        """Drop the queued tasks, and return once no task runs any more.

        A task that still ran would end the process when it returned to an interpreter that is gone.
        """
        self.leaving = True
        while not self._tasks.empty():
            with contextlib.suppress(Exception):
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _start_thread(self) -> None:
        # A daemon thread, for which the interpreter does not wait by itself. `end` waits once the queue is empty.
        thread = threading.Thread(target=self._run, name="torchmdla-compile", daemon=True)
        with contextlib.suppress(RuntimeError):  # No further thread can start at the moment.
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        if not self._is_awaited:
            worker.lower_priority()
        while (task := self._tasks.get()) is not None:
            # A later call of the group retries a task that failed.
            with contextlib.suppress(Exception):
                task()
            del task  # This drops the right to compile, for which others wait.


_background, _ahead = Background(is_awaited=False), Background(is_awaited=True)


def submit(task: Task) -> None:
    """Submit a compile that the program does not wait for."""
    _background.submit(task)


def submit_ahead(task: Task) -> None:
    """Submit a compile that the program will wait for."""
    _ahead.submit(task)


def is_leaving() -> bool:
    """Return whether the interpreter is exiting, which may be why a compile ended."""
    return _background.leaving


def _reset() -> None:
    """Start without tasks: threads do not survive a fork, and the parent runs its tasks itself."""
    global _background, _ahead
    _background, _ahead = Background(is_awaited=False), Background(is_awaited=True)


forks.reset_in_child(_reset)


@atexit.register
def _end() -> None:
    _background.leaving = _ahead.leaving = True
    service.end()
    _background.end()
    _ahead.end()
