"""The operators that programs have outside of groups, and why: of all frontends, since the process began."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torchmdla import _C
from torchmdla.errors import CompileError
from torchmdla.importer.sources import source_in
from torchmdla.support import forks


@dataclass(frozen=True, order=True)
class Ungrouped:
    """An operator (``aten::nonzero``), why it is in no group, and where it stands (``file:line``, empty if unknown)."""

    op: str
    reason: str
    source: str

    @property
    def is_gap(self) -> bool:
        """Whether the device is to blame, and not what the program does around the operator."""
        return self.reason.startswith("device ")

    def __str__(self) -> str:
        text = f"{self.op}: {self.reason}" if self.op else self.reason
        return f"{text} (at {self.source})" if self.source else text


_of_fx_graphs: Counter[Ungrouped] = Counter()
_lock = forks.held(threading.RLock())


def count(found: Iterable[Ungrouped]) -> None:
    """Counts the operators of an FX graph; those of other graphs are counted where their groups are formed, in C++."""
    with _lock:
        _of_fx_graphs.update(found)


def refuse(found: Iterable[Ungrouped]) -> None:
    """For strict mode.

    Raises:
        CompileError: the device takes some of the operators ``found`` not; its ``parts`` are one for each.
    """
    parts = [CompileError(one.reason, op=one.op, source=one.source) for one in found if one.is_gap]
    if parts:
        raise CompileError(**parts[0].fields(), parts=parts)


def counts() -> Counter[Ungrouped]:
    """In how many graphs each stands."""
    with _lock:
        result = Counter(_of_fx_graphs)
    for op, reason, source_ranges, number in _C.ungrouped():
        result[Ungrouped(op, reason, source_in(source_ranges))] += number
    return result
