"""Operators that run outside of compiled groups in a call, and their times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]

from torchmdla import _C
from torchmdla.report.explanation import Outside

# Prefixes of ranges that are not operators: kernels, and nodes of the backward pass.
_RANGES = ("mdla", "autograd::", "torch::autograd::")


def base_of(op: str) -> str:
    """Return the operator's name in profiles: ``aten::add`` for ``aten::add.Tensor``."""
    return op.partition(".")[0]


# Names and seconds of the operators and groups that a call ran, in order.
Events = list[tuple[str, float]]


def events_of(profile: Any, reports: Collection[_C.GroupReport], is_deferred: bool = False) -> Events:
    """Return the events of a call, from its profile: groups, and operators outside of groups and operators.

    Args:
        profile: profile of the call.
        reports: reports of the groups that it calls.
        is_deferred: whether its tensors are on a device that runs whole graphs. The outermost operators are then those
            that Python calls. Most of them only become part of a graph.
    """
    # A group without compiled calls, divided or in PyTorch's interpreter, counts as outside.
    compiled = {report["name"] for report in reports if report["compiled_calls"]}
    on_cpu = (event for event in profile.function_events if event.device_type == DeviceType.CPU)
    roots = [event for event in on_cpu if event.cpu_parent is None]
    if is_deferred:
        return [item for root in roots for item in _deferred_events(root, compiled)]
    return [_op_and_seconds(event) for event in _outermost_ops(roots, compiled)]


def _op_and_seconds(event: Any) -> tuple[str, float]:
    return event.name, event.cpu_time_total * 1e-6


def _deferred_events(root: Any, groups: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield the events within a call of an operator.

    These are the graphs that it waited for, and the operator itself if it ran at once.
    """
    graphs = _outermost([root], lambda event: event.name.startswith("mdla_"))
    ran = [_op_and_seconds(event) for event in _outermost_ops(graphs, groups)]
    yield from ran
    if any(event.name in ("aten::_to_cpu", root.name) for event in _descendants(root)):
        name, seconds = _op_and_seconds(root)
        yield name, max(seconds - sum(spent for _, spent in ran), 0.0)


def _descendants(event: Any) -> Iterator[Any]:
    """Yield the operators within an event, except those of graphs."""
    for child in event.cpu_children:
        if not child.name.startswith("mdla_"):
            yield child
            yield from _descendants(child)


def run_outside(events: Sequence[tuple[str, float]], reports: Collection[_C.GroupReport]) -> list[Outside]:
    """Return the eager operators among the events, the slowest first."""
    groups = {report["name"] for report in reports}
    whole = sum(seconds for _, seconds in events) or 1.0
    spent: dict[str, list[float]] = {}
    for name, seconds in events:
        if name not in groups:
            spent.setdefault(name, []).append(seconds)
    result = [Outside(op, len(times), sum(times), sum(times) / whole) for op, times in spent.items()]
    return sorted(result, key=lambda item: -item.seconds)


def _outermost_ops(events: Iterable[Any], groups: Collection[str]) -> Iterator[Any]:
    return _outermost(
        events, lambda event: event.name in groups or ("::" in event.name and not event.name.startswith(_RANGES))
    )


def _outermost(events: Iterable[Any], is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the outermost wanted ranges; other ranges are searched recursively."""
    for event in events:
        if is_wanted(event):
            yield event
        else:
            yield from _outermost(event.cpu_children, is_wanted)
