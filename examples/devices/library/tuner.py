"""Tuner of the device ``kernels``: it runs each order of a product's loops, and yields the fastest."""

from __future__ import annotations

import ctypes
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from kernels_device import PRODUCTS, compile_source, product_source

from torchmdla.compiler.artifact import KernelCall
from torchmdla.compiler.records import Record, TunedKernel
from torchmdla.devices.capabilities import Progress

# C that runs a product many times, between which the compiler must not remember memory.
_RUN = """
void run(const float *x, const float *y, float *z, int calls) {{
  for (int call = 0; call < calls; ++call) {{
    {kernel}(x, y, z);
    __asm__ volatile("" ::: "memory");
  }}
}}
"""
_ROUNDS, _ROUND_SECONDS = 5, 0.01
_FASTER = 0.97


def tune_products(
    kernels: Sequence[KernelCall],
    flags: Sequence[str],
    places: Sequence[float],
    seconds: float,
    known: Mapping[str, Record],
    skip: Sequence[str],
    progress: Progress,
) -> Iterator[TunedKernel]:
    """Yield the kernels of a program, the slowest first, and records of its products."""
    until, uses = time.monotonic() + seconds, dict[str, TunedKernel]()
    for kernel, place in zip(kernels, places, strict=True):
        before = uses.get(kernel.symbol)
        count, spent = (before.count, before.seconds) if before else (0, 0.0)
        uses[kernel.symbol] = TunedKernel(kernel.symbol, kernel.loops, count + 1, spent + place)
    for use in sorted(uses.values(), key=lambda use: -use.seconds):
        record = known.get(use.kernel)
        if not use.kernel.startswith("mm_"):
            yield replace(use, reason="it has one order of loops")
        elif use.kernel in skip:
            yield replace(use, reason="measuring it has ended the process")
        elif record is None and time.monotonic() > until:
            yield replace(use, reason="the time was over")
        else:
            yield replace(use, record=record or _measure(use, flags, progress))


def _measure(use: TunedKernel, flags: Sequence[str], progress: Progress) -> Record:
    times: dict[str, float] = {}
    for order in PRODUCTS:
        times[order] = _least_seconds(use.kernel, order, flags)
        progress(use, len(times), next(iter(times.values())) / min(times.values()))
    chosen = next(iter(times.values()))
    best, least = min(times.items(), key=lambda entry: entry[1])
    # A smaller gain may be noise.
    decisions = json.dumps({"order": best}) if least < _FASTER * chosen else ""
    return Record(use.kernel, use.loops, decisions, chosen, least, len(times), finished=True)


def _least_seconds(kernel: str, order: str, flags: Sequence[str]) -> float:
    """Return the least time of a call in some rounds."""
    rows, depth, columns = map(int, kernel.removeprefix("mm_").split("x"))
    matrices = [np.ones(size, np.float32) for size in ((rows, depth), (depth, columns), (rows, columns))]
    pointers = [matrix.ctypes.data_as(ctypes.c_void_p) for matrix in matrices]
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(compile_source(product_source(kernel, order) + _RUN.format(kernel=kernel), *flags))
        file.flush()
        run = ctypes.CDLL(file.name).run

    def seconds(calls: int) -> float:
        begin = time.perf_counter()
        run(*pointers, calls)
        return (time.perf_counter() - begin) / calls

    calls = max(1, int(_ROUND_SECONDS / max(seconds(1), seconds(10))))
    return min(seconds(calls) for _ in range(_ROUNDS))
