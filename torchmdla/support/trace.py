"""Spans of time: what a thread of a process was at, from when to when. Kept only while somebody asks for them."""

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
    """``start`` and ``end`` in nanoseconds since 1970, so that those of several processes stand side by side;
    ``process`` and ``thread`` are the system's numbers."""

    name: str
    kind: str
    start: int
    end: int
    process: int
    thread: int
    thread_name: str

    def fields(self) -> tuple[Any, ...]:
        """What makes it again, in JSON's types."""
        return astuple(self)


# Replaced as a whole: who records reads it once.
_recordings: tuple[list[Span], ...] = ()
_lock = threading.RLock()


@contextmanager
def recording() -> Iterator[list[Span]]:
    """The spans that end within the block, in all threads, and in compiler processes that compile for them."""
    global _recordings
    spans: list[Span] = []
    with _lock:
        _recordings = (*_recordings, spans)
    try:
        yield spans
    finally:
        with _lock:
            _recordings = tuple(one for one in _recordings if one is not spans)


def is_on() -> bool:
    """Whether spans are kept."""
    return bool(_recordings)


@contextmanager
def span(name: str, kind: Kind) -> Iterator[None]:
    """A span of the calling thread: the block."""
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
    """Keeps what another process did."""
    found = list(spans)
    for kept in _recordings:
        kept.extend(found)


def chrome_trace(spans: Iterable[Span]) -> str:
    """The spans as JSON that Perfetto and chrome://tracing open (the "Trace Event Format", complete events)."""
    spans = sorted(spans, key=lambda one: (one.start, -one.end))
    own = os.getpid()
    processes = {one.process: "program" if one.process == own else "compiler process" for one in spans}
    threads = {(one.process, one.thread): one.thread_name for one in spans}
    names = [
        *({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in processes.items()),
        *(
            {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
            for (pid, tid), name in threads.items()
        ),
    ]
    events = [
        {
            "name": one.name,
            "cat": one.kind,
            "ph": "X",
            "ts": one.start / 1000,
            "dur": (one.end - one.start) / 1000,
            "pid": one.process,
            "tid": one.thread,
        }
        for one in spans
    ]
    return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms"})
