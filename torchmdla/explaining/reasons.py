"""Reasons why operators of a program are left to PyTorch."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from torchmdla import devices
from torchmdla.capture import refusals, ungrouped
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.explaining.profile import base_of
from torchmdla.explaining.program import Program
from torchmdla.importer.sources import is_user_file
from torchmdla.report.advice import advice
from torchmdla.report.explanation import Outside, Reason
from torchmdla.report.groups import calls_by_group

_NO_GRAPH = "it is not part of a graph that torchmdla sees"
# Prefix of operators that check but do not compute.
_CHECKS = "aten::_assert_"
RUNS_EAGERLY = "the device runs it at once; it is not part of a graph"


@dataclass(frozen=True)
class Snapshot:
    """State before the model was called.

    It has the calls of groups by number. It has the operators outside of groups, those left out of groups, and those
    that prevented a group's compilation.
    """

    calls: Mapping[int, int]
    ungrouped: Counter[Ungrouped]
    left_out: Counter[Ungrouped]
    failed: Counter[Ungrouped]

    @classmethod
    def now(cls) -> Snapshot:
        return cls(calls_by_group(), ungrouped.counts(), refusals.counts(), refusals.failures())


class Reasons:
    """Reasons known in this process that apply to the program.

    New reasons apply. If the program was optimised before, a reason also applies if its operator ran outside of groups
    and is at a line of the program. Lines of PyTorch's own modules may belong to other programs as well.
    """

    def __init__(self, program: Program, before: Snapshot, outside: list[Outside], is_new: bool) -> None:
        self._is_new = is_new
        self._places = program.places
        self._call, self._is_deferred = program.call, program.is_deferred
        self._before = before
        self._seconds = {operator.op: operator.seconds for operator in outside}

    def all(self) -> list[Reason]:
        """Return all reasons, those of the slowest operators first."""
        now = Snapshot.now()
        reasons = [
            *reasons_by_line("operator", self._program_counts(now.ungrouped, self._before.ungrouped)),
            *reasons_by_line("left out", self._program_counts(now.left_out, self._before.left_out)),
            *reasons_by_line("not compiled", self._program_counts(now.failed, self._before.failed)),
        ]
        # Groups leave views that no group needs and sizes to eager PyTorch without a reason.
        table = devices.get(devices.in_use()).ops
        moving = {base_of(op) for op, support in table.items() if support.kind not in ("compute", "cheap")}
        explained = moving | {base_of(reason.op) for reason in reasons}
        reason = RUNS_EAGERLY if self._is_deferred else _NO_GRAPH
        left = [op for op in self._seconds if op not in explained and not op.startswith(_CHECKS)]
        reasons += [reason_of("operator", reason, 1, op) for op in left]
        if unplaced := {base_of(item.op) for item in reasons if not item.sources}:
            lines = calling_lines(self._call, unplaced)
            reasons = [
                item if item.sources else replace(item, sources=lines.get(base_of(item.op), ())) for item in reasons
            ]
        return sorted(reasons, key=lambda reason: -self._seconds.get(base_of(reason.op), 0.0))

    def _program_counts(self, now: Counter[Ungrouped], before: Counter[Ungrouped]) -> Counter[Ungrouped]:
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


def reasons_by_line(kind: str, counts: Counter[Ungrouped]) -> list[Reason]:
    """Return one reason for each operator and reason text."""
    sources: dict[tuple[str, str], dict[str, int]] = {}
    for entry, count in counts.items():
        sources.setdefault((entry.op, entry.reason), {})[entry.source] = count
    return [
        reason_of(kind, reason, sum(lines.values()), op, tuple(sorted(filter(None, lines))))
        for (op, reason), lines in sources.items()
    ]


def reason_of(kind: str, reason: str, count: int, op: str = "", sources: tuple[str, ...] = ()) -> Reason:
    return Reason(kind, op, reason, count, sources, advice(op, reason))


def calling_lines(call: Callable[[], Any], ops: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the lines (``file:line``) from which this thread calls ``ops`` in one more ``call``, by op.

    Such calls are between the graphs of ``torch.compile``, in functions that TorchScript leaves to Python, and on a
    lazy device. ``ops`` are names such as ``aten::nonzero``. Calls under another name than the operator's, such as an
    infix ``+``, are not found.
    """
    wanted = {op.partition("::")[2]: op for op in ops}
    result: defaultdict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (op := wanted.get(getattr(called, "__name__", ""))) and (line := _line(frame)):
            result[op].add(line)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return {op: tuple(sorted(lines)) for op, lines in result.items()}


def _line(frame: FrameType | None) -> str:
    """Return the line of the innermost frame of the user's code, or an empty string."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_user_file(path) and not path.startswith("<"):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
