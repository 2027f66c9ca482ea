"""Exit statuses of other processes."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Return the name of the signal, or the exit status, of a process that ended with ``code``."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
