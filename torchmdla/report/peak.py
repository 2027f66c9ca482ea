"""What this machine reaches, to measure kernels by."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

from torchmdla.report.explanation import Peak

# A product that the caches feed, a copy that they do not: each takes some milliseconds, and the fastest counts.
_PRODUCT = 512
_COPIED_BYTES = 64 << 20
_LEAST_REPEATS, _SECONDS = 5, 0.1


def peak() -> Peak:
    """Measured at the first call with so many threads."""
    return _measured(torch.get_num_threads())


@cache
def _measured(threads: int) -> Peak:
    with torch.no_grad():
        left, right = torch.ones(_PRODUCT, _PRODUCT), torch.ones(_PRODUCT, _PRODUCT)
        product = torch.empty(_PRODUCT, _PRODUCT)
        source = torch.ones(_COPIED_BYTES, dtype=torch.uint8)
        target = torch.empty_like(source)
        flops, copied = 2 * _PRODUCT**3, 2 * _COPIED_BYTES
        return Peak(
            threads,
            flops / _least_seconds(lambda: torch.mm(left, right, out=product)) * 1e-9,
            copied / _least_seconds(lambda: target.copy_(source)) * 1e-9,
        )


def _least_seconds(call: Callable[[], object]) -> float:
    taken: list[float] = []
    while len(taken) < _LEAST_REPEATS or sum(taken) < _SECONDS:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)
