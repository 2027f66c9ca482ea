"""Which operators run outside of compiled groups in a call, and how long they take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torchmdla import _C
from torchmdla.report.explanation import Outside


def base_of(op: str) -> str:
    """``aten::add`` of ``aten::add.Tensor``: how profiles have it."""
    return op.partition(".")[0]


def events_of(found: Any, reports: Collection[_C.GroupReport]) -> list[tuple[str, float]]:
    """What a call ran, from its profile: operators that are outside of groups and of other operators, and groups, with
    the seconds that each took. ``reports`` are those of the groups that it calls."""
    # What a group does that ran no compiled code, divided or in PyTorch's interpreter, is outside.
    compiled = {report["name"] for report in reports if report["compiled_calls"]}
    roots = [event for event in found.function_events if event.cpu_parent is None]
    return [(event.name, event.cpu_time_total * 1e-6) for event in _outermost(roots, compiled)]


def run_outside(events: Sequence[tuple[str, float]], reports: Collection[_C.GroupReport]) -> list[Outside]:
    """Those of the events that are eager operators, the slowest first."""
    groups = {report["name"] for report in reports}
    whole = sum(seconds for _, seconds in events) or 1.0
    spent: dict[str, list[float]] = {}
    for name, seconds in events:
        if name not in groups:
            spent.setdefault(name, []).append(seconds)
    made = [Outside(op, len(times), sum(times), sum(times) / whole) for op, times in spent.items()]
    return sorted(made, key=lambda one: -one.seconds)


def _outermost(events: Collection[Any], groups: Collection[str]) -> Iterator[Any]:
    """Operators and ``groups`` that are in no other; ranges that are neither are looked into."""
    for event in events:
        if event.name in groups or ("::" in event.name and not event.name.startswith("mdla")):
            yield event
        else:
            yield from _outermost(event.cpu_children, groups)
