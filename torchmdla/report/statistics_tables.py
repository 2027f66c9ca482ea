"""Tables that :class:`torchmdla.Statistics` prints: one of groups, and one of reasons with advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from torchmdla.compile_service.store import StoreStatistics
from torchmdla.report.advice import advice
from torchmdla.report.rendering import choice_text, count_text, new_table, place, size_text, time_text

if TYPE_CHECKING:
    from torchmdla.report.statistics import MemoryStatistics, Statistics

# Number of groups that are shown, the most called ones; ``by_group`` has all.
_MOST_GROUPS = 30

# Text format of :class:`torchmdla.capture.ungrouped.Ungrouped`.
_UNGROUPED_PATTERN = re.compile(
    r"(?:(?P<op>\w+::[\w.]+): )?(?P<reason>.*?)(?: \(at (?P<source>[^()]+:\d+)\))?", re.DOTALL
)


def tables(statistics: Statistics) -> RenderableType:
    """Return the tables of statistics."""
    return Group(*_parts(statistics))


def _parts(statistics: Statistics) -> Iterator[RenderableType]:
    yield Text(
        f"{count_text(statistics.groups, 'group')} formed, {count_text(statistics.specialisations, 'specialisation')} "
        f"compiled, {statistics.dynamic} of them for any sizes",
        style="bold",
    )
    yield Text(
        f"{count_text(statistics.compiled, 'program')} compiled in {time_text(statistics.compile_seconds)}, "
        f"{statistics.cache_hits} found on disk, {statistics.memory_hits} in memory, {statistics.failures} failed"
    )
    if statistics.store != StoreStatistics():
        store = statistics.store
        yield Text(
            f"store: {count_text(store.hits, 'program')} found, {store.misses} not, {store.stored} stored, "
            f"{store.waits} waited for, in {time_text(store.seconds)}; {store.skipped} operations left out"
        )
    if statistics.memory.packed or statistics.memory.code:
        yield Text(_memory(statistics.memory))
    if statistics.packages or statistics.packaged:
        files = ", ".join(f"{count_text(count, 'file')} for {target}" for target, count in statistics.packages.items())
        yield Text(f"packages: {files or 'none'}; {count_text(statistics.packaged, 'specialisation')} taken from them")
    if statistics.speed_checks or statistics.replaced:
        yield Text(
            f"speed: {count_text(statistics.speed_checks, 'comparison')} with PyTorch's operators in "
            f"{time_text(statistics.speed_check_seconds)}, code of {count_text(statistics.replaced, 'specialisation')} "
            "replaced"
        )
    for device, counts in statistics.devices.items():
        yield Text(
            f"device {device}: {count_text(counts.parts, 'part')} of programs run, "
            f"{count_text(counts.transfers, 'transfer')} of {size_text(counts.bytes)}"
        )
    if statistics.lazy.graphs or statistics.lazy.eager:
        yield Text(
            f"lazy device: {count_text(statistics.lazy.graphs, 'graph')}, {count_text(statistics.lazy.runs, 'run')}, "
            f"{count_text(sum(statistics.lazy.eager.values()), 'call')} outside of them"
        )
    if statistics.by_group:
        yield _groups(statistics)
    if statistics.slower:
        yield _slower(statistics)
    if rows := list(reasons(statistics)):
        yield _reasons_table(rows)


def _memory(memory: MemoryStatistics) -> str:
    held = f"memory: {size_text(memory.packed)} of packed weights, {size_text(memory.code)} of code"
    if not memory.limit:
        return held
    return (
        f"{held}, of {size_text(memory.limit)} at most; {count_text(memory.unpacked, 'specialisation')} lost packed "
        f"weights, {count_text(memory.evicted, 'specialisation')} taken out; "
        f"{count_text(memory.over_limit, 'time')} more was needed at once"
    )


def _groups(statistics: Statistics) -> RenderableType:
    table = new_table()
    table.add_column("group", overflow="fold")
    table.add_column("line", overflow="fold")
    for name in ("calls\ncompiled", "\nrecorded", "\ntraining", "fallen\nback", "special-\nisations", "compile\ntime"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = sorted(statistics.by_group, key=lambda group: -group.calls)[:_MOST_GROUPS]
    for group in shown:
        numbers = (
            group.compiled_calls,
            group.recorded_calls,
            group.training_calls,
            group.fallbacks,
            group.specialisations,
        )
        table.add_row(group.name, place(group.source), *map(str, numbers), time_text(group.compile_seconds))
    if rest := len(statistics.by_group) - len(shown):
        table.add_row(f"{rest} others")
    return table


def _slower(statistics: Statistics) -> RenderableType:
    table = new_table()
    for name in ("group slower than PyTorch's operators", "line"):
        table.add_column(name, overflow="fold")
    for name in ("compiled", "PyTorch's", "threads"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what runs", overflow="fold")
    for group in statistics.slower:
        for entry in group.slower:
            times = time_text(entry.compiled_seconds), time_text(entry.eager_seconds)
            table.add_row(group.name, place(group.source), *times, str(entry.threads), choice_text(entry))
    return table


# A row: the counted thing, the reason with its operator, the line, the count, and the advice.
_Row = tuple[str, str, str, int, str]


def reasons(statistics: Statistics) -> Iterator[_Row]:
    """Yield the rows of the table of reasons, each reason once."""
    counts_by_effect = {
        "calls in PyTorch's interpreter": statistics.fallbacks,
        "attempts at any sizes": statistics.not_dynamic,
        "training steps": statistics.not_trained,
        "specialisations without it": statistics.left_out,
        "graphs with it outside of groups": statistics.ungrouped,
        "packages without it": statistics.refused,
        "entries of the store without it": statistics.store.refused,
        "operations of the store": statistics.store.problems,
    }
    for what, counts in counts_by_effect.items():
        for text, count in sorted(counts.items(), key=lambda item: -item[1]):
            match = _UNGROUPED_PATTERN.fullmatch(text)
            op, reason, source = match.group("op", "reason", "source") if match else ("", text, "")
            yield what, f"{op}: {reason}" if op else reason, source or "", count, advice(op or "", reason)


def _reasons_table(rows: list[_Row]) -> RenderableType:
    table = new_table()
    for name in ("reason", "line"):
        table.add_column(name, overflow="fold")
    table.add_column("count", justify="right")
    for name in ("of", "what to do"):
        table.add_column(name, overflow="fold")
    for what, reason, source, count, help_ in rows:
        table.add_row(reason, place(source), str(count), what, help_)
    return table
