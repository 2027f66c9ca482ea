"""The lines of a program, with those around them."""

from __future__ import annotations

import linecache
from collections.abc import Iterable

# Shown before a line and after it.
_BEFORE, _AFTER = 8, 8


def lines_around(places: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """For each ``file:line`` whose file can be read the number of the first line shown, and the lines."""
    found: dict[str, tuple[int, list[str]]] = {}
    for place in dict.fromkeys(filter(None, places)):
        file, _, number = place.rpartition(":")
        lines = linecache.getlines(file) if number.isdecimal() else []
        if lines and 1 <= int(number) <= len(lines):
            first = max(int(number) - _BEFORE, 1)
            found[place] = first, [line.rstrip("\n") for line in lines[first - 1 : int(number) + _AFTER]]
    return found
