"""Peak performance of this machine, as a reference for kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

from torchmdla.report.explanation import Peak
from torchmdla.report.machine import Copier, Multiplier

# Bytes read and written: more than the caches hold, so that the copy runs at the speed of memory.
_BYTES = 128 << 20

# Each call takes some milliseconds, and the fastest counts.
_LEAST_REPEATS, _SECONDS = 5, 0.1


def peak() -> Peak:
    """Return the peak for PyTorch's number of threads, which is measured at the first call with that number."""
    return _measured(torch.get_num_threads())


@cache
def _measured(threads: int) -> Peak:
    multiplier, copier = Multiplier(threads), Copier(_BYTES, threads)
    return Peak(
        threads,
        gflops=multiplier.work / _least_seconds(multiplier) * 1e-9,
        gigabytes=copier.work / _least_seconds(copier) * 1e-9,
    )


def _least_seconds(call: Callable[[], object]) -> float:
    taken: list[float] = []
    while len(taken) < _LEAST_REPEATS or sum(taken) < _SECONDS:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)
