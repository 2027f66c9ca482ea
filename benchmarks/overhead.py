"""What a call into a cached group costs, against the same ops scripted without groups, and eager.

The work is as small as work gets (4×4 tensors), so that what is left is the way in and out: checking the inputs,
finding the executable, allocating the outputs. The three ways are timed in turn in one process, each round being
many calls; a round's time is divided by its calls. The functions without groups are optimised before torchmdla is
imported, so that PyTorch's plans for them are its own. ``python benchmarks/overhead.py --help`` shows the options.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

# The least and the median time of a call, in microseconds.
Times = dict[str, float]


def pair(x: Tensor) -> Tensor:
    """Two ops: about the least that makes a group."""
    return torch.sigmoid(torch.relu(x))


def six(x: Tensor) -> Tensor:
    """Six ops in a row."""
    return torch.relu(torch.tanh(torch.relu(x) * 0.5 + 1.0)) - x


def total(*inputs: Tensor) -> Tensor:
    """One op for each input; how the cost grows with the number of inputs."""
    result = torch.relu(inputs[0])
    for tensor in inputs:
        result = result + tensor
    return result


# Name, function, number of its inputs.
CASES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "two ops": (pair, 1),
    "six ops": (six, 1),
    "1 input": (total, 1),
    "10 inputs": (total, 10),
    "100 inputs": (total, 100),
}


def main() -> int:
    options = parse_options()
    torch.set_num_threads(1)
    with torch.no_grad():
        inputs = {name: tuple(torch.randn(4, 4) for _ in range(CASES[name][1])) for name in options.cases}
        scripted = {name: optimise(CASES[name][0], given) for name, given in inputs.items()}
        import torchmdla  # noqa: F401  (switches on)

        results = {}
        for name, given in inputs.items():
            function = CASES[name][0]
            ways = {"group": optimise(function, given), "scripted": scripted[name], "eager": function}
            check(ways, given)
            results[name] = measure(ways, given, options.rounds, options.calls)
    if options.json:
        print(json.dumps({"unit": "µs", "rounds": options.rounds, "calls": options.calls, "cases": results}))
    else:
        show(results)
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The cost of a call into a cached group, in microseconds.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds of each way (%(default)s)")
    parser.add_argument("--calls", type=int, default=1000, help="calls in a round (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser.parse_args()


def optimise(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Any:
    """``function`` traced, and called until PyTorch has optimised it and torchmdla, if imported, compiled it."""
    traced = torch.jit.trace(function, inputs, check_trace=False)
    for _ in range(4):
        traced(*inputs)
    return traced


def check(ways: dict[str, Callable[..., Tensor]], inputs: tuple[Tensor, ...]) -> None:
    """Raises unless all ways agree, one of them in a group that does not fall back, another without any group."""
    import torchmdla
    from torchmdla.testing.compare import assert_matches
    from torchmdla.testing.coverage import groups

    for way in ("group", "scripted"):
        assert_matches(ways[way](*inputs), ways["eager"](*inputs), layers=len(inputs))
        graph = ways[way].graph_for(*inputs)
        if len(groups(graph)) != (way == "group"):
            raise RuntimeError(f"{way}: {len(groups(graph))} groups in\n{graph}")
    if torchmdla.stats().fallbacks:
        raise RuntimeError(f"fell back: {torchmdla.stats().fallbacks}")


def measure(
    ways: dict[str, Callable[..., Tensor]], inputs: tuple[Tensor, ...], rounds: int, calls: int
) -> dict[str, Times]:
    """The times of each way, and as ``overhead`` those of a group over the same ops scripted."""
    from torchmdla.testing.timing import time_calls

    bound = {way: partial(call, *inputs) for way, call in ways.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in bound.items():
            times[way].append(time_calls(call, calls) * 1e6)
    result = {way: {"min": min(taken), "median": statistics.median(taken)} for way, taken in times.items()}
    result["overhead"] = {key: result["group"][key] - result["scripted"][key] for key in ("min", "median")}
    return result


def show(results: dict[str, dict[str, Times]]) -> None:
    table = Table(title="µs for one call, least / median", caption="overhead: a group over the same ops scripted")
    table.add_column("4×4 tensors")
    ways = ("eager", "scripted", "group", "overhead")
    for way in ways:
        table.add_column(way, justify="right")
    for name, result in results.items():
        table.add_row(name, *(f"{result[way]['min']:.2f} / {result[way]['median']:.2f}" for way in ways))
    # Wide enough for the table where the output is not a terminal.
    Console(width=None if sys.stdout.isatty() else 100, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
