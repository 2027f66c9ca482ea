"""Measure latencies of calls while the next version of a model is loaded and warmed up in the serving process.

A process calls a ``torchmdla.ReloadingModel`` without a pause, while another of its threads reloads the file again and
again. The table compares latencies of calls during a reload with those of all others. PyTorch's row uses the frozen
file, ``torch.jit.load``, and torchmdla switched off. torchmdla's rows use that file with its code in the cache, and a
package with packed weights. Each runs with a thread for each processor, and with one fewer, which leaves a processor to
the reload.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import children, output
from harness.instances import processors
from harness.load import percentile
from harness.rows import KNOWN

Row = dict[str, Any]

# The file that a variant loads, one of those of harness/first_answers.py.
VARIANTS = {"frozen": "frozen.pt", "torchmdla-warm": "frozen.pt", "torchmdla-package": "package.pt"}

_SECONDS_BETWEEN = 0.5

DEFAULTS = {
    False: {"models": ["resnet50", "bert"], "reloads": 20},
    True: {"models": ["mlp"], "reloads": 2},
}


def main() -> int:
    options = parse_options()
    count = len(processors())
    threads = sorted({max(1, count - 1), count})
    rows: list[Row] = []
    with output.progress(len(options.models) * len(threads) * len(VARIANTS), "process") as bar:
        for model in options.models:
            with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
                write_files(model, folder, count, options.quick)
                for number in threads:
                    rows.append(row_of(model, number, folder, options, bar))
                    output.write_json(options.json, {"benchmark": "reloading", "unit": "ms", "rows": rows})
    show(rows)
    return 0


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    parser.add_argument(
        "--models", type=output.one_of(KNOWN), metavar="NAMES", help=f"of {','.join(KNOWN)} (resnet50,bert)"
    )
    parser.add_argument("--reloads", type=output.number, metavar="NUMBER", help="of each process (20)")
    options = parser.parse_args()
    output.fill_in(options, DEFAULTS)
    return options


def write_files(model: str, folder: str, threads: int, quick: bool) -> None:
    """Write the files that all rows of a model load."""
    task = {"model": model, "folder": folder, "threads": threads, "quick": quick, "sizes": [], "ways": list(VARIANTS)}
    variables = {"TORCHMDLA_CACHE_DIR": cache_in(folder), "TORCHMDLA_ENABLE": "0"}
    children.run("harness.first_answers:write_files", task, variables)


def cache_in(folder: str) -> str:
    return str(Path(folder) / "cache")


def row_of(model: str, threads: int, folder: str, options: argparse.Namespace, bar: Any) -> Row:
    variables = {"TORCHMDLA_CACHE_DIR": cache_in(folder), "OMP_NUM_THREADS": str(threads)}
    row: Row = {"model": model, "threads": threads, "ways": {}}
    for way in VARIANTS:
        bar.set_postfix_str(f"{model}, {threads} threads, {way}")
        phases = children.run(
            "reloading:serve",
            {"way": way, "folder": folder, "threads": threads, "reloads": options.reloads},
            {**variables, "TORCHMDLA_ENABLE": str(int(way != "frozen"))},
        )
        row["ways"][way] = {phase: figures(seconds) for phase, seconds in phases.items()}
        bar.update()
    return row


def figures(seconds: Sequence[float]) -> dict[str, float]:
    """Return statistics in milliseconds."""
    times = [duration * 1e3 for duration in seconds]
    percentiles = {f"p{percent}": percentile(times, percent) for percent in (50, 95, 99)}
    return {
        "min": min(times),
        "median": statistics.median(times),
        **percentiles,
        "max": max(times),
        "number": len(times),
    }


def serve(way: str, folder: str, threads: int, reloads: int) -> dict[str, list[float]]:
    """Return the seconds of consecutive calls, ``steady`` and during ``reloading``, and those of ``reloads``."""
    import numpy as np
    import torch

    import torchmdla

    torch.set_num_threads(threads)
    inputs = tuple(torch.from_numpy(array) for array in np.load(Path(folder) / "inputs.npz").values())
    load = torch.jit.load if way == "frozen" else torchmdla.load
    model = torchmdla.ReloadingModel(Path(folder) / VARIANTS[way], inputs=[inputs], load=load)
    spans: list[tuple[float, float]] = []

    def reload() -> None:
        for _ in range(reloads):
            time.sleep(_SECONDS_BETWEEN)
            start = time.monotonic()
            model.reload()
            spans.append((start, time.monotonic()))

    calls: list[tuple[float, float]] = []
    thread = threading.Thread(target=reload)
    thread.start()
    with torch.inference_mode():
        while thread.is_alive():
            start = time.monotonic()
            model(*inputs)
            calls.append((start, time.monotonic()))
    if len(spans) < reloads:
        raise RuntimeError(model.statistics().problem)
    durations: dict[str, list[float]] = {
        "steady": [],
        "reloading": [],
        "reloads": [last - first for first, last in spans],
    }
    for start, end in calls:
        meets_a_reload = any(start < last and first < end for first, last in spans)
        durations["reloading" if meets_a_reload else "steady"].append(end - start)
    return durations


def show(rows: Sequence[Row]) -> None:
    table = output.table(
        "latencies in ms: p50 / p95 / p99 / longest",
        ("model", "threads", "way", "steady", "while reloading", "a reload, ms, least / median"),
    )
    for row in rows:
        for name, way in row["ways"].items():
            cells = [latencies(way[phase]) for phase in ("steady", "reloading")]
            table.add_row(row["model"], str(row["threads"]), name, *cells, output.pair(way["reloads"]))
    output.show(table)


def latencies(figures_of_phase: dict[str, float]) -> str:
    return " / ".join(output.digits(figures_of_phase[name]) for name in ("p50", "p95", "p99", "max"))


if __name__ == "__main__":
    sys.exit(main())
