"""Use of the device by a program: the declared operators that ran on it, and why the others did not."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchmdla import _C
from torchmdla.capture import refusals
from torchmdla.devices import Device
from torchmdla.report.groups import executables_of, ops_of_group
from torchmdla.report.statistics import Statistics

# A row of ``stats().ungrouped`` and ``stats().left_out``.
_ROW = re.compile(r"(?P<op>\w+::[\w.]+): (?P<reason>.*?)(?: \(at \S+:\d+\))?", re.DOTALL)

_IN_TRAINING = "backward is expected, and the group's training steps are not compiled"
_NOT_CALLED = "its group was not called often enough to run compiled"


@dataclass(frozen=True)
class DeviceUse:
    """Use of the device by a program.

    Attributes:
        calls: number of calls of compiled code.
        operators: each declared operator of the program → why it did not run in compiled code; empty if it did. An
            operator with several calls in the program counts as compiled if one of them is.
    """

    calls: int = 0
    operators: dict[str, str] = field(default_factory=dict)


def declared_operators(device: Device) -> list[str]:
    """Return the operators of a device that compute or view tensors, by schema name with overload."""
    return [op for op, support in device.ops.items() if support.kind not in ("shape", "item")]


def device_use(device: Device, stats: Statistics) -> DeviceUse:
    """Return the use of ``device`` since the last ``torchmdla.reset_stats()``, while the program's groups exist."""
    reports = [
        report for report in _C.groups({group.number for group in stats.by_group}) if report["device"] == device.name
    ]
    # A group whose training steps are compiled has no code of its own. The groups of its steps have.
    called = [report for report in reports if report["compiled_calls"] and executables_of(report)]
    ran = {op for report in called for compiled in executables_of(report) for op in compiled.ops}
    reasons: dict[str, str] = {}
    for op, reason in _reasons(reports, stats):
        reasons.setdefault(op, reason)
    declared = declared_operators(device)
    return DeviceUse(
        sum(report["compiled_calls"] for report in called),
        {op: "" if op in ran else reasons[op] for op in declared if op in ran or op in reasons},
    )


def _reasons(reports: Iterable[_C.GroupReport], stats: Statistics) -> Iterator[tuple[str, str]]:
    """Yield operators and why they did not run compiled, the most specific reasons first."""
    yield from ((failed.op, failed.reason) for failed in refusals.failures())
    for rows in (stats.left_out, stats.ungrouped):
        yield from _parse_rows(rows)
    for report in reports:
        reason = _reason_of_group(report, stats.not_trained)
        yield from ((op, reason) for op in ops_of_group(report))


def _parse_rows(rows: Collection[str]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if match := _ROW.fullmatch(row):
            yield match["op"], match["reason"]


def _reason_of_group(report: Any, not_trained: Mapping[str, int]) -> str:
    failures = [specialisation["failure"] for specialisation in report["specialisations"]]
    reason = next(filter(None, (*report["fallbacks"], *failures)), "")
    if not reason and report["training_calls"]:
        reason = next(iter(not_trained), _IN_TRAINING)
    return reason or _NOT_CALLED
