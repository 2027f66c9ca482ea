"""Partition of a kernel's range between threads, exactly as the runtime makes it.

``mdla_parallel_for`` (``src/runtime/device_calls.cpp``) is ``at::parallel_for``. It divides the range into contiguous
chunks of equal length, one for each thread, of at least ``grain`` iterations. An iteration is a block of the leading
loops, in row-major order. The last block of a loop may be shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

# The cycles to start and to join threads that wait for work: in all, and for each of them.
_JOIN_COST, _THREAD_COST = 2_500.0, 250.0

# The cycles in which threads that run a common entry wait for each other: in all, and for each of them.
_BARRIER_COST, _LINE_COST = 400.0, 40.0

# For each loop of a range, its iterations and the iterations in a block.
StaticBlocks = Sequence[tuple[int, int]]


def join_cycles(threads: int) -> float:
    """Return the cycles to start and to join the threads that share a range."""
    return _JOIN_COST + _THREAD_COST * threads


def barrier_cycles(threads: int) -> float:
    """Return the cycles in which threads of a common entry learn of each other's progress."""
    return _BARRIER_COST + _LINE_COST * threads


def count_tasks(iterations: int, grain: int, threads: int) -> int:
    """Return the number of chunks of a range that run at the same time; 1 if the calling thread runs all of it."""
    return -(-iterations // chunk_size(iterations, grain, threads)) if iterations else 1


def chunk_size(iterations: int, grain: int, threads: int) -> int:
    """Return the number of iterations in the chunk of a thread; all of them if the calling thread runs the range."""
    if not grain or iterations <= grain:
        return max(iterations, 1)
    return -(-iterations // min(threads, -(-iterations // grain)))


def largest_share(blocks: StaticBlocks, grain: int, threads: int) -> float:
    """Return the part of a range's work that the busiest of ``threads`` threads does."""
    iterations = math.prod(-(-size // step) for size, step in blocks)
    tasks = count_tasks(iterations, grain, threads)
    if tasks == 1:
        return 1.0
    chunk = chunk_size(iterations, grain, threads)
    ends = [_work_before(blocks, min(iterations, k * chunk)) for k in range(tasks + 1)]
    return max(end - begin for begin, end in pairwise(ends)) / ends[-1]


def _work_before(blocks: StaticBlocks, block: int) -> int:
    """Return the work of the first blocks of a range, up to number ``block``: iterations of all loops together."""
    if not blocks:
        return block
    (size, step), *inner = blocks
    whole, rest = divmod(block, math.prod(-(-n // k) for n, k in inner))
    done = min(whole * step, size)
    partial = min(step, size - done) * _work_before(inner, rest) if rest else 0
    return done * math.prod(n for n, _ in inner) + partial
