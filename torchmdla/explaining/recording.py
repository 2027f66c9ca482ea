"""Recording of thread activities and memory use while a model is explained."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

from torchmdla import _C
from torchmdla.report.explanation import Activity, DeviceWork, MemoryUse
from torchmdla.support import trace
from torchmdla.support.trace import Span

# Seconds between two samples of the memory use.
_INTERVAL = 0.02

# Number of recorded operators; the longest are kept.
_MOST_OPERATORS = 2000

# Activities of the extension's ranges, by name.
_RANGES = {"mdla::record": "record", "mdla::pack": "pack", "mdla::fall_back": "fall back"}

_STATM = Path("/proc/self/statm")


class Recording:
    """Context manager that records activities and memory use.

    The calls of groups and operators are recorded only in :meth:`record_profile` blocks, for the thread that is in one.
    """

    def __init__(self) -> None:
        self._start = time.time_ns()
        self._samples: list[MemoryUse] = []
        self._profiles: list[Any] = []
        self._device_events: list[Span] = []
        self._latest_events: list[Span] = []
        self._ended = threading.Event()
        self._recorded = ExitStack()

    def __enter__(self) -> Recording:
        self._spans = self._recorded.enter_context(trace.recording())
        self._sampler = threading.Thread(target=self._sample, name="torchmdla-memory", daemon=True)
        self._sampler.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._sampler.join()
        self._recorded.close()

    @contextmanager
    def record_profile(self) -> Iterator[profile]:
        """Turn on PyTorch's profiler within the block."""
        events = _C.DeviceEventRecording()
        with _suppress_messages(), profile() as session:  # type: ignore[no-untyped-call]
            yield session
        self._profiles.append(session)
        since_1970 = time.time_ns() - time.monotonic_ns()
        self._latest_events = [
            Span(name, "device", begin + since_1970, end + since_1970, os.getpid(), 0, stream)
            for stream, name, begin, end in events.take()
        ]
        self._device_events += self._latest_events

    def device_work(self) -> tuple[DeviceWork, ...]:
        """Return what devices have recorded in the latest block."""
        sums: dict[tuple[str, str], list[int]] = {}
        for span in self._latest_events:
            sums.setdefault((span.thread_name, span.name), []).append(span.end - span.start)
        return tuple(
            DeviceWork(stream, name, len(times), sum(times) * 1e-9) for (stream, name), times in sorted(sums.items())
        )

    def timeline(self, groups: Collection[str]) -> tuple[Activity, ...]:
        """Return the activities of threads; ``groups`` are the names of ranges that are groups."""
        profiled = (span for session in self._profiles for span in _spans_of(session, groups))
        merged = list(_merge_spans(profiled))
        operators = sorted((span.end - span.start for span in merged if span.kind == "operator"), reverse=True)
        least = operators[_MOST_OPERATORS] if len(operators) > _MOST_OPERATORS else -1
        longest = (span for span in merged if span.kind != "operator" or span.end - span.start > least)
        spans = sorted([*self._spans, *self._device_events, *longest], key=lambda span: (span.start, -span.end))
        return tuple(map(self._activity, spans))

    def memory(self) -> tuple[MemoryUse, ...]:
        """Return the memory use, in order."""
        return tuple(self._samples)

    def _activity(self, span: Span) -> Activity:
        thread = span.thread_name if span.process == os.getpid() else f"compiler process {span.process}"
        return Activity(span.name, span.kind, thread, (span.start - self._start) * 1e-9, (span.end - span.start) * 1e-9)

    def _sample(self) -> None:
        while True:
            seconds = (time.time_ns() - self._start) * 1e-9
            use = _C.memory_use()
            self._samples.append(MemoryUse(seconds, _resident_bytes(), use["packed"], use["workspace"]))
            if self._ended.wait(_INTERVAL):
                return


@contextmanager
def _suppress_messages() -> Iterator[None]:
    """Suppress the messages of PyTorch's profiler.

    The profiler writes to the standard error stream when it starts and stops. The process reads this variable at the
    first start of the profiler.
    """
    name = "KINETO_LOG_LEVEL"
    is_set = name in os.environ
    os.environ.setdefault(name, "6")
    try:
        yield
    finally:
        if not is_set:
            os.environ.pop(name, None)


def _resident_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # Only Linux has this file.
        return 0


def _merge_spans(spans: Iterator[Span]) -> Iterator[Span]:
    """Yield spans in the order of a thread, with consecutive runs of an operator joined into one.

    PyTorch compares a graph's constants with each other by tens of thousands of calls.
    """
    for _, same in itertools.groupby(spans, key=lambda span: (span.thread, span.kind, span.name)):
        every = list(same)
        first = every[0]
        if first.kind == "operator" and len(every) > 1:
            yield replace(first, name=f"{first.name} × {len(every)}", end=every[-1].end)
        else:
            yield from every


def _spans_of(session: Any, groups: Collection[str]) -> Iterator[Span]:
    """Yield the spans of a profile.

    These are the calls of groups, the other activities of groups, and the operators outside of groups and operators.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    ends: dict[int, int] = {}
    for event in sorted(session.kineto_results.events(), key=lambda item: (item.start_ns(), -item.end_ns())):
        if event.device_type() != torch.autograd.DeviceType.CPU:  # type: ignore[attr-defined]
            continue  # events of devices, which have rows of their own
        name, thread, start, end = event.name(), event.device_resource_id(), event.start_ns(), event.end_ns()
        is_operator = "::" in name and not name.startswith("mdla::")
        kind = "run" if name in groups else "operator" if is_operator else _RANGES.get(name, "")
        if not kind or (is_operator and start < ends.get(thread, 0)):
            continue
        if kind in ("run", "operator"):
            ends[thread] = max(end, ends.get(thread, 0))
        shown = name.removeprefix("mdla::").replace("_", " ") if name in _RANGES else name
        yield Span(shown, kind, start, end, os.getpid(), thread, names.get(thread, f"thread {thread}"))
