"""Progress bar for long compilations."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

# Seconds before a bar appears, and between two reads of the counts.
_DELAY = 1.0
_INTERVAL = 0.2


@contextmanager
def show_progress(counts: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Show a bar on a terminal once the block has run for a second.

    Args:
        counts: function that returns the numbers of ``groups`` formed and ``specialisations`` compiled so far in this
            process.
    """
    if not sys.stderr.isatty():
        yield
        return
    finished = threading.Event()
    thread = threading.Thread(target=_show, args=(finished, counts, counts()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _show(finished: threading.Event, counts: Callable[[], Mapping[str, Any]], before: Mapping[str, Any]) -> None:
    if finished.wait(_DELAY):
        return
    with tqdm(desc="torchmdla: compiling", unit="group", leave=False) as bar:
        while not finished.wait(_INTERVAL):
            now = counts()
            bar.total = now["groups"] - before["groups"]
            bar.n = min(bar.total, now["specialisations"] - before["specialisations"])
            bar.refresh()
