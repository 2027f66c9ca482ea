"""Counts of calls, in place of times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

# More for a program of twice the length; what a program has whatever its length makes it less than 2.
MOST = 2.3


def calls_of(function: Callable[[], object]) -> int:
    """Return how many functions of Python a function calls in all."""
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
