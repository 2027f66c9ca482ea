"""Reasons why operators of a program are left to PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torchmdla import devices
from torchmdla.capture import refusals, ungrouped
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.explaining.places import lines_of
from torchmdla.explaining.profile import base_of
from torchmdla.explaining.program import Program
from torchmdla.report.advice import advice
from torchmdla.report.explanation import Outside, Reason
from torchmdla.report.groups import calls_by_group

_NO_GRAPH = "it is no part of a graph that torchmdla sees"
# Prefix of operators that check but do not compute.
_CHECKS = "aten::_assert_"
AT_ONCE = "the device has it run at once, and no part of a graph"


@dataclass(frozen=True)
class Known:
    """State before the model was called.

    It has the calls of groups by number. It has the operators outside of groups, those left out of groups, and those
    that prevented a group's compilation.
    """

    calls: Mapping[int, int]
    ungrouped: Counter[Ungrouped]
    left_out: Counter[Ungrouped]
    failed: Counter[Ungrouped]

    @classmethod
    def now(cls) -> Known:
        return cls(calls_by_group(), ungrouped.counts(), refusals.counts(), refusals.failures())


class Reasons:
    """Reasons known in this process that apply to the program.

    New reasons apply. If the program was optimised before, a reason also applies if its operator ran outside of groups
    and is at a line of the program. Lines of PyTorch's own modules may belong to other programs as well.
    """

    def __init__(self, program: Program, before: Known, outside: list[Outside], is_new: bool) -> None:
        self._is_new = is_new
        self._places = program.places
        self._call, self._is_deferred = program.call, program.is_deferred
        self._before = before
        self._seconds = {operator.op: operator.seconds for operator in outside}

    def all(self) -> list[Reason]:
        """Return all reasons, those of the slowest operators first."""
        now = Known.now()
        reasons = [
            *self._grouped("operator", self._of_program(now.ungrouped, self._before.ungrouped)),
            *self._grouped("left out", self._of_program(now.left_out, self._before.left_out)),
            *self._grouped("not compiled", self._of_program(now.failed, self._before.failed)),
        ]
        explained = {base_of(reason.op) for reason in reasons} | _moving()
        reason = AT_ONCE if self._is_deferred else _NO_GRAPH
        left = [op for op in self._seconds if op not in explained and not op.startswith(_CHECKS)]
        reasons += [reason_of("operator", reason, 1, op) for op in left]
        if unplaced := {base_of(item.op) for item in reasons if not item.sources}:
            lines = lines_of(self._call, unplaced)
            reasons = [
                item if item.sources else replace(item, sources=lines.get(base_of(item.op), ())) for item in reasons
            ]
        return sorted(reasons, key=lambda reason: -self._seconds.get(base_of(reason.op), 0.0))

    def _of_program(self, now: Counter[Ungrouped], before: Counter[Ungrouped]) -> Counter[Ungrouped]:
        new = now - before
        if self._is_new:
            return new
        if self._places:
            known = {
                entry: count
                for entry, count in now.items()
                if (entry.op, entry.source) in self._places and base_of(entry.op) in self._seconds
            }
        else:
            searched = self._seconds.keys() - {base_of(entry.op) for entry in new}
            known = {entry: count for entry, count in now.items() if base_of(entry.op) in searched}
        return Counter({**new, **known})

    def _grouped(self, kind: str, counts: Counter[Ungrouped]) -> list[Reason]:
        """Return one reason for each operator and reason text."""
        sources: dict[tuple[str, str], dict[str, int]] = {}
        for entry, count in counts.items():
            sources.setdefault((entry.op, entry.reason), {})[entry.source] = count
        return [
            reason_of(kind, reason, sum(lines.values()), op, tuple(sorted(filter(None, lines))))
            for (op, reason), lines in sources.items()
        ]


def _moving() -> frozenset[str]:
    """Return the operators that groups leave to eager PyTorch without a reason: views that no group needs, sizes."""
    table = devices.get(devices.in_use()).ops
    return frozenset(base_of(op) for op, support in table.items() if support.kind not in ("compute", "cheap"))


def reason_of(kind: str, reason: str, count: int, op: str = "", sources: tuple[str, ...] = ()) -> Reason:
    return Reason(kind, op, reason, count, sources, advice(op, reason))
