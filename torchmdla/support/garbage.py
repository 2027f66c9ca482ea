"""Pauses of Python's garbage collector, which visits all objects of a program several times while a graph is traced."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from torchmdla.support import forks

# The pauses that have not ended.
_pauses = 0


@contextmanager
def pause_collection() -> Iterator[None]:
    """Pause the collection of cyclic garbage until the context ends. Pauses of threads may overlap."""
    global _pauses
    was_enabled = gc.isenabled()
    _pauses += 1
    gc.disable()
    try:
        yield
    finally:
        _pauses -= 1
        if was_enabled:
            gc.enable()


def _end_in_child() -> None:
    """End the pauses of threads that a forked child does not have."""
    global _pauses
    if _pauses:
        gc.enable()
    _pauses = 0


forks.reset_in_child(_end_in_child)
