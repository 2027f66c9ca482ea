"""Exceptions that cannot leave a callback from native code; they are held until the runtime is back in Python.

A user may interrupt a pack that is written in Python. The pack holds the exception and returns a negative status. The
code that reports faults to the user then raises it.
"""

from __future__ import annotations

import threading

_held = threading.local()


def hold(exception: BaseException) -> None:
    """Store ``exception`` for the calling thread."""
    _held.exception = exception


def raise_held() -> None:
    """Raise and drop the exception that the calling thread holds, if any."""
    exception, _held.exception = getattr(_held, "exception", None), None
    if exception is not None:
        raise exception
