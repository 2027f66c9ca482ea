"""Memory of programs that could not be compiled, permanently or temporarily."""

from __future__ import annotations

import copy
import math
import time
from collections import OrderedDict
from dataclasses import dataclass

from torchmdla.errors import CompileError

# The maximum number of failures that are remembered.
_MOST = 4096

# A temporary failure is retried at once up to this many times, while the total time is small (in seconds). One retry is
# always allowed. After that the program waits for this multiple of the wasted time, but for at most an hour.
_FREE_TRIES = 3
_CHEAP = 1.0
_PATIENCE = 20.0
_LONGEST_PAUSE = 3600.0


@dataclass
class _Failure:
    error: CompileError
    tries: int = 0
    wasted: float = 0.0
    until: float = math.inf

    def pause(self) -> float:
        if self.tries == 1 or (self.tries <= _FREE_TRIES and self.wasted < _CHEAP):
            return 0.0
        return min(_LONGEST_PAUSE, _PATIENCE * max(self.wasted, _CHEAP / _PATIENCE))


class Failures:
    """Failures by program.

    The object is not thread-safe: the caller must hold a lock.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Failure] = OrderedDict()

    def check(self, key: str) -> None:
        """Raise the stored failure of the program, if it exists and no retry is due.

        Raises:
            CompileError: a copy of the stored error. A raised exception has a traceback, which would keep the variables
                of its callers alive.
        """
        failure = self._known.get(key)
        if failure is None or failure.until <= time.monotonic():
            return
        error = copy.copy(failure.error)
        if error.retry_after is not None:
            error.retry_after = failure.until - time.monotonic()
        raise error

    def add(self, key: str, error: CompileError, seconds: float) -> None:
        """Store the failure of a program after ``seconds`` of compilation.

        If ``error`` is temporary, this also sets the time of the next attempt.
        """
        failure = self._known.setdefault(key, _Failure(error))
        failure.tries += 1
        failure.wasted += seconds
        failure.until = math.inf
        if error.retry_after is not None:
            error.retry_after = failure.pause()
            failure.until = time.monotonic() + error.retry_after
        failure.error = copy.copy(error)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def forget(self, key: str) -> None:
        """Remove the failure of a program that has been compiled."""
        self._known.pop(key, None)
