"""Measure how time and memory grow with the length of a program: generated programs of ten shapes, a process each.

A program of a given number of operators is scripted and called until it runs compiled. The benchmark measures processor
time, by stage: `capture` (PyTorch's optimiser with the pass that forms groups, and the call that records), `import`
(graphs become programs) and `compile` (the compiler process, and waiting for it). `torch` is the time of the same calls
without torchmdla. With --stages, more tables show the stages of the compile. Memory is the peak resident set less that
before the calls, and that of the compiler process so far.

Seconds are those at the processor's full speed (``harness/speed.py``). A virtual processor shares its core, so the same
work may last twice as long at other times.

A curve grows too fast if a program of twice the length lasts more than 2.3 times as long. Times below a tenth of a
second are ignored. With --check, the exit status is 1 in this case. It is always 1 if something fell back.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from harness import children, output
from harness.speed import Span, SpeedLog, speed_log

# Maximum ratio of the time of a program of twice the length.
MOST = 2.3
# Smaller values of seconds and MiB are ignored.
LEAST = {"seconds": 0.1, "MiB": 20.0}

# Operators of the first program of a process, which starts the compiler and performs all imports.
_WARMING_UP = 50

STAGES = ("torch", "capture", "import", "compile")

# Lines of a function of ``x`` and the parameters ``p0``, ``p1``, …, and its result; about the given number of
# operators.
Lines = tuple[list[str], str]
Row = dict[str, Any]


def branches(operators: int) -> Lines:
    """Return nested branches of five operators each, down to a depth of 40 and again."""
    lines = ["y = x"]
    for i in range(operators // 5):
        depth = i % 40
        lines += ["    " * depth + f"if int(x.size(0)) > {i}:", "    " * (depth + 1) + "y = torch.tanh(y * 1.5 + x)"]
    return lines, "y"


SHAPES: dict[str, Callable[[int], Lines]] = {
    "integer chains": lambda n: (["m = x.size(0)", "n = m", *["m, n = n, m - n"] * n], "torch.relu(x * n + 1)"),
    "in-place writes": lambda n: (
        ["y = x.clone()", *(f"y[{i % 4}] += x[{i % 3}] * 0.5" for i in range(n // 4))],
        "y * 2 + 1",
    ),
    "random operators": lambda n: (["y = x", *["y = torch.relu(torch.bernoulli(y)) * 0.5"] * (n // 3)], "y"),
    "views of views": lambda n: (["y = x * 2", *["y = y.unsqueeze(0).transpose(1, 2)[0]"] * (n // 3)], "y + 1"),
    "deep branches": branches,
    "wide concatenations": lambda n: ([], f"torch.cat([{', '.join(f'x * {i % 9}.5' for i in range(n))}])"),
    "long loops": lambda n: (["y = x", "for i in range(3):", *["    y = torch.relu(y * 0.5) - x"] * (n // 3)], "y"),
    "many outputs": lambda n: ([], ", ".join(f"x * {i % 9}.5 + 1" for i in range(n // 2))),
    "many parameters": lambda n: (["y = x", *(f"y = y * p{i} + x" for i in range(n // 2))], "y"),
    "many small groups": lambda n: (["y = x", *["y = torch.special.i0e(torch.relu(y) * 2.0 + 1)"] * (n // 4)], "y"),
}


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--shapes", type=output.one_of(SHAPES), help=f"of {','.join(SHAPES)} (all)")
    parser.add_argument("--operators", type=output.numbers, help="of the programs (125,250,500,1000,2000,4000)")
    parser.add_argument("--repeat", type=output.number, default=1, help="of which the least counts (%(default)s)")
    parser.add_argument("--stages", action="store_true", help="tell the stages of compiling, too")
    parser.add_argument("--check", action="store_true", help="end with status 1 where a curve grows too fast")
    options = parser.parse_args()
    output.fill_in(
        options,
        {
            True: {"shapes": ["many outputs"], "operators": [20, 40]},
            False: {"shapes": list(SHAPES), "operators": [125, 250, 500, 1000, 2000, 4000]},
        },
    )
    curves: dict[str, list[Row]] = {}
    with output.progress(len(options.shapes) * options.repeat * 2, "process") as bar, speed_log() as log:
        for shape in options.shapes:
            runs = [measure_once(shape, options.operators, log, bar) for _ in range(options.repeat)]
            loop = log.fastest
            curves[shape] = [row_of(shape, k, runs, loop) for k in range(len(options.operators))]
            rows = [row for curve in curves.values() for row in curve]
            output.write_json(options.json, {"benchmark": "scaling", "rows": rows})
    show(curves)
    if options.stages:
        show_stages(curves)
    faults = [f"{row['shape']}, {row['operators']}: fell back: {row['fallbacks']}" for row in rows if row["fallbacks"]]
    fast = [f"{shape}: {stage} grows too fast" for shape, curve in curves.items() for stage in too_fast(curve)]
    output.show(*faults, *fast)
    return int(bool(faults or (options.check and fast)))


def measure_once(shape: str, operators: list[int], log: SpeedLog, bar: Any) -> dict[str, Any]:
    """Measure once without torchmdla and once with it, in two processes."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        for way, enabled in (("torch", "0"), ("torchmdla", "1")):
            bar.set_postfix_str(f"{shape}, {way}")
            variables = {"TORCHMDLA_ENABLE": enabled, "TORCHMDLA_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
            task = {"shape": shape, "operators": operators, "log": asdict(log)}
            results[way] = children.run("scaling:measure", task, variables)
            bar.update()
    return results


def measure(shape: str, operators: list[int], log: dict[str, Any]) -> list[dict[str, Any]]:
    """Call programs in this process until they are optimised and, if torchmdla is on, compiled."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    speeds = SpeedLog(**log)
    speeds.pin()  # after the import of torch, which undoes it
    measure_program(shape, _WARMING_UP, speeds)
    for process in children_of(os.getpid()):
        speeds.pin(process)
    rows = []
    for count in operators:
        children.step(f"{shape}: {count}")
        rows.append({"operators": count, **measure_program(shape, count, speeds)})
    return rows


def measure_program(shape: str, operators: int, speeds: SpeedLog) -> dict[str, Any]:
    """Return the work, in loops of ``speeds``, and the memory of calling one program until it is compiled."""
    import memory
    import torch

    import torchmdla
    from torchmdla.capture.script_subgraph import ScriptSubgraph
    from torchmdla.compile_service import service

    function = script_program(*SHAPES[shape](operators))
    x = torch.linspace(0.1, 0.9, 16).view(4, 4)
    imports, waits, calls = list[Span](), list[Span](), list[Span]()
    torchmdla.reset_stats()
    known = service.default_service().stages()
    # Return free memory to the system: otherwise a program that reuses it would seem to need none.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    memory.forget_peak()
    base = memory.peak()
    with (
        torch.no_grad(),
        record_spans(ScriptSubgraph, "import_program", imports),
        record_spans(service, "compile_program", waits, seconds_of_all),
    ):
        for _ in range(4):
            with span_of(calls, seconds_of_all):
                function(x)
    stats = torchmdla.stats()
    importing, waiting, total = map(speeds.loops, (imports, waits, calls))
    return {
        "loops": {
            "capture": total - importing - waiting,
            "import": importing,
            "compile": waiting,
        },
        "MiB": {"process": memory.peak() - base, "compiler": memory.peak_of_children()},
        "groups": stats.groups,
        "fallbacks": stats.fallbacks,
        "stages": {name: taken - known.get(name, 0.0) for name, taken in service.default_service().stages().items()},
    }


def script_program(lines: list[str], result: str) -> Any:
    """Return a scripted module of these lines, with the parameters that they name."""
    import torch

    body = "".join(f"    {line}\n" for line in [*lines, f"return {result}"])
    module = type("Program", (torch.nn.Module,), {})()
    while f"p{len(list(module.parameters()))} " in body:
        module.register_parameter(f"p{len(list(module.parameters()))}", torch.nn.Parameter(torch.ones(4)))
    compiled = torch.jit.script(module)
    named = body.replace(" p", " self.p") if list(module.parameters()) else body
    compiled.define(f"def forward(self, x):\n{named}")
    return compiled


@contextmanager
def record_spans(
    owner: Any, name: str, spans: list[Span], seconds: Callable[[], float] = time.process_time
) -> Iterator[None]:
    """Add the time of each call of a function to ``spans``, as ``seconds`` counts it."""
    function = getattr(owner, name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        with span_of(spans, seconds):
            return function(*arguments, **keywords)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, function)


@contextmanager
def span_of(spans: list[Span], seconds: Callable[[], float]) -> Iterator[None]:
    """Add the time of a block to ``spans``, as ``seconds`` counts it."""
    start, before = time.monotonic(), seconds()
    try:
        yield
    finally:
        spans.append(Span(start, time.monotonic(), seconds() - before))


def seconds_of_all() -> float:
    """Return the processor time of this process and of its compiler processes. Reading it is slow."""
    return time.process_time() + seconds_of_children()


def seconds_of_children() -> float:
    """Return the processor time of the children of this process, including that of their children."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = 0.0
    for process in children_of(os.getpid()):
        with open(f"/proc/{process}/stat") as stat:
            seconds += sum(map(int, stat.read().rpartition(")")[2].split()[11:15])) / ticks
    return seconds


def children_of(process: int) -> list[int]:
    """Return the running processes that the main thread of ``process`` has started."""
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(child) for child in file.read().split()]


def row_of(shape: str, place: int, runs: list[dict[str, Any]], loop: float) -> Row:
    """Return the minimum of each figure of the program at a place among the lengths.

    ``loop`` is the number of seconds of a loop.
    """
    alone, ours = ([run[way][place] for run in runs] for way in ("torch", "torchmdla"))

    def least(measured: list[dict[str, Any]], kind: str, name: str) -> float:
        return float(min(measurement[kind][name] for measurement in measured))

    seconds = {stage: loop * least(ours, "loops", stage) for stage in STAGES[1:]}
    return {
        "shape": shape,
        "operators": ours[0]["operators"],
        "seconds": {"torch": loop * least(alone, "loops", "capture"), **seconds},
        "MiB": {
            "torch": least(alone, "MiB", "process"),
            "process": least(ours, "MiB", "process"),
            "compiler": least(ours, "MiB", "compiler"),
        },
        "groups": ours[0]["groups"],
        "fallbacks": ours[0]["fallbacks"],
        "stages": ours[0]["stages"],
    }


def growth(curve: list[Row], kind: str, name: str) -> float:
    """Return the maximum growth for a doubling, among figures that are large enough; 0 if all are too small."""
    growths = [0.0]
    for shorter, longer in itertools.pairwise(curve):
        before, after = max(shorter[kind][name], LEAST[kind] / MOST), longer[kind][name]
        doublings = longer["operators"] / shorter["operators"] / 2
        if after >= LEAST[kind]:
            growths.append(after / before / doublings)
    return max(growths)


def too_fast(curve: list[Row]) -> list[str]:
    """Return the stages that grow too fast.

    Most of capture is PyTorch's, so it may grow as it does without torchmdla.
    """
    figures = [("seconds", stage) for stage in STAGES[1:]] + [("MiB", "process"), ("MiB", "compiler")]
    most = {"capture": max(MOST, growth(curve, "seconds", "torch"))}
    return [name for kind, name in figures if growth(curve, kind, name) > most.get(name, MOST)]


def show(curves: dict[str, list[Row]]) -> None:
    """Print a table of each figure at the maximum length, and of the maximum growth for a doubling."""
    figures = [*(("seconds", stage) for stage in STAGES), ("MiB", "torch"), ("MiB", "process"), ("MiB", "compiler")]
    table = output.table(
        "Seconds of the processor and MiB of the longest program, and the greatest growth for a doubling",
        ("shape", "operators", "groups", *(f"{name}, {'s' if kind == 'seconds' else kind}" for kind, name in figures)),
        "torch: the same calls without torchmdla; process: beyond what it had before",
    )
    for shape, curve in curves.items():
        longest = curve[-1]
        cells = (f"{longest[kind][name]:.{2 if kind == 'seconds' else 0}f}" for kind, name in figures)
        grown = (f" ({growth(curve, kind, name):.1f})" if growth(curve, kind, name) else "" for kind, name in figures)
        joined = (cell + factor for cell, factor in zip(cells, grown, strict=True))
        table.add_row(shape, str(longest["operators"]), str(longest["groups"]), *joined)
    output.show(table)


def show_stages(curves: dict[str, list[Row]]) -> None:
    """Print the stages of compiling for each length."""
    for shape, curve in curves.items():
        stages = list(curve[-1]["stages"])
        table = output.table(f"Seconds of each stage of compiling, {shape}", ("operators", *stages))
        for row in curve:
            table.add_row(str(row["operators"]), *(f"{row['stages'].get(stage, 0.0):.2f}" for stage in stages))
        output.show(table)


if __name__ == "__main__":
    sys.exit(main())
