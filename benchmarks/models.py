"""Compare torchmdla on whole models with all other engines that are installed, with equal results.

For each number of threads, each model runs in a separate process. There, all variants are prepared and then timed in
turn, round by round. Times are the minimum and the median of the rounds, in milliseconds for one call. Below them is
the root mean square error against the same model in float64, relative to its results. The gain is the best peer's
minimum time over torchmdla's.

A variant that differs from eager by more than torchmdla.testing.compare allows is reported, and not timed. The exit
status is 1, with a message, if this is torchmdla, or if torchmdla does not run. Peers that are not installed are
skipped with a message: pip install torchmdla[bench] installs them all.

With --level x86-64-v3 all variants are held to AVX2. Peers whose products have no switch for this are left out there.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import children, output
from harness.rows import (
    COLOURS,
    CONVERTED,
    HELD_TO_LEVELS,
    KNOWN,
    OURS,
    ROW_NAMES,
    VARIANT_NAMES,
    compare,
    prepare,
    reason,
    rows_by_name,
)

DEFAULTS = {
    False: {"models": list(ROW_NAMES), "peers": list(VARIANT_NAMES[:-1]), "threads": [1, 2], "rounds": 9},
    True: {"models": ["mlp", "norms_64x256"], "peers": ["eager", "frozen"], "threads": [1], "rounds": 2},
}

Row = dict[str, Any]


def main() -> int:
    options = parse_options()
    rows: list[Row] = []
    with output.progress(len(options.models) * len(options.threads), "row") as bar:
        for model in options.models:
            with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
                for threads in options.threads:
                    label = f"{model}, {threads} thread{'s' * (threads > 1)}"
                    rows.append(row_of(model, threads, folder, options, partial(show_step, bar, label)))
                    bar.update()
                    save(options, rows)  # keeps the rows so far if a later one is interrupted
    for threads in options.threads:
        show([row for row in rows if row["threads"] == threads], threads)
    if options.plot:
        plot(rows, options.plot)
    faults = [f"{row['model']}, {row['threads']} thread(s): {row['fault']}" for row in rows if row["fault"]]
    output.show(*faults)
    return int(bool(faults))


def show_step(bar: Any, label: str, step: str) -> None:
    bar.set_postfix_str(f"{label}: {step}")


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    models, ways = output.one_of(KNOWN), output.one_of(VARIANT_NAMES)
    parser.add_argument(
        "--models", type=models, metavar="NAMES", help=f"of {','.join(KNOWN)} (the first {len(ROW_NAMES)})"
    )
    parser.add_argument(
        "--peers",
        type=ways,
        metavar="NAMES",
        help=f"of {','.join(VARIANT_NAMES)} (all that are installed but the last)",
    )
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="of products, as far as a way has it"
    )
    parser.add_argument("--level", choices=children.LEVELS, default="native", help="instructions to use (%(default)s)")
    parser.add_argument("--threads", type=output.numbers, metavar="NUMBERS", help="of each op, in turn (1,2)")
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="timed rounds of each way (9)")
    parser.add_argument("--plot", type=output.new_file, metavar="FILE", help="draw the speeds as bars into this PNG")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install torchmdla[bench]")
    output.fill_in(options, DEFAULTS)
    if options.level != "native":
        options.peers = [name for name in options.peers if name in HELD_TO_LEVELS]
    return options


# --- one row -----------------------------------------------------------------------------------------------------


def row_of(model: str, threads: int, folder: str, options: argparse.Namespace, on_step: Callable[[str], None]) -> Row:
    """Measure one row in a child process. If a peer ends that process, repeat without the peer.

    ``folder`` is for the model's files, which all its rows share.
    """
    skipped: dict[str, str] = {}
    while True:
        ways = [name for name in options.peers if name not in skipped]
        task = {"model": model, "ways": ways, "threads": threads, "folder": folder}
        task |= {"rounds": options.rounds, "quick": options.quick, "precision": options.precision}
        # OpenMP's pool has the requested number of threads, not all of the machine's.
        variables = {**children.LEVELS[options.level], "TORCHMDLA_ENABLE": "0", "OMP_NUM_THREADS": str(threads)}
        try:
            row: Row = children.run("models:measure", task, variables, on_step)
        except children.ChildFailed as failure:
            crashed = failure.step.rpartition(" ")[2]  # a step ends with the name of its variant
            if crashed not in ways or crashed == "eager":
                return {"model": model, "threads": threads, "ways": {}, "skipped": skipped, "fault": str(failure)}
            skipped[crashed] = f"ended the process: {reason(str(failure))}"
        else:
            row["skipped"].update(skipped)
            return row


def measure(
    model: str, ways: Sequence[str], threads: int, folder: str, rounds: int, quick: bool, precision: str
) -> Row:
    """Measure one row in this process."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    from harness import peers

    from torchmdla.testing import timing

    spec = rows_by_name()[model]
    spec = spec.reduced() if quick else spec
    children.step("building the model")
    module, inputs = spec.build(), spec.inputs()
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = cache
        subject = peers.Subject(module, inputs, threads, Path(folder), getattr(torch, precision))
        is_plain = precision == "float32"
        prepared, seconds, skipped = prepare(subject, [*ways, *([] if is_plain else [CONVERTED]), OURS])
        comparisons = compare(prepared, spec, module, None if is_plain else precision)
        calls = {name: way.bind(inputs) for name, way in prepared.items() if not comparisons[name]["differs"]}
        times = timing.time_interleaved(calls, rounds, on_round=lambda i: children.step(f"round {i + 1} of {rounds}"))
    for name in prepared:
        comparisons[name]["prepare_s"] = seconds[name]
    for name in calls:
        comparisons[name] |= {**timing.summary(times[name]), "rounds_s": times[name]}
    fault = comparisons[OURS]["differs"] if OURS in comparisons else skipped[OURS]
    return {"model": model, "threads": threads, "ways": comparisons, "skipped": skipped, "fault": fault, **statistics()}


def statistics() -> dict[str, Any]:
    import torchmdla

    stats = torchmdla.stats()
    fallbacks = {why[:300]: count for why, count in (stats.fallbacks | stats.left_out).items()}
    return {"groups": stats.groups, "specialisations": stats.specialisations, "fallbacks": fallbacks}


# --- all rows ----------------------------------------------------------------------------------------------------


def correct_results(row: Row) -> dict[str, dict[str, Any]]:
    """Return the variants with eager's results."""
    return {name: way for name, way in row["ways"].items() if not way["differs"]}


def best_peer(row: Row) -> str | None:
    """Return the fastest variant with eager's results that is not torchmdla's."""
    peers = {name: way["min"] for name, way in correct_results(row).items() if not name.startswith(OURS)}
    return min(peers, key=lambda name: peers[name], default=None)


def gain(row: Row) -> float:
    """Return the best peer's minimum time over torchmdla's; NaN if either is missing."""
    best = best_peer(row)
    if best is None or OURS not in correct_results(row):
        return math.nan
    return float(row["ways"][best]["min"] / row["ways"][OURS]["min"])


def mean_gain(rows: Sequence[Row]) -> float:
    return output.geometric_mean([gain(row) for row in rows if not math.isnan(gain(row))])


def save(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    threads = sorted({row["threads"] for row in rows})
    results = {
        "benchmark": "models",
        "quick": options.quick,
        "precision": options.precision,
        "level": options.level,
        "rounds": options.rounds,
        "rows": [{**row, "best_peer": best_peer(row), "gain": gain(row)} for row in rows],
        "geometric_mean": {str(n): mean_gain([row for row in rows if row["threads"] == n]) for n in threads},
    }
    output.write_json(options.json, results)


def show(rows: Sequence[Row], threads: int) -> None:
    """Print the table for one number of threads, and the skipped variants."""
    names = [name for name in (*VARIANT_NAMES, CONVERTED, OURS) if any(name in row["ways"] for row in rows)]
    table = output.table(
        f"ms for one call, least / median, {threads} thread{'s' * (threads > 1)}",
        ("model", *names, "best peer", "gain"),
        "below: rms error against float64; gain: the best peer's least time over torchmdla's; "
        "≠: results differ from eager's beyond tolerance",
    )
    for row in rows:
        best = best_peer(row)
        cells = [cell(row["ways"].get(name), name == best) for name in names]
        table.add_row(row["model"], *cells, best or "–", f"{gain(row):.2f}")
    table.add_section()
    table.add_row("geometric mean", *[""] * (len(names) + 1), f"{mean_gain(rows):.2f}")
    notes = {f"{way} left out: {why}" for row in rows for way, why in row["skipped"].items() if "not installed" in why}
    notes |= {
        f"{row['model']}: {way} left out: {why}"
        for row in rows
        for way, why in row["skipped"].items()
        if "not installed" not in why
    }
    notes |= {
        f"{row['model']}: {way} not timed: {result['differs']}"
        for row in rows
        for way, result in row["ways"].items()
        if result["differs"]
    }
    notes |= {f"{row['model']}: fell back: {row['fallbacks']}" for row in rows if row.get("fallbacks")}
    output.show(table, *sorted(notes), width=190)


def cell(way: dict[str, Any] | None, best: bool) -> str:
    if way is None:
        return "–"
    text = f"{'≠' if way['differs'] else output.pair(way)}\n{way['rms_error']:.1e}"
    return f"[bold]{text}[/bold]" if best else text


def plot(rows: Sequence[Row], file: Path) -> None:
    """Draw speeds relative to eager as bars: one chart for each number of threads, higher is faster."""
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    counts = sorted({row["threads"] for row in rows})
    names = [name for name in (*VARIANT_NAMES, CONVERTED, OURS) if any(name in row["ways"] for row in rows)]
    figure, charts = pyplot.subplots(len(counts), 1, figsize=(15, 4.5 * len(counts)), squeeze=False)
    for threads, chart in zip(counts, charts[:, 0], strict=True):
        shown = [row for row in rows if row["threads"] == threads and "eager" in correct_results(row)]
        width = 0.85 / len(names)
        for index, name in enumerate(names):
            speeds = [
                row["ways"]["eager"]["min"] / row["ways"][name]["min"] if name in correct_results(row) else 0
                for row in shown
            ]
            places = [place + (index - (len(names) - 1) / 2) * width for place in range(len(shown))]
            chart.bar(places, speeds, width, label=name, color=COLOURS[name])
        chart.axhline(1, color="grey", linewidth=0.8)
        chart.set_xticks(range(len(shown)), [row["model"] for row in shown], fontsize="small")
        chart.set_ylabel("speed, eager = 1")
        chart.set_title(f"{threads} thread{'s' * (threads > 1)}, least of the rounds; higher is quicker")
    handles, labels = charts[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(names), fontsize="small")
    figure.tight_layout(rect=(0, 0.06 / len(counts), 1, 1))
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
