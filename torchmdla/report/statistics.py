"""Statistics of torchmdla in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from torchmdla import _C
from torchmdla.capture import refusals, ungrouped
from torchmdla.capture.ungrouped import Ungrouped
from torchmdla.compile_service import service
from torchmdla.compile_service.store import StoreStatistics
from torchmdla.report.groups import GroupActivity, activity_of


@dataclass(frozen=True)
class DeviceStatistics:
    """Counts of a device that shares programs with others.

    Attributes:
        parts: runs of parts of programs.
        transfers: tensors that moved between the memory of the device and that of the host, without weights.
        bytes: bytes of these tensors.
    """

    parts: int
    transfers: int
    bytes: int


@dataclass(frozen=True)
class LazyStatistics:
    """Counts of PyTorch's lazy device.

    Attributes:
        graphs: graphs that were compiled; graphs that differ only in floats share groups.
        runs: runs of all graphs.
        eager: operator → number of calls that could not be part of a graph, and ran on the CPU at once.
    """

    graphs: int = 0
    runs: int = 0
    eager: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryStatistics:
    """Memory that is held now, in bytes, and counts of evictions.

    Attributes:
        packed: weights in the form that code reads; weights that are mapped from packages do not count.
        workspace: workspaces of all threads.
        code: mapped images, the programs that they were compiled from, and packages without weights.
        limit: limit of ``packed`` and ``code`` together; 0 for no limit.
        unpacked: number of times that a specialisation lost its packed weights because of the limit. The next call
            packs them.
        evicted: specialisations that were evicted because of the limit. The next call creates one again.
        over_limit: number of times that more memory was needed at once than the limit, so that use stayed above it.
    """

    packed: int = 0
    workspace: int = 0
    code: int = 0
    limit: int = 0
    unpacked: int = 0
    evicted: int = 0
    over_limit: int = 0


@dataclass(frozen=True)
class Statistics:
    """Counts since the start of the process or the last :func:`reset_stats`.

    ``print`` shows them as tables, by group and by reason; notebooks show them too.

    Attributes:
        groups: groups that the fusion pass formed.
        specialisations: groups compiled for given input types, whatever the origin of their code.
        dynamic: specialisations that support any sizes.
        not_dynamic: reason → number of failed attempts to compile a group for any sizes.
        not_trained: reason → number of failed attempts to compile the training steps of a group.
        compiled: programs that the compiler compiled.
        cache_hits: programs found on disk.
        store: use of the store that machines share (``TORCHMDLA_STORE``); ``store.hits`` are programs found there.
        memory_hits: programs that this process already had.
        compile_seconds: time spent in the compiler, including failures.
        failures: programs that could not be compiled.
        fallbacks: reason → number of group calls that ran in PyTorch's interpreter.
        left_out: op, reason and location (``file:line``) → number of specialisations that were compiled without the op,
            in groups around it.
        ungrouped: op, reason and location → number of graphs that have the op outside of groups.
        compiled_calls: group calls that ran compiled, including those of deleted groups.
        recorded_calls: group calls that ran by eager operators, to be compiled.
        training_calls: group calls for which backward was expected, and that PyTorch ran: the first call of each kind,
            and calls whose training steps are not compiled.
        packages: target → number of loaded files that have code for it.
        packaged: specialisations that groups took from such files.
        refused: reason → number of packages, or of specialisations in them, that are not used.
        speed_checks: comparisons of code with PyTorch's operators that were measured.
        speed_check_seconds: extra time that they took.
        replaced: specialisations whose code was replaced, because PyTorch's operators were faster.
        devices: counts of each device of programs that several devices share (``device="npu,cpu"``).
        lazy: counts of the lazy device.
        memory: memory that is held.
        by_group: activity of each existing group that was called.
    """

    groups: int
    specialisations: int
    compiled: int
    cache_hits: int
    memory_hits: int
    compile_seconds: float
    failures: int
    dynamic: int = 0
    not_dynamic: dict[str, int] = field(default_factory=dict)
    not_trained: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    ungrouped: dict[str, int] = field(default_factory=dict)
    compiled_calls: int = 0
    recorded_calls: int = 0
    training_calls: int = 0
    packages: dict[str, int] = field(default_factory=dict)
    packaged: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    speed_checks: int = 0
    speed_check_seconds: float = 0.0
    replaced: int = 0
    store: StoreStatistics = field(default_factory=StoreStatistics)
    devices: dict[str, DeviceStatistics] = field(default_factory=dict)
    lazy: LazyStatistics = LazyStatistics()
    memory: MemoryStatistics = MemoryStatistics()
    by_group: tuple[GroupActivity, ...] = field(default=(), repr=False)

    @property
    def slower(self) -> tuple[GroupActivity, ...]:
        """Return the existing groups with code that PyTorch's operators, or a division, replaced."""
        return tuple(group for group in self.by_group if group.slower)

    def __str__(self) -> str:
        from torchmdla.report.rendering import as_text
        from torchmdla.report.statistics_tables import tables

        return as_text(tables(self))

    def _repr_html_(self) -> str:
        from torchmdla.report.rendering import as_html
        from torchmdla.report.statistics_tables import tables

        return as_html(tables(self))


_baseline: dict[str, float] = {}
_store_baseline = StoreStatistics()
_calls_baseline = {"compiled_calls": 0, "recorded_calls": 0}
_eager_baseline: dict[str, int] = {}
_devices_baseline: dict[str, tuple[int, int, int]] = {}
_ungrouped_baseline: Counter[Ungrouped] = Counter()
# Counts and activities of the groups that existed at the last reset.
_counts_baseline: dict[int, tuple[int, int, int]] = {}
_groups_baseline: dict[int, GroupActivity] = {}


def stats() -> Statistics:
    """Return the counts so far."""
    groups = _C.statistics()
    counters = {name: value - _baseline.get(name, 0) for name, value in service.default_service().statistics().items()}
    return Statistics(
        groups=groups["groups"],
        specialisations=groups["specialisations"],
        compiled=int(counters["compiled"]),
        cache_hits=int(counters["disk_hits"]),
        memory_hits=int(counters["memory_hits"]),
        compile_seconds=counters["seconds"],
        failures=int(counters["failures"]),
        dynamic=groups["dynamic"],
        not_dynamic=groups["not_dynamic"],
        not_trained=groups["not_trained"],
        fallbacks=groups["fallbacks"],
        left_out=_texts(refusals.counts()),
        ungrouped=_texts(ungrouped.counts() - _ungrouped_baseline),
        compiled_calls=groups["compiled_calls"] - _calls_baseline["compiled_calls"],
        recorded_calls=groups["recorded_calls"] - _calls_baseline["recorded_calls"],
        training_calls=groups["training_calls"],
        packages=groups["packages"],
        packaged=groups["packaged"],
        refused=groups["refused"],
        speed_checks=groups["speed_checks"],
        speed_check_seconds=groups["speed_check_seconds"],
        replaced=groups["replaced"],
        store=service.default_service().store_statistics() - _store_baseline,
        devices=_devices(),
        lazy=LazyStatistics(**_C.lazy_statistics(), eager=_eager_calls()),
        memory=MemoryStatistics(
            **_C.memory_use(),
            limit=_C.memory_limit(),
            unpacked=groups["unpacked"],
            evicted=groups["evicted"],
            over_limit=groups["over_limit"],
        ),
        by_group=_activities(),
    )


def reset_stats() -> None:
    """Reset all counts to zero."""
    _C.reset_statistics()
    counted = _C.statistics()
    _calls_baseline.update(compiled_calls=counted["compiled_calls"], recorded_calls=counted["recorded_calls"])
    refusals.reset_counts()
    _devices_baseline.update(_C.device_counts())
    _C.lazy_reset_statistics()
    _eager_baseline.update({name: _eager_baseline.get(name, 0) + count for name, count in _eager_calls().items()})
    _ungrouped_baseline.clear()
    _ungrouped_baseline.update(ungrouped.counts())
    _reset_activities()
    _baseline.clear()
    _baseline.update(service.default_service().statistics())
    global _store_baseline
    _store_baseline = service.default_service().store_statistics()


def _devices() -> dict[str, DeviceStatistics]:
    since = {
        device: tuple(
            count - before for count, before in zip(counts, _devices_baseline.get(device, (0, 0, 0)), strict=True)
        )
        for device, counts in sorted(_C.device_counts().items())
    }
    return {device: DeviceStatistics(*counts) for device, counts in since.items() if any(counts)}


def _activities() -> tuple[GroupActivity, ...]:
    activities = map(activity_of, _changed_groups(_C.group_counts()))
    since = (
        activity.since(_groups_baseline[activity.number]) if activity.number in _groups_baseline else activity
        for activity in activities
    )
    return tuple(activity for activity in since if activity.calls)


def _reset_activities() -> None:
    counts = _C.group_counts()
    for report in _changed_groups(counts):
        _groups_baseline[report["number"]] = activity_of(report)
    for number in _groups_baseline.keys() - counts.keys():
        del _groups_baseline[number]
    _counts_baseline.clear()
    _counts_baseline.update(counts)


def _changed_groups(counts: Mapping[int, tuple[int, int, int]]) -> list[_C.GroupReport]:
    """Return the groups that were active since the last reset; a process may have thousands that were not."""
    return _C.groups({number for number, count in counts.items() if _counts_baseline.get(number) != count})


def _texts(counts: Counter[Ungrouped]) -> dict[str, int]:
    return {str(entry): count for entry, count in sorted(counts.items())}


def _eager_calls() -> dict[str, int]:
    """Return the eager calls of each operator since the last reset.

    PyTorch counts an operator's eager calls under its own name, and lowered ones under ``lazy::``.
    """
    counts = {
        name: torch._C._lazy._counter_value(name) - _eager_baseline.get(name, 0)  # type: ignore[attr-defined]
        for name in torch._C._lazy._counter_names()  # type: ignore[attr-defined]
        if "::" in name and not name.startswith("lazy::")
    }
    return {name: count for name, count in counts.items() if count}
