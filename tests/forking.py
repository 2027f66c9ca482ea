"""Work in a forked child."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(function: Callable[[], bool]) -> int:
    """Return the exit status of a forked child. It is 0 if ``function`` returned true there."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if function() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
