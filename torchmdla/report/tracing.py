"""Phases of compiling as a Chrome trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchmdla.support import trace


@contextmanager
def trace_compiles(path: str | Path) -> Iterator[None]:
    """Writes what is compiled within the block, in all threads, to ``path`` when it ends: importing, every stage and
    pass of the compiler and loading, with their times, as a trace that https://ui.perfetto.dev and
    ``chrome://tracing`` open. Of a program that is found in memory or on disk there is no more than that.

    Raises:
        OSError: ``path`` cannot be written; said before the block runs.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        try:
            with trace.recording() as spans:
                yield
        finally:
            file.write(trace.chrome_trace(spans))
