"""What could not be compiled: for good, or for a while where the reason may pass."""

from __future__ import annotations

import copy
import math
import time
from collections import OrderedDict
from dataclasses import dataclass

from torchmdla.errors import CompileError

# The most failures that are remembered.
_MOST = 4096

# Failures that may pass are tried again at once this often if that costs little (seconds in all), once in any case.
# Then a program waits so many times longer than was spent on it in vain, but not longer than an hour.
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
    """Failures by program. The caller sees to it that one thread is in here at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Failure] = OrderedDict()

    def check(self, key: str) -> None:
        """Raises the program's failure, unless there is none or it is time to try again.

        Raises:
            CompileError: a copy. One that was raised has a traceback, which keeps its callers' variables alive.
        """
        failure = self._known.get(key)
        if failure is None or failure.until <= time.monotonic():
            return
        error = copy.copy(failure.error)
        if error.retry_after is not None:
            error.retry_after = failure.until - time.monotonic()
        raise error

    def add(self, key: str, error: CompileError, seconds: float) -> None:
        """Remembers what compiling the program came to after so many seconds, and sets when ``error`` is to be tried
        again, if it may pass."""
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
        """It has been compiled."""
        self._known.pop(key, None)
