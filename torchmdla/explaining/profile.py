"""Which operators run outside of compiled groups in a call, and how long they take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from torchmdla import _C
from torchmdla.report.explanation import Outside


def base_of(op: str) -> str:
    """``aten::add`` of ``aten::add.Tensor``: how profiles have it."""
    return op.partition(".")[0]


# What a call ran, in order: names of operators and groups, and the seconds that each took.
Events = list[tuple[str, float]]


def events_of(found: Any, reports: Collection[_C.GroupReport], is_deferred: bool = False) -> Events:
    """What a call ran, from its profile: operators that are outside of groups and of other operators, and groups.

    Args:
        reports: those of the groups that it calls.
        is_deferred: its tensors are on a device that runs whole graphs. There the outermost operators are those that
            Python calls, most of which only become a part of a graph.
    """
    # What a group does that ran no compiled code, divided or in PyTorch's interpreter, is outside.
    compiled = {report["name"] for report in reports if report["compiled_calls"]}
    roots = [event for event in found.function_events if event.cpu_parent is None]
    if is_deferred:
        return [one for root in roots for one in _of_deferred(root, compiled)]
    return [_timed(event) for event in _outermost(roots, compiled)]


def _timed(event: Any) -> tuple[str, float]:
    return event.name, event.cpu_time_total * 1e-6


def _of_deferred(root: Any, groups: Collection[str]) -> Iterator[tuple[str, float]]:
    """What ran within a call of an operator: the graphs that it waited for, and the operator if it ran at once."""
    ran = [_timed(event) for event in _outermost(_graphs(root), groups)]
    yield from ran
    if any(event.name in ("aten::_to_cpu", root.name) for event in _below(root)):
        name, seconds = _timed(root)
        yield name, max(seconds - sum(spent for _, spent in ran), 0.0)


def _graphs(event: Any) -> Iterator[Any]:
    """The outermost ranges that are runs of graphs, named by what they compute."""
    if event.name.startswith("mdla_"):
        yield event
    else:
        for child in event.cpu_children:
            yield from _graphs(child)


def _below(event: Any) -> Iterator[Any]:
    """The operators within one, but for those of graphs."""
    for child in event.cpu_children:
        if not child.name.startswith("mdla_"):
            yield child
            yield from _below(child)


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


def _outermost(events: Iterable[Any], groups: Collection[str]) -> Iterator[Any]:
    """Operators and ``groups`` that are in no other; ranges that are neither are looked into."""
    for event in events:
        if event.name in groups or ("::" in event.name and not event.name.startswith("mdla")):
            yield event
        else:
            yield from _outermost(event.cpu_children, groups)
