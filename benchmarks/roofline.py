"""Compare each kernel of whole models with the roofline of the machine.

torchmdla.explain calls each model, compiled by torchmdla.compile, in a separate process. For every kernel it reports
operations, bytes (each element once), and the minimum time. Its measured peaks are a loop of fused multiply-adds in
registers and a copy in memory, with the same number of threads. Shares are of these two peaks. The roof of a kernel is
the longer of two times: its operations at the first peak, and its bytes at the second. "of roof" is that time over the
kernel's. Reads from a cache can exceed 100 % of the copy, and so of the roof; such a kernel counts as 100 % in sums
over kernels. Kernels limited by vector functions (exp, erf) or by latencies are far below either peak. Tables merge
kernels of the same operators and loops into one line. The JSON file lists each kernel.

With --training, each model is a step of training (forward, loss, backward and SGD) by torch.compile, as in training.py.

The exit status is 1 if a model does not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import children, output
from harness.charts import save_charts
from harness.rows import KNOWN, ROW_NAMES, rows_by_name
from harness.steps import TASKS, build, train

Row = dict[str, Any]

_NAMED = 6  # number of circles with a colour and a name in each chart: those with the most time


def main() -> int:
    options = parse_options()
    rows: list[Row] = []
    with output.progress(len(options.models) * len(options.threads), "model") as bar:
        for model in options.models:
            for threads in options.threads:
                bar.set_postfix_str(f"{model}, {threads} thread{'s' * (threads > 1)}")
                rows.append(row_of(model, threads, options))
                bar.update()
                output.write_json(options.json, {"benchmark": "roofline", "quick": options.quick, "rows": rows})
    for row in rows:
        if not row["fault"]:
            show(row, options.most)
    show_all(rows)
    if options.plot:
        plot([row for row in rows if not row["fault"]], options.plot)
    faults = [f"{row['model']}, {row['threads']} thread(s): {row['fault']}" for row in rows if row["fault"]]
    output.show(*faults)
    return int(bool(faults))


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    models = output.one_of(KNOWN)
    parser.add_argument(
        "--models", type=models, metavar="NAMES", help=f"of {','.join(KNOWN)} (the first {len(ROW_NAMES)})"
    )
    steps = output.one_of(TASKS)
    parser.add_argument(
        "--training", type=steps, nargs="?", const=[], metavar="NAMES", help=f"steps of {','.join(TASKS)} (all)"
    )
    parser.add_argument("--level", choices=children.LEVELS, default="native", help="instructions to use (%(default)s)")
    parser.add_argument(
        "--threads", type=output.numbers, metavar="NUMBERS", default=[1], help="of each op, in turn (1)"
    )
    parser.add_argument(
        "--most", type=output.number, metavar="NUMBER", default=12, help="rows of a table, slowest kernels first (12)"
    )
    parser.add_argument(
        "--plot", type=output.new_file, metavar="FILE", help="draw a roofline of each model into this PNG"
    )
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install torchmdla[bench]")
    whole = ROW_NAMES if options.training is None else TASKS
    options.models = options.training or options.models or (["mlp"] if options.quick else list(whole))
    return options


# --- one model ---------------------------------------------------------------------------------------------------


def row_of(model: str, threads: int, options: argparse.Namespace) -> Row:
    task = {"model": model, "threads": threads, "training": options.training is not None, "quick": options.quick}
    variables = {**children.LEVELS[options.level], "OMP_NUM_THREADS": str(threads)}
    try:
        row: Row = children.run("roofline:measure", task, variables)
    except children.ChildFailed as failure:
        return {"model": model, "threads": threads, "fault": str(failure)}
    return row


def measure(model: str, threads: int, training: bool, quick: bool) -> Row:
    """Return the kernels of a model, or of a step of its training, explained in this process."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache:
        os.environ["TORCHMDLA_CACHE_DIR"] = cache
        explanation = explain_step(model, quick) if training else explain_model(model, quick)
    kernels = kernels_of(explanation)
    return {
        "model": model,
        "threads": threads,
        "peak_gflops": explanation.peak.gflops,
        "peak_gigabytes": explanation.peak.gigabytes,
        "seconds": explanation.seconds,
        "of_roof": roof_fraction(kernels),
        "kernels": kernels,
        "fault": None,
    }


def explain_step(model: str, quick: bool) -> Any:
    import torchmdla

    return torchmdla.explain(train("torchmdla", build(TASKS[model], quick), "sgd", False, "float32").step)


def explain_model(model: str, quick: bool) -> Any:
    import torch

    import torchmdla

    spec = rows_by_name()[model]
    spec = spec.reduced() if quick else spec
    module, inputs = spec.build(), spec.inputs()
    with torch.no_grad():
        compiled = torchmdla.compile(torch.jit.trace(module, inputs, check_trace=False), *inputs)
        return torchmdla.explain(compiled, *inputs)


def kernels_of(explanation: Any) -> list[Row]:
    """Return the kernels that ran, the slowest first; see :func:`with_rates`."""
    rows = []
    for group in explanation.groups:
        for kernel in (
            candidate
            for specialisation in group.specialisations
            for candidate in specialisation.kernels
            if candidate.seconds
        ):
            row = {"name": "+".join(kernel.ops) or kernel.symbol, "group": group.name, "loops": kernel.loops}
            row |= {"flops": kernel.flops, "bytes": kernel.bytes, "seconds": kernel.seconds, "share": kernel.share}
            rows.append(with_rates(row, explanation.peak.gflops, explanation.peak.gigabytes))
    return sorted(rows, key=lambda row: -row["seconds"])


def with_rates(kernel: Row, peak_gflops: float, peak_gigabytes: float) -> Row:
    """Return ``kernel`` with rates that are computed from its ``flops``, ``bytes`` and ``seconds``.

    These are GFLOP/s and GB/s, their fractions of the peaks, and the minimum time under both peaks, in seconds and as a
    fraction of the kernel's time.
    """
    gflops, gigabytes = (kernel[key] / kernel["seconds"] * 1e-9 for key in ("flops", "bytes"))
    of_fma, of_memory = gflops / peak_gflops, gigabytes / peak_gigabytes
    roof = max(of_fma, of_memory)
    rates = {"gflops": gflops, "gigabytes": gigabytes, "of_fma": of_fma, "of_memory": of_memory, "of_roof": roof}
    return {**kernel, **rates, "roof_seconds": roof * kernel["seconds"]}


def roof_fraction(kernels: Sequence[Row]) -> float:
    """Return the fraction of the roof that several kernels reach together; each counts 1 at most."""
    reached = sum(min(kernel["roof_seconds"], kernel["seconds"]) for kernel in kernels)
    return float(reached / sum(kernel["seconds"] for kernel in kernels))


# --- all models --------------------------------------------------------------------------------------------------


def show(row: Row, most: int) -> None:
    """Print the table of one model."""
    kernels = row["kernels"]
    table = output.table(
        f"{title(row)}: {row['seconds'] * 1e3:.3g} ms a call",
        ("kernel", "loops", "number", "µs", "of time", "GFLOP/s", "of FMA", "GB/s", "of copy", "of roof"),
        f"this machine reaches {row['peak_gflops']:.0f} GFLOP/s and {row['peak_gigabytes']:.1f} GB/s",
    )
    for column in table.columns[:2]:
        column.max_width, column.overflow, column.no_wrap = 40, "ellipsis", True
    sums = [(some, merge(some, row)) for some in group_alike(kernels)]
    for some, total in sums[:most]:
        computed = (output.digits(total["gflops"]), percent(total["of_fma"]))
        moved = (output.digits(total["gigabytes"]), percent(total["of_memory"]))
        table.add_row(total["name"], total["loops"], *times(some), *computed, *moved, percent(total["of_roof"]))
    table.add_section()
    if rest := [kernel for some, _ in sums[most:] for kernel in some]:
        table.add_row("others", "", *times(rest), *[""] * 4, percent(roof_fraction(rest)))
    table.add_row("all", "", *times(kernels), *[""] * 4, percent(roof_fraction(kernels)))
    output.show(table)


def group_alike(kernels: Sequence[Row]) -> list[list[Row]]:
    """Return kernels grouped by operators and loops, the groups with the most time first."""
    by_loops: dict[tuple[str, str], list[Row]] = {}
    for kernel in kernels:
        by_loops.setdefault((kernel["name"], kernel["loops"]), []).append(kernel)
    return sorted(by_loops.values(), key=lambda some: -sum(kernel["seconds"] for kernel in some))


def merge(kernels: Sequence[Row], row: Row) -> Row:
    """Return several kernels as one, with the sum of their work."""
    sums = {key: sum(kernel[key] for kernel in kernels) for key in ("flops", "bytes", "seconds")}
    return with_rates({**kernels[0], **sums}, row["peak_gflops"], row["peak_gigabytes"])


def times(kernels: Sequence[Row]) -> tuple[str, str, str]:
    """Return the number of kernels, their microseconds, and their share of the model's time."""
    seconds, share = (sum(kernel[key] for kernel in kernels) for key in ("seconds", "share"))
    return str(len(kernels)), output.digits(seconds * 1e6), percent(share)


def show_all(rows: Sequence[Row]) -> None:
    """Print a line for each model: its time, divided by the fraction of the roof that its kernels reach."""
    bounds = (0.25, 0.5, 0.75)
    names = ["below 25 %", "25 to 50 %", "50 to 75 %", "above 75 %"]
    table = output.table(
        "time of kernels by what they reach of the roof", ("model", "threads", "ms", "kernels", *names, "of roof")
    )
    for row in (row for row in rows if not row["fault"]):
        parts = [0.0] * len(names)
        for kernel in row["kernels"]:
            parts[sum(kernel["of_roof"] >= bound for bound in bounds)] += kernel["seconds"]
        shares = [percent(part / sum(parts)) for part in parts]
        kernels, milliseconds = str(len(row["kernels"])), output.digits(row["seconds"] * 1e3)
        table.add_row(row["model"], str(row["threads"]), milliseconds, kernels, *shares, percent(row["of_roof"]))
    output.show(table)


def percent(part: float) -> str:
    return f"{part * 100:.0f} %"


def plot(rows: Sequence[Row], file: Path) -> None:
    """Draw a chart for each row: GFLOP/s by operations per byte, under the roof."""
    save_charts(rows, draw, file, across=min(len(rows), 3), height=5)


def draw(row: Row, chart: Any) -> None:
    """Draw the chart of one row.

    A circle represents kernels of the same operators and loops; its area is their time.
    """
    circles = [merge(some, row) for some in group_alike(row["kernels"])]
    # A kernel without operations cannot be drawn on a logarithmic axis.
    circles = [circle for circle in circles if circle["flops"] and circle["bytes"]]
    ridge = row["peak_gflops"] / row["peak_gigabytes"]
    intensities = [circle["flops"] / circle["bytes"] for circle in circles]
    ends = [min([*intensities, ridge]) / 2, ridge, max([*intensities, ridge]) * 2]
    roof = [min(end * row["peak_gigabytes"], row["peak_gflops"]) for end in ends]
    chart.loglog(ends, roof, color="midnightblue")
    for index, (circle, intensity) in enumerate(zip(circles, intensities, strict=True)):
        area = 15 + 1500 * circle["seconds"] / row["seconds"]
        chart.scatter(intensity, circle["gflops"], s=area, color=f"C{index}" if index < _NAMED else "silver", alpha=0.6)
        if index < _NAMED:
            chart.plot([], [], "o", color=f"C{index}", alpha=0.6, label=label(circle))
    chart.set_title(f"{title(row)}, {percent(row['of_roof'])} of the roof", fontsize="small")
    chart.set_xlabel("operations for each byte")
    chart.set_ylabel("GFLOP/s")
    chart.legend(fontsize="xx-small", loc="lower right")


def label(kernel: Row) -> str:
    """Return the name for a legend, which skips names that start with an underscore."""
    return f"{kernel['name'].lstrip('_')[:30]}  {kernel['loops'][:30]}"


def title(row: Row) -> str:
    return f"{row['model']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"


if __name__ == "__main__":
    sys.exit(main())
