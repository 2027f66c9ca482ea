"""Operators of programs that are outside of groups, with reasons: of all frontends, since the process began."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torchmdla import _C
from torchmdla.errors import CompileError
from torchmdla.importer.sources import source_in_ranges
from torchmdla.support import forks


@dataclass(frozen=True, order=True)
class Ungrouped:
    """Operator that is in no group.

    Attributes:
        op: name of the operator (``aten::nonzero``).
        reason: why it is in no group.
        source: location in the user's program (``file:line``); empty if unknown.
    """

    op: str
    reason: str
    source: str

    @property
    def is_gap(self) -> bool:
        """Return whether the device is the reason, and not the program around the operator."""
        return self.reason.startswith("device ")

    def __str__(self) -> str:
        text = f"{self.op}: {self.reason}" if self.op else self.reason
        return f"{text} (at {self.source})" if self.source else text


_of_fx_graphs: Counter[Ungrouped] = Counter()
_lock = forks.hold_over_fork(threading.RLock())


def count(operators: Iterable[Ungrouped]) -> None:
    """Count the operators of an FX graph. C++ counts those of other graphs where their groups are formed."""
    with _lock:
        _of_fx_graphs.update(operators)


def refuse(operators: Iterable[Ungrouped]) -> None:
    """Raise an error if the device does not support some of ``operators``, for strict mode.

    Raises:
        CompileError: the device does not support an operator; ``parts`` has one error for each.
    """
    parts = [
        CompileError(operator.reason, op=operator.op, source=operator.source)
        for operator in operators
        if operator.is_gap
    ]
    if parts:
        raise CompileError(**parts[0].fields(), parts=parts)


def counts() -> Counter[Ungrouped]:
    """Return the number of graphs that contain each operator."""
    with _lock:
        result = Counter(_of_fx_graphs)
    for op, reason, source_ranges, number in _C.ungrouped():
        result[Ungrouped(op, reason, source_in_ranges(source_ranges))] += number
    return result
