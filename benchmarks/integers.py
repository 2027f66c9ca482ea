"""Compare quantised models in 8-bit integers: torchmdla, PyTorch's own kernels, Inductor, ONNX Runtime and OpenVINO.

Each model runs in a separate process. There, all variants are prepared and then timed in turn, round by round. Times
are the minimum and the median of the rounds, in milliseconds for one call. Below them is the root mean square error
against the same model in float64, relative to its results; quantisation dominates it. Every engine quantises with its
own tools, by the timed inputs. The gain is the best peer's minimum time over that of torchmdla's better variant.

The exit status is 1 if torchmdla does not run, falls back, or has twice the error of PyTorch's own quantised model.
Peers that are not installed are skipped with a message.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import children, output
from harness.rows import reason

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "bert")
VARIANT_NAMES = (
    "script",
    "inductor",
    "onnxruntime",
    "openvino",
    "torchmdla-float32",
    "torchmdla-script",
    "torchmdla",
)
OURS = ("torchmdla-script", "torchmdla")
DEFAULTS = {
    False: {"models": list(MODELS), "ways": list(VARIANT_NAMES), "threads": [1, 2], "rounds": 9},
    True: {"models": ["resnet18"], "ways": ["script", *VARIANT_NAMES[4:]], "threads": [1], "rounds": 2},
}

# The maximum error, relative to that of PyTorch's own quantised model.
_MOST_ERROR = 2.0

Row = dict[str, Any]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), metavar="NAMES", help=f"of {','.join(MODELS)} (all)")
    parser.add_argument(
        "--ways", type=output.one_of(VARIANT_NAMES), metavar="NAMES", help=f"of {','.join(VARIANT_NAMES)} (all)"
    )
    parser.add_argument("--threads", type=output.numbers, metavar="NUMBERS", help="of each op, in turn (1,2)")
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="timed rounds of each way (9)")
    options = parser.parse_args()
    output.fill_in(options, DEFAULTS)
    rows: list[Row] = []
    with output.progress(len(options.models) * len(options.threads), "row") as bar:
        for model in options.models:
            with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
                for threads in options.threads:
                    task = {"model": model, "ways": options.ways, "threads": threads, "folder": folder}
                    task |= {"rounds": options.rounds, "quick": options.quick}
                    variables = {"TORCHMDLA_ENABLE": "0", "OMP_NUM_THREADS": str(threads)}
                    rows.append(children.run("integers:measure", task, variables, bar.set_postfix_str))
                    bar.update()
                    output.write_json(options.json, {"benchmark": "integers", "quick": options.quick, "rows": rows})
    for threads in options.threads:
        show([row for row in rows if row["threads"] == threads], threads)
    faults = [f"{row['model']}, {row['threads']} thread(s): {fault}" for row in rows for fault in row["faults"]]
    output.show(*faults)
    return int(bool(faults))


def measure(model: str, ways: Sequence[str], threads: int, folder: str, rounds: int, quick: bool) -> Row:
    """Measure one row in this process."""
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    from harness import integer_variants
    from harness.accuracy import exact_results, relative_rms

    import torchmdla
    from torchmdla.testing import timing
    from torchmdla.testing.models import MODELS as SPECS

    spec = SPECS[model].reduced() if quick else SPECS[model]
    children.step("building the model")
    module, inputs = spec.build().eval(), tuple(spec.inputs())
    with torch.no_grad():
        exact = exact_results(module, inputs)
        subject = integer_variants.Quantised(module, inputs, threads, Path(folder))
        prepared, results_by_way, skipped = {}, {}, {}
        for name in sorted(ways, key=list(integer_variants.VARIANTS).index):
            children.step(f"preparing {name}")
            way = integer_variants.VARIANTS[name]
            if missing := way.missing():
                skipped[name] = f"not installed: {', '.join(missing)}"
                continue
            start = time.perf_counter()
            try:
                prepared[name] = way.prepare(subject)
                results = prepared[name].results(inputs)
            except Exception as error:  # a failure of one peer must not hide the others
                prepared.pop(name, None)
                skipped[name] = f"{type(error).__name__}: {reason(str(error))}"
                continue
            results_by_way[name] = {"rms_error": relative_rms(results, exact), "prepare_s": time.perf_counter() - start}
        calls = {name: way.bind(inputs) for name, way in prepared.items()}
        times = timing.time_interleaved(calls, rounds, on_round=lambda i: children.step(f"round {i + 1} of {rounds}"))
    for name in calls:
        results_by_way[name] |= timing.summary(times[name])
    faults = [f"{name}: {skipped[name]}" for name in OURS if name in skipped and "not installed" not in skipped[name]]
    faults += [f"fell back: {why}" for why in torchmdla.stats().fallbacks]
    faults += [
        f"{name} has an error of {results_by_way[name]['rms_error']:.2g}"
        for name in OURS
        if is_wrong(results_by_way, name)
    ]
    return {"model": model, "threads": threads, "ways": results_by_way, "skipped": skipped, "faults": faults}


def is_wrong(ways: Row, name: str) -> bool:
    if name not in ways or "script" not in ways:
        return False
    return not ways[name]["rms_error"] <= _MOST_ERROR * ways["script"]["rms_error"]


def best_peer(row: Row) -> str | None:
    peers = {name: way["min"] for name, way in row["ways"].items() if not name.startswith("torchmdla")}
    return min(peers, key=lambda name: peers[name], default=None)


def gain(row: Row) -> float:
    """Return the best peer's minimum time over that of torchmdla's better variant; NaN if either is missing."""
    best, ours = best_peer(row), [row["ways"][name]["min"] for name in OURS if name in row["ways"]]
    return float(row["ways"][best]["min"] / min(ours)) if best and ours else math.nan


def show(rows: Sequence[Row], threads: int) -> None:
    names = [name for name in VARIANT_NAMES if any(name in row["ways"] for row in rows)]
    table = output.table(
        f"ms for one call, least / median, {threads} thread{'s' * (threads > 1)}",
        ("model", *names, "best peer", "gain"),
        "below: rms error against float64; gain: the best peer's least time over that of torchmdla's better way",
    )
    for row in rows:
        best = best_peer(row)
        cells = [cell(row["ways"].get(name), name == best) for name in names]
        table.add_row(row["model"], *cells, best or "–", f"{gain(row):.2f}")
    gains = [gain(row) for row in rows if not math.isnan(gain(row))]
    table.add_section()
    table.add_row("geometric mean", *[""] * (len(names) + 1), f"{output.geometric_mean(gains):.2f}" if gains else "–")
    output.show(
        table, *sorted({f"{n} left out: {why}" for row in rows for n, why in row["skipped"].items()}), width=170
    )


def cell(way: Row | None, is_best: bool) -> str:
    if way is None:
        return "–"
    text = f"{output.pair(way)}\n{way['rms_error']:.1e}"
    return f"[bold]{text}[/bold]" if is_best else text


if __name__ == "__main__":
    sys.exit(main())
