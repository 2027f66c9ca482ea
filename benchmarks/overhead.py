"""Measure the cost of a call into a cached group, compared with the same ops scripted without groups, and with eager.

The work is minimal (4×4 tensors), so that the cost of entry and exit remains: checking the inputs, finding the
executable, allocating the outputs. The three variants are timed in turn in one process. Each round has many calls; its
time is divided by their number. The functions without groups are optimised before torchmdla is imported, so that their
execution plans are PyTorch's own. The first row is a function that returns its input: the cost of a call from Python
without any op.

A second table shows calls per second of threads that call one group at the same time, relative to those of one thread.
A loop in TorchScript calls it, because calls from Python wait for Python's lock. ``python benchmarks/overhead.py
--help`` shows the options.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from harness import output
from torch import Tensor, nn

# The minimum and the median time of a call, in microseconds.
Times = dict[str, float]


def empty(x: Tensor) -> Tensor:
    """Compute no op."""
    return x


def pair(x: Tensor) -> Tensor:
    """Compute two ops: about the minimum for a group."""
    return torch.sigmoid(torch.relu(x))


def six(x: Tensor) -> Tensor:
    """Compute six ops in a row."""
    return torch.relu(torch.tanh(torch.relu(x) * 0.5 + 1.0)) - x


def total(*inputs: Tensor) -> Tensor:
    """Compute one op for each input, to show how the cost grows with the number of inputs."""
    result = torch.relu(inputs[0])
    for tensor in inputs:
        result = result + tensor
    return result


def repeat(x: Tensor, times: int) -> Tensor:
    """Compute six ops as often as ``times``."""
    for _ in range(times):
        x = six(x)
    return x


# The same, with a group in each iteration. A loop of a known number of iterations would be unrolled.
REPEAT = """
def repeat(x, times: int):
    while times > 0:
        x = torch.relu(torch.tanh(torch.relu(x) * 0.5 + 1.0)) - x
        times -= 1
    return x
"""

EMPTY = "no op"
LAYERS = nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(4, 4), nn.ReLU())])

# Name, function, number of its inputs.
CASES: dict[str, tuple[Callable[..., Tensor], int]] = {
    EMPTY: (empty, 1),
    "two ops": (pair, 1),
    "six ops": (six, 1),
    "1 input": (total, 1),
    "10 inputs": (total, 10),
    "100 inputs": (total, 100),
    "40 parameters": (LAYERS, 1),
}


def main() -> int:
    options = parse_options()
    torch.set_num_threads(1)
    with torch.no_grad():
        inputs = {name: tuple(torch.randn(4, 4) for _ in range(CASES[name][1])) for name in options.cases}
        scripted = {name: optimise(CASES[name][0], tensors) for name, tensors in inputs.items()}
        loops = {"scripted": optimised_loop()}
        import torchmdla  # noqa: F401  (switches on)

        results = {}
        for name, tensors in inputs.items():
            function = CASES[name][0]
            ways = {"group": optimise(function, tensors), "scripted": scripted[name], "eager": function}
            check(ways, tensors, groups_expected=int(name != EMPTY))
            results[name] = measure(ways, tensors, options.rounds, options.calls)
        loops["group"] = optimised_loop()
        check({**loops, "eager": repeat}, (torch.randn(4, 4), 3), groups_expected=1)
        rates = measure_threads(loops, range(1, options.threads + 1), options.rounds, options.calls)
    if options.json:
        print(
            json.dumps(
                {"unit": "µs", "rounds": options.rounds, "calls": options.calls, "cases": results, "threads": rates}
            )
        )
    else:
        show(results, rates)
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The cost of a call into a cached group, in microseconds.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds of each way (%(default)s)")
    parser.add_argument("--calls", type=int, default=1000, help="calls in a round (%(default)s)")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="most that call (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_args()


def optimise(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Any:
    """Return ``function`` traced and warmed up.

    The calls let PyTorch optimise it and torchmdla, if imported, compile it.
    """
    traced = torch.jit.trace(function, inputs, check_trace=False)
    for _ in range(4):
        traced(*inputs)
    return traced


def optimised_loop() -> Any:
    """Return a new ``repeat``, after calls until it is optimised and compiled."""
    loop = torch.jit.CompilationUnit(REPEAT).repeat
    for _ in range(4):
        loop(torch.zeros(4, 4), 3)
    return loop


def check(ways: dict[str, Callable[..., Tensor]], inputs: tuple[Any, ...], groups_expected: int) -> None:
    """Raise an error unless all variants agree.

    "group" must have groups that do not fall back, and "scripted" must not have groups.
    """
    import torchmdla
    from torchmdla.testing.compare import assert_matches
    from torchmdla.testing.coverage import groups

    for way in ("group", "scripted"):
        assert_matches(ways[way](*inputs), ways["eager"](*inputs), layers=len(inputs))
        graph = ways[way].graph_for(*inputs)
        if len(groups(graph)) != (groups_expected if way == "group" else 0):
            raise RuntimeError(f"{way}: {len(groups(graph))} groups in\n{graph}")
    if torchmdla.stats().fallbacks:
        raise RuntimeError(f"fell back: {torchmdla.stats().fallbacks}")


def measure(
    ways: dict[str, Callable[..., Tensor]], inputs: tuple[Tensor, ...], rounds: int, calls: int
) -> dict[str, Times]:
    """Return the times of each variant. ``overhead`` is the time of a group less that of the same ops scripted."""
    from torchmdla.testing.timing import time_calls

    bound = {way: partial(call, *inputs) for way, call in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in bound.items():
            times[way].append(time_calls(call, calls) * 1e6)
    result = {way: {"min": min(taken), "median": statistics.median(taken)} for way, taken in times.items()}
    result["overhead"] = {key: result["group"][key] - result["scripted"][key] for key in ("min", "median")}
    return result


def measure_threads(
    loops: dict[str, Callable[..., Tensor]], threads: Iterable[int], rounds: int, calls: int
) -> dict[str, dict[int, float]]:
    """Return the maximum calls per second of all rounds, by variant and number of threads."""
    rates = {way: dict.fromkeys(threads, 0.0) for way in loops}
    for _ in range(rounds):
        for way, loop in loops.items():
            for count in rates[way]:
                rates[way][count] = max(rates[way][count], rate(loop, count, 50 * calls))
    return rates


def rate(loop: Callable[..., Tensor], threads: int, calls: int) -> float:
    """Return calls per second of threads that start together, from the first start to the last end."""
    begin = threading.Barrier(threads)

    def call(_: int) -> tuple[float, float]:
        x = torch.zeros(4, 4)
        with torch.no_grad():
            begin.wait()
            start = time.perf_counter()
            loop(x, calls)
            return start, time.perf_counter()

    with ThreadPoolExecutor(threads) as pool:
        starts, ends = zip(*pool.map(call, range(threads)), strict=True)
    return threads * calls / (max(ends) - min(starts))


def show(results: dict[str, dict[str, Times]], rates: dict[str, dict[int, float]]) -> None:
    ways = ("eager", "scripted", "group", "overhead")
    calls = output.table(
        "µs for one call, least / median", ("4×4 tensors", *ways), "overhead: a group over the same ops scripted"
    )
    for name, result in results.items():
        calls.add_row(name, *(f"{result[way]['min']:.2f} / {result[way]['median']:.2f}" for way in ways))
    threads = output.table(
        "Calls a second of threads together, in millions, and over those of one thread", ("threads", *rates)
    )
    for count in next(iter(rates.values())):
        cells = (f"{by_count[count] / 1e6:.2f} / {by_count[count] / by_count[1]:.2f}" for by_count in rates.values())
        threads.add_row(str(count), *cells)
    output.show(calls, threads)


if __name__ == "__main__":
    sys.exit(main())
