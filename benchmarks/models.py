"""Whole models: torchmdla against everything else that is installed, with equal results.

Each model runs, for each number of threads, in a process of its own; there all ways to run it are prepared and then
timed in turn, round by round. Times are the least and the median of the rounds, in milliseconds for one call.
The gain is the least time of the best peer over torchmdla's.

Ends with status 1, and says what is wrong, where torchmdla's results differ from eager's by more than
torchmdla.testing.compare allows, or it does not run. A peer whose results differ by more is shown, but is not a best
peer. Peers that are not installed are left out and said so: pip install torchmdla[bench] installs them all.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import children, output

ROW_NAMES = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "vgg11",
    "bert",
    "vit_b16",
    "lstm",
    "mlp",
    "norms_4096x1024",
    "norms_64x256",
)
WAY_NAMES = ("eager", "frozen", "ofi", "inductor", "onnxruntime", "openvino", "iree", "torchmdla-unfrozen")
OURS = "torchmdla"
# PyTorch's own ways are blue, others grey and brown, torchmdla red.
COLOURS = {
    "eager": "midnightblue",
    "frozen": "royalblue",
    "ofi": "cornflowerblue",
    "inductor": "lightsteelblue",
    "onnxruntime": "dimgrey",
    "openvino": "darkgrey",
    "iree": "tan",
    "torchmdla-unfrozen": "lightcoral",
    "torchmdla": "crimson",
}
DEFAULTS = {
    False: {"models": list(ROW_NAMES), "peers": list(WAY_NAMES[:-1]), "threads": [1, 2], "rounds": 9},
    True: {"models": ["mlp", "norms_64x256"], "peers": ["eager", "frozen"], "threads": [1], "rounds": 2},
}

Row = dict[str, Any]


def main() -> int:
    options = parse_options()
    jobs = [(model, threads) for threads in options.threads for model in options.models]
    rows: list[Row] = []
    with output.progress(len(jobs), "row") as bar:
        for model, threads in jobs:
            label = f"{model}, {threads} thread{'s' * (threads > 1)}"
            rows.append(row_of(model, threads, options, partial(show_step, bar, label)))
            bar.update()
            save(options, rows)  # what there is, should a later row be interrupted
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
    models, ways = output.one_of(ROW_NAMES), output.one_of(WAY_NAMES)
    parser.add_argument("--models", type=models, metavar="NAMES", help=f"of {','.join(ROW_NAMES)} (all)")
    parser.add_argument(
        "--peers", type=ways, metavar="NAMES", help=f"of {','.join(WAY_NAMES)} (all that are installed but the last)"
    )
    parser.add_argument("--threads", type=output.numbers, metavar="NUMBERS", help="of each op, in turn (1,2)")
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="timed rounds of each way (9)")
    parser.add_argument("--plot", type=output.new_file, metavar="FILE", help="draw the speeds as bars into this PNG")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install torchmdla[bench]")
    for name, value in DEFAULTS[options.quick].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


# --- one row -----------------------------------------------------------------------------------------------------


def row_of(model: str, threads: int, options: argparse.Namespace, on_step: Callable[[str], None]) -> Row:
    """Measures one row in a child process; again without it where a peer ends that process."""
    skipped: dict[str, str] = {}
    while True:
        ways = [name for name in options.peers if name not in skipped]
        task = {"model": model, "ways": ways, "threads": threads, "rounds": options.rounds, "quick": options.quick}
        # OpenMP's pool is made for the threads that are asked for, not for all of the machine's.
        variables = {"TORCHMDLA_ENABLE": "0", "OMP_NUM_THREADS": str(threads)}
        try:
            row: Row = children.run("models:measure", task, variables, on_step)
        except children.ChildFailed as failure:
            crashed = failure.step.rpartition(" ")[2]  # steps end with the way that they are for
            if crashed not in ways or crashed == "eager":
                return {"model": model, "threads": threads, "ways": {}, "skipped": skipped, "fault": str(failure)}
            skipped[crashed] = f"ended the process: {reason(str(failure))}"
        else:
            row["skipped"].update(skipped)
            return row


def measure(model: str, ways: Sequence[str], threads: int, rounds: int, quick: bool) -> Row:
    """One row, measured in this process."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    from harness import peers

    from torchmdla.testing import timing

    spec = rows()[model]
    spec = spec.reduced() if quick else spec
    children.step("building the model")
    module, inputs = spec.build(), spec.inputs()
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder, torch.no_grad():
        os.environ["TORCHMDLA_CACHE_DIR"] = folder
        subject = peers.Subject(module, inputs, threads, Path(folder))
        prepared, seconds, skipped = prepare(subject, ways)
        comparisons = compare(prepared, spec, module)
        calls = {name: way.bind(inputs) for name, way in prepared.items()}
        times = timing.interleaved(calls, rounds, on_round=lambda i: children.step(f"round {i + 1} of {rounds}"))
    found = {
        name: {"prepare_s": seconds[name], **comparisons[name], **timing.summary(times[name]), "rounds_s": times[name]}
        for name in prepared
    }
    fault = found[OURS]["differs"] if OURS in found else skipped[OURS]
    return {"model": model, "threads": threads, "ways": found, "skipped": skipped, "fault": fault, **statistics()}


def rows() -> dict[str, Any]:
    """The models of the table by row name. The reduced norms are the table's second size."""
    from torchmdla.testing.models import MODELS

    norms = {"norms_4096x1024": MODELS["norms"], "norms_64x256": MODELS["norms"].reduced()}
    return {name: norms.get(name) or MODELS[name] for name in ROW_NAMES}


def prepare(subject: Any, ways: Sequence[str]) -> tuple[dict[str, Any], dict[str, float], dict[str, str]]:
    """Prepares ``ways`` and torchmdla: what came of it, the seconds it took, and why others were left out."""
    from harness import peers

    prepared, seconds, skipped = {}, {}, {}
    for name in sorted({*ways, OURS}, key=list(peers.WAYS).index):
        if missing := peers.WAYS[name].missing():
            skipped[name] = f"not installed: {', '.join(missing)}"
            continue
        children.step(f"preparing {name}")
        start = time.perf_counter()
        try:
            prepared[name] = peers.WAYS[name].prepare(subject)
            prepared[name].results(subject.inputs)
        except Exception as error:  # whatever a peer cannot do must not hide the others
            prepared.pop(name, None)
            skipped[name] = f"{type(error).__name__}: {reason(str(error))}"
        seconds[name] = time.perf_counter() - start
    return prepared, seconds, skipped


def reason(text: str) -> str:
    """The line of an error's text that says most: the first that speaks of an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror\b|Error:", line)]
    return (telling or lines[-1:] or [""])[0][:300]


def compare(prepared: dict[str, Any], spec: Any, module: Any) -> dict[str, dict[str, Any]]:
    """The error of each way against eager, and what differs beyond tolerance, on the timed inputs and on others."""
    from torchmdla.testing.compare import assert_matches, largest_error

    found: dict[str, dict[str, Any]] = {name: {"error": 0.0, "differs": None} for name in prepared}
    for seed in (0, 1):
        inputs = spec.inputs(seed=seed)
        expected = module(*inputs)
        expected = list(expected) if isinstance(expected, tuple | list) else [expected]
        for name, way in prepared.items():
            children.step(f"comparing {name}")
            results = way.results(inputs)
            try:
                assert_matches(results, expected, layers=spec.layers, strides=name == OURS)
                error = largest_error(results, expected)
            except AssertionError as difference:
                found[name]["differs"] = str(difference)
                error = error_or_nan(results, expected)
            found[name]["error"] = max(found[name]["error"], error, key=lambda e: (math.isnan(e), e))
    return found


def error_or_nan(results: Any, expected: Any) -> float:
    """The largest error, NaN where structures or sizes differ."""
    from torchmdla.testing.compare import largest_error

    try:
        error: float = largest_error(results, expected)
    except AssertionError:
        return math.nan
    return error


def statistics() -> dict[str, Any]:
    import torchmdla

    stats = torchmdla.stats()
    fallbacks = {why[:300]: count for why, count in (stats.fallbacks | stats.left_out).items()}
    return {"groups": stats.groups, "specialisations": stats.specialisations, "fallbacks": fallbacks}


# --- all rows ----------------------------------------------------------------------------------------------------


def best_peer(row: Row) -> str | None:
    """The quickest way that is not torchmdla's and computes what eager computes."""
    peers = {name: way["min"] for name, way in row["ways"].items() if not name.startswith(OURS) and not way["differs"]}
    return min(peers, key=lambda name: peers[name], default=None)


def gain(row: Row) -> float:
    """The best peer's least time over torchmdla's; NaN where either is missing."""
    best = best_peer(row)
    if best is None or OURS not in row["ways"]:
        return math.nan
    return float(row["ways"][best]["min"] / row["ways"][OURS]["min"])


def mean_gain(rows: Sequence[Row]) -> float:
    return output.geometric_mean([gain(row) for row in rows if not math.isnan(gain(row))])


def save(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    threads = sorted({row["threads"] for row in rows})
    results = {
        "benchmark": "models",
        "quick": options.quick,
        "rounds": options.rounds,
        "rows": [{**row, "best_peer": best_peer(row), "gain": gain(row)} for row in rows],
        "geometric_mean": {str(n): mean_gain([row for row in rows if row["threads"] == n]) for n in threads},
    }
    output.write_json(options.json, results)


def show(rows: Sequence[Row], threads: int) -> None:
    """The table for one number of threads, and what was left out."""
    names = [name for name in (*WAY_NAMES, OURS) if any(name in row["ways"] for row in rows)]
    table = output.table(
        f"ms for one call, least / median, {threads} thread{'s' * (threads > 1)}",
        ("model", *names, "best peer", "gain"),
        "gain: the best peer's least time over torchmdla's; ≠: results differ from eager's beyond tolerance",
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
    notes |= {f"{row['model']}: fell back: {row['fallbacks']}" for row in rows if row.get("fallbacks")}
    output.show(table, *sorted(notes), width=190)


def cell(way: dict[str, Any] | None, best: bool) -> str:
    text = output.pair(way) + (" ≠" if way and way["differs"] else "")
    return f"[bold]{text}[/bold]" if best else text


def plot(rows: Sequence[Row], file: Path) -> None:
    """Speeds relative to eager as bars: one chart for each number of threads, higher is quicker."""
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    counts = sorted({row["threads"] for row in rows})
    names = [name for name in (*WAY_NAMES, OURS) if any(name in row["ways"] for row in rows)]
    figure, charts = pyplot.subplots(len(counts), 1, figsize=(15, 4.5 * len(counts)), squeeze=False)
    for threads, chart in zip(counts, charts[:, 0], strict=True):
        shown = [row for row in rows if row["threads"] == threads and "eager" in row["ways"]]
        width = 0.85 / len(names)
        for index, name in enumerate(names):
            speeds = [
                row["ways"]["eager"]["min"] / row["ways"][name]["min"] if name in row["ways"] else 0 for row in shown
            ]
            places = [place + (index - (len(names) - 1) / 2) * width for place in range(len(shown))]
            chart.bar(places, speeds, width, label=name, color=COLOURS[name])
        chart.axhline(1, color="grey", linewidth=0.8)
        chart.set_xticks(range(len(shown)), [row["model"] for row in shown])
        chart.set_ylabel("speed, eager = 1")
        chart.set_title(f"{threads} thread{'s' * (threads > 1)}, least of the rounds; higher is quicker")
    handles, labels = charts[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(names), fontsize="small")
    figure.tight_layout(rect=(0, 0.06 / len(counts), 1, 1))
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
