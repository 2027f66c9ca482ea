"""Parameters, buffers and submodules of a module, whose changes the functions of a program notice.

A function reads them once, and again after any module of any program has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The number of changes so far. It is a list, so that functions can refer to it.
CHANGES = [0]


class Slots(dict[str, Any]):
    """Dict whose changes are counted."""


def _counting(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def change(self: Slots, *arguments: Any, **named: Any) -> Any:
        CHANGES[0] += 1
        return method(self, *arguments, **named)

    return change


for _name in ("__setitem__", "__delitem__", "clear", "pop", "popitem", "setdefault", "update", "__ior__"):
    setattr(Slots, _name, _counting(_name))
