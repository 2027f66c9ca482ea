"""Exceptions that cannot leave a callback from native code: held until the runtime is back in Python.

A pack that is Python's own may be interrupted by the user. It holds the exception, reports an error with a negative
status, and what tells the user of faults raises it.
"""

from __future__ import annotations

import threading

_held = threading.local()


def hold(exception: BaseException) -> None:
    """Keeps ``exception`` for the calling thread."""
    _held.exception = exception


def raise_held() -> None:
    """Raises what the calling thread holds, if anything, and lets go of it."""
    exception, _held.exception = getattr(_held, "exception", None), None
    if exception is not None:
        raise exception
