"""Spans of time of the work of threads and processes. They are kept only while a recording is active."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, Literal

Kind = Literal["specialise", "import", "compile", "lower", "stage", "pass", "load", "explain"]


@dataclass(frozen=True)
class Span:
    """One span.

    Attributes:
        name: description of the work.
        kind: kind of the work.
        start: start in nanoseconds since 1970, so that spans of several processes are comparable.
        end: end in nanoseconds since 1970.
        process: the system's number of the process.
        thread: the system's number of the thread.
        thread_name: Python's name of the thread.
    """

    name: str
    kind: str
    start: int
    end: int
    process: int
    thread: int
    thread_name: str

    def fields(self) -> tuple[Any, ...]:
        """Return the constructor's arguments in JSON's types."""
        return astuple(self)


# Replaced as a whole, so that recorders read it once.
_recordings: tuple[list[Span], ...] = ()
_lock = threading.RLock()


@contextmanager
def recording() -> Iterator[list[Span]]:
    """Record the spans that end within the block, in all threads and in the compiler processes that work for them."""
    global _recordings
    spans: list[Span] = []
    with _lock:
        _recordings = (*_recordings, spans)
    try:
        yield spans
    finally:
        with _lock:
            _recordings = tuple(other for other in _recordings if other is not spans)


def is_on() -> bool:
    """Return whether spans are kept."""
    return bool(_recordings)


@contextmanager
def span(name: str, kind: Kind) -> Iterator[None]:
    """Record the block as a span of the calling thread."""
    if not _recordings:
        yield
        return
    start = time.time_ns()
    try:
        yield
    finally:
        thread = threading.current_thread()
        add([Span(name, kind, start, time.time_ns(), os.getpid(), threading.get_native_id(), thread.name)])


def add(spans: Iterable[Span]) -> None:
    """Add the spans of another process to the active recordings."""
    additions = list(spans)
    for target in _recordings:
        target.extend(additions)


def chrome_trace(spans: Iterable[Span]) -> str:
    """Return the spans as JSON for Perfetto and chrome://tracing ("Trace Event Format", complete events)."""
    spans = sorted(spans, key=lambda interval: (interval.start, -interval.end))
    own_process = os.getpid()
    processes = {
        interval.process: "program" if interval.process == own_process else "compiler process" for interval in spans
    }
    threads = {(interval.process, interval.thread): interval.thread_name for interval in spans}
    names = [
        *({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in processes.items()),
        *(
            {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
            for (pid, tid), name in threads.items()
        ),
    ]
    events = [
        {
            "name": interval.name,
            "cat": interval.kind,
            "ph": "X",
            "ts": interval.start / 1000,
            "dur": (interval.end - interval.start) / 1000,
            "pid": interval.process,
            "tid": interval.thread,
        }
        for interval in spans
    ]
    return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms"})
