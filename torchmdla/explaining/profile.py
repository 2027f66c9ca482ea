"""Which operators run outside of compiled groups in a call, and how long they take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch.autograd.profiler import profile

from torchmdla import _C
from torchmdla.report.explanation import Outside


def base_of(op: str) -> str:
    """``aten::add`` of ``aten::add.Tensor``: how profiles have it."""
    return op.partition(".")[0]


def run_outside(call: Callable[[], Any], reports: Collection[_C.GroupReport]) -> list[Outside]:
    """What one call runs by eager operators, the slowest first; ``reports`` are those of the groups that it calls."""
    # What a group does that ran no compiled code, divided or in PyTorch's interpreter, is outside.
    compiled = {report["name"] for report in reports if report["compiled_calls"]}
    groups = {report["name"] for report in reports}
    with profile() as found:  # type: ignore[no-untyped-call]
        call()
    roots = [event for event in found.function_events if event.cpu_parent is None]
    outermost = list(_outermost(roots, compiled))
    whole = sum(event.cpu_time_total for event in outermost) or 1.0
    spent: dict[str, list[float]] = {}
    for event in outermost:
        if event.name not in groups:
            spent.setdefault(event.name, []).append(event.cpu_time_total)
    made = [Outside(op, len(times), sum(times) * 1e-6, sum(times) / whole) for op, times in spent.items()]
    return sorted(made, key=lambda one: -one.seconds)


def _outermost(events: Collection[Any], groups: Collection[str]) -> Iterator[Any]:
    """Operators and ``groups`` that are in no other; ranges that are neither are looked into."""
    for event in events:
        if event.name in groups or ("::" in event.name and not event.name.startswith("mdla")):
            yield event
        else:
            yield from _outermost(event.cpu_children, groups)
