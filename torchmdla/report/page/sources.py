"""Lines of a program with their context."""

from __future__ import annotations

import linecache
from collections.abc import Iterable

# Number of lines shown before and after a line.
_BEFORE, _AFTER = 8, 8


def lines_around(places: Iterable[str]) -> dict[str, tuple[int, list[str]]]:
    """Return the shown lines for each ``file:line`` whose file can be read.

    A value is the number of the first line, and the lines.
    """
    excerpts: dict[str, tuple[int, list[str]]] = {}
    for place in dict.fromkeys(filter(None, places)):
        file, _, number = place.rpartition(":")
        lines = linecache.getlines(file) if number.isdecimal() else []
        if lines and 1 <= int(number) <= len(lines):
            first = max(int(number) - _BEFORE, 1)
            excerpts[place] = first, [line.rstrip("\n") for line in lines[first - 1 : int(number) + _AFTER]]
    return excerpts
