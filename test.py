"""Run models through torchmdla, compare them with eager, and show the times. ``make demo`` runs this demo.

Each model is traced and compiled with its own cache folder, then again in a second process that finds the artifacts
there. The exit status is 1, with a message, if a model has no group, anything fell back, a result differs from eager's,
or the second process had to compile.

Shares are those of the optimised graph. Ops are its ``aten`` nodes, of which those inside groups count. Floating-point
work compares each group's subgraph, run by eager ops under a counter, with the whole program under the same counter
(see ``torchmdla/testing/coverage.py``). Compile times are those of ``torchmdla.compile`` on the trace: freezing, the
warm-up calls that PyTorch's executor needs, and compiling or reading the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.compare import assert_matches, largest_error
from torchmdla.testing.coverage import count_ops, groups, work_inside, work_of
from torchmdla.testing.models import MODELS, ModelSpec

DEMO = ("resnet18", "mobilenet_v2", "bert", "lstm")


@dataclass
class Compiled:
    """Time and statistics of compiling one model, in this process or in another."""

    seconds: float
    cache_hits: int
    specialisations: int
    fallbacks: dict[str, int]


@dataclass
class Report:
    """Results of one model. ``ops`` and ``work`` are (inside groups, all); times are in seconds."""

    name: str
    groups: int
    ops: tuple[int, int]
    work: tuple[int, int]
    error: float
    cold: Compiled
    eager: list[float]
    torchmdla: list[float]
    warm: Compiled | None = None
    faults: list[str] = field(default_factory=list)


def main() -> int:
    options = parse_options()
    torch.set_num_threads(options.threads)
    # Tracing warns that torch.jit is deprecated, but this demo needs torch.jit.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    if options.from_cache:
        specs = {name: pick(name, options.quick) for name in options.models}
        print(json.dumps({name: asdict(compile_model(spec.build(), spec.inputs())[1]) for name, spec in specs.items()}))
        return 0
    with tempfile.TemporaryDirectory(prefix="torchmdla-demo-") as folder:
        os.environ["TORCHMDLA_CACHE_DIR"] = folder
        reports = [
            examine(name, pick(name, options.quick), rounds=3 if options.quick else 9) for name in options.models
        ]
        add_second_process(reports, options)
    for report in reports:
        report.faults += find_faults(report)
    show(reports, options)
    return int(any(report.faults for report in reports))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Runs models through torchmdla, compares them with eager and shows what it took."
    )
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(DEMO), metavar="NAME", help=f"any of: {', '.join(MODELS)}"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of each op (all cores)")
    parser.add_argument("--quick", action="store_true", help="reduced models, three rounds")
    parser.add_argument("--from-cache", action="store_true", help=argparse.SUPPRESS)  # option of the second process
    return parser.parse_args()


def pick(name: str, quick: bool) -> ModelSpec:
    return MODELS[name].reduced() if quick else MODELS[name]


def compile_model(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Any, Compiled]:
    """Return the traced and compiled model, and its statistics. The trace is not checked: that would compile, too."""
    traced = torch.jit.trace(module, inputs, check_trace=False)
    torchmdla.reset_stats()
    start = time.perf_counter()
    compiled = torchmdla.compile(traced, *inputs)
    seconds = time.perf_counter() - start
    stats = torchmdla.stats()
    return compiled, Compiled(seconds, stats.cache_hits, stats.specialisations, stats.fallbacks | stats.left_out)


def examine(name: str, spec: ModelSpec, rounds: int) -> Report:
    """Compile one model, compare it with eager and time both."""
    print(f"{name} …", file=sys.stderr, flush=True)
    module, inputs = spec.build(), spec.inputs()
    compiled, cold = compile_model(module, inputs)
    with torch.no_grad():
        expected, actual = module(*inputs), compiled(*inputs)
        eager, ours = interleaved(rounds, lambda: module(*inputs), lambda: compiled(*inputs))
        graph = torchmdla.graph_for(compiled, *inputs)
    cold.fallbacks = torchmdla.stats().fallbacks | torchmdla.stats().left_out
    report = Report(
        name=name,
        groups=len(groups(graph)),
        ops=count_ops(graph),
        work=(work_inside(graph, compiled, *inputs), work_of(compiled, *inputs)),
        error=largest_error(actual, expected),
        cold=cold,
        eager=eager,
        torchmdla=ours,
    )
    try:
        assert_matches(actual, expected, layers=spec.layers)
    except AssertionError as difference:
        report.faults.append(f"differs from eager: {difference}")
    return report


def interleaved(rounds: int, *functions: Callable[[], object]) -> list[list[float]]:
    """Return the seconds of every call of each function, in turn, so that a slow phase of the machine affects all."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return times


def add_second_process(reports: list[Report], options: argparse.Namespace) -> None:
    """Compile every model again in a new process, which finds this one's artifacts on disk."""
    command = [sys.executable, str(Path(__file__)), "--from-cache", "--threads", str(options.threads)]
    command += ["--quick"] * options.quick + ["--models", *options.models]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the second process failed:\n{done.stdout}{done.stderr}")
    results = json.loads(done.stdout.splitlines()[-1])
    for report in reports:
        report.warm = Compiled(**results[report.name])


def find_faults(report: Report) -> list[str]:
    """Return the faults of one model in words; an empty list without faults."""
    warm = report.warm
    conditions = {
        "no group was formed": not report.groups,
        "nothing was compiled": not report.cold.specialisations,
        f"fell back: {report.cold.fallbacks}": bool(report.cold.fallbacks),
        "the second process did not use the cache": warm is not None and not warm.cache_hits,
        f"the second process fell back: {warm and warm.fallbacks}": warm is not None and bool(warm.fallbacks),
    }
    return [fault for fault, holds in conditions.items() if holds]


def show(reports: list[Report], options: argparse.Namespace) -> None:
    # Wide enough for the table if the output is not a terminal.
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    size = "reduced models" if options.quick else "full-size models"
    table = Table(
        title=f"torchmdla against eager: {size}, {options.threads} thread(s); times are least / median",
        caption="error: the largest, relative to the largest output; speed: eager's least time over torchmdla's;\n"
        "the first model's compile times include loading the compiler's modules, once for each process",
    )
    table.add_column("model")
    for column in ("groups", "ops\ninside", "work\ninside", "compile\ncold, s", "from\ncache, s", "error"):
        table.add_column(column, justify="right")
    for column in ("eager, ms", "torchmdla, ms", "speed", "result"):
        table.add_column(column, justify="right")
    for report in reports:
        table.add_row(*cells(report))
    console.print(table)
    for report in reports:
        for fault in report.faults:
            console.print(f"{report.name}: {fault}", style="red", markup=False)


def cells(report: Report) -> list[str]:
    return [
        report.name,
        str(report.groups),
        share(report.ops),
        share(report.work),
        f"{report.cold.seconds:.2f}",
        f"{report.warm.seconds:.2f}" if report.warm else "",
        f"{report.error:.1e}",
        milliseconds(report.eager),
        milliseconds(report.torchmdla),
        f"{min(report.eager) / min(report.torchmdla):.2f}×",
        "[red]wrong[/red]" if report.faults else "[green]right[/green]",
    ]


def share(part: tuple[int, int]) -> str:
    inside, whole = part
    return f"{inside / whole:.1%}" if whole else "none"


def milliseconds(times: list[float]) -> str:
    return f"{min(times) * 1e3:.2f} / {statistics.median(times) * 1e3:.2f}"


if __name__ == "__main__":
    sys.exit(main())
