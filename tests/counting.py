"""Counts of calls, instead of times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

# The largest ratio of calls for a program of twice the length. Calls that do not depend on the length make it less than
# 2.
MOST = 2.3


def calls_of(function: Callable[[], object]) -> int:
    """Return the number of Python functions that a function calls in all."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
