"""Compile times: how long until a model runs compiled, cold and from the cache, each in a process of its own.

What is timed is torchmdla.compile on the trace: freezing, the calls that PyTorch's executor needs, and compiling. The
same freezing and calls without torchmdla are timed in a third process; what torchmdla adds is the difference, and that
is what the marks are for. The process that compiles cold also starts the compiler and loads its modules; one that finds
all in the cache need not.

With --stages more tables tell the stages of the compile (docs/architecture.md, "Compile time"), those of the cold
process whose compiler was the fastest. With --check it ends with status 1 where a mark is missed. It always does where
a second process compiled anything, or anything fell back.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from typing import Any

from harness import children, output

# Seconds that torchmdla may add, cold and from the cache, on two cores.
MARKS = {"resnet50": {"cold": 4.0, "cached": 0.3}}

Row = dict[str, Any]


def main() -> int:
    from torchmdla.testing.models import MODELS

    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), help=f"of {','.join(MODELS)} (all)")
    parser.add_argument("--threads", type=output.number, default=os.cpu_count(), help="of each op (%(default)s)")
    parser.add_argument("--repeat", type=output.number, help="measurements of each, of which the least counts (3)")
    parser.add_argument("--stages", action="store_true", help="tell the stages of compiling, too")
    parser.add_argument("--check", action="store_true", help="end with status 1 where a mark is missed")
    options = parser.parse_args()
    models = options.models or (["mlp"] if options.quick else list(MODELS))
    repeat = options.repeat or (1 if options.quick else 3)
    rows: list[Row] = []
    with output.progress(len(models) * repeat * 3, "process") as bar:
        for model in models:
            runs = [measure_once(model, options.threads, options.quick, bar) for _ in range(repeat)]
            rows.append(row_of(model, runs))
            output.write_json(options.json, {"benchmark": "compile_time", "quick": options.quick, "rows": rows})
    show(rows)
    if options.stages:
        show_stages(rows)
    missed = [f"{row['model']}: {fault}" for row in rows for fault in row["missed"]]
    faults = [f"{row['model']}: {fault}" for row in rows for fault in row["faults"]]
    output.show(*missed, *faults)
    return int(bool(faults or (options.check and missed)))


def measure_once(model: str, threads: int, quick: bool, bar: Any) -> dict[str, Any]:
    """One measurement of each of the three, in three processes; cold and cached share a new cache folder."""
    task = {"model": model, "threads": threads, "quick": quick}
    found = {}
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        for name, enabled in (("without", "0"), ("cold", "1"), ("cached", "1")):
            bar.set_postfix_str(f"{model}, {name}")
            variables = {"TORCHMDLA_ENABLE": enabled, "TORCHMDLA_CACHE_DIR": folder, "OMP_NUM_THREADS": str(threads)}
            found[name] = children.run("compile_time:measure", task, variables)
            bar.update()
    return found


def measure(model: str, threads: int, quick: bool) -> dict[str, Any]:
    """Compiles one model in this process."""
    import torch

    import torchmdla
    from torchmdla.compile_service.service import default_service
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    spec = MODELS[model].reduced() if quick else MODELS[model]
    module, inputs = spec.build(), spec.inputs()
    with torch.no_grad():
        module(*inputs)  # what libraries set up in their first call is not what is measured
        traced = torch.jit.trace(module, inputs, check_trace=False)
    torchmdla.reset_stats()
    start = time.perf_counter()
    torchmdla.compile(traced, *inputs)
    seconds = time.perf_counter() - start
    stats = torchmdla.stats()
    return {
        "seconds": seconds,
        "compiler_seconds": stats.compile_seconds,
        "compiled": stats.compiled,
        "cache_hits": stats.cache_hits,
        "fallbacks": stats.fallbacks,
        "stages": default_service().stages(),
    }


def row_of(model: str, runs: list[dict[str, Any]]) -> Row:
    """The least of each time, and what is wrong."""
    seconds = {name: min(run[name]["seconds"] for run in runs) for name in ("without", "cold", "cached")}
    added = {name: seconds[name] - seconds["without"] for name in ("cold", "cached")}
    first = runs[0]
    found = {
        "nothing was compiled": not first["cold"]["compiled"],
        "the second process compiled": bool(first["cached"]["compiled"]),
        f"fell back: {first['cold']['fallbacks']}": bool(first["cold"]["fallbacks"]),
        f"fell back from the cache: {first['cached']['fallbacks']}": bool(first["cached"]["fallbacks"]),
    }
    return {
        "model": model,
        "seconds": seconds,
        "added": added,
        "compiler_seconds": min(run["cold"]["compiler_seconds"] for run in runs),
        "programs": first["cold"]["compiled"],
        "runs": runs,
        "missed": [
            f"{name}: {added[name]:.2f} s added, the mark is {mark} s"
            for name, mark in MARKS.get(model, {}).items()
            if added[name] > mark
        ],
        "faults": [fault for fault, holds in found.items() if holds],
    }


def show(rows: list[Row]) -> None:
    columns = ("model", "programs", "without", "cold", "cached", "compiler", "added cold", "added cached", "marks")
    table = output.table(
        "Seconds until a model runs compiled",
        columns,
        "without: freezing and the same calls with torchmdla off; compiler: waiting for it, cold; added: to without",
    )
    for row in rows:
        table.add_row(
            row["model"],
            str(row["programs"]),
            *(f"{seconds:.2f}" for seconds in row["seconds"].values()),
            f"{row['compiler_seconds']:.2f}",
            *(f"{seconds:.2f}" for seconds in row["added"].values()),
            "" if row["model"] not in MARKS else "missed" if row["missed"] else "met",
        )
    output.show(table)


def show_stages(rows: list[Row]) -> None:
    """What the compiler's seconds are made of; what is left waits for its process and tells it the program."""
    for row in rows:
        fastest = min((run["cold"] for run in row["runs"]), key=lambda run: run["compiler_seconds"])
        stages = {**fastest["stages"]}
        stages["start"] = fastest["compiler_seconds"] - sum(stages.values())
        table = output.table(f"Seconds of each stage, {row['model']}", tuple(stages))
        table.add_row(*(f"{seconds:.2f}" for seconds in stages.values()))
        output.show(table)


if __name__ == "__main__":
    sys.exit(main())
