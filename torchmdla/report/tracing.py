"""Chrome trace of the phases of compilation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchmdla.support import trace


@contextmanager
def trace_compiles(path: str | Path) -> Iterator[None]:
    """Write a trace of all compilations within the block, in all threads, to ``path`` when it ends.

    The trace has importing, every stage and pass of the compiler, and loading, with their times.
    https://ui.perfetto.dev and ``chrome://tracing`` open it. A program that is found in memory or on disk has only that
    lookup in the trace.

    Raises:
        OSError: ``path`` cannot be written; this is raised before the block runs.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        try:
            with trace.recording() as spans:
                yield
        finally:
            file.write(trace.chrome_trace(spans))
