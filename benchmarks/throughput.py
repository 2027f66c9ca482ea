"""Measure requests per second as in servers: from one instance of a model on all processors to one on each.

Each instance is a process that prepares the model for itself, pinned to its own processors, with a thread for each.
(Threads of one process would wait for Python's lock, and OpenVINO's compiled model supports one call at a time.) All
instances call the model at once for some seconds, in turn for each variant, round by round. Rates are those of all
instances together, the maximum and the median of the rounds. The gain is torchmdla's maximum rate over the best peer's.

A variant that differs from eager by more than torchmdla.testing.compare allows is reported, and not timed. The exit
status is 1 if this is torchmdla, or if torchmdla does not run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from harness import output
from harness.instances import InstanceEnded, processors, rates, start_instances
from harness.rows import KNOWN, OURS, ROW_NAMES, VARIANT_NAMES

Row = dict[str, Any]
Ways = dict[str, dict[str, Any]]

DEFAULTS = {
    False: {
        "models": list(ROW_NAMES),
        "peers": ["eager", "frozen", "zentorch", "onnxruntime", "openvino", "ncnn"],
        "rounds": 5,
        "seconds": 1.0,
    },
    True: {"models": ["mlp"], "peers": ["eager", "frozen"], "rounds": 2, "seconds": 0.05},
}


def main() -> int:
    options = parse_options()
    rows: list[Row] = []
    with output.progress(len(options.models) * len(options.instances), "row") as bar:
        for model in options.models:
            with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
                for number in options.instances:
                    bar.set_postfix_str(f"{model}, {number} instances")
                    rows.append(row_of(model, number, folder, options))
                    bar.update()
                    save(options, rows)  # keeps the rows so far if a later one is interrupted
    show(rows)
    faults = [f"{row['model']}, {row['instances']} instance(s): {row['fault']}" for row in rows if row["fault"]]
    output.show(*faults)
    return int(bool(faults))


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    count = len(processors())
    models, ways = output.one_of(KNOWN), output.one_of(VARIANT_NAMES)
    parser.add_argument(
        "--models", type=models, metavar="NAMES", help=f"of {','.join(KNOWN)} (the first {len(ROW_NAMES)})"
    )
    parser.add_argument("--peers", type=ways, metavar="NAMES", help=f"of {','.join(VARIANT_NAMES)} (six of them)")
    parser.add_argument(
        "--instances",
        type=output.numbers,
        metavar="NUMBERS",
        help=f"at once, up to {count} (powers of two, and {count})",
    )
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="of each way (5)")
    parser.add_argument("--seconds", type=output.positive, metavar="SECONDS", help="of calls of a way, each round (1)")
    options = parser.parse_args()
    output.fill_in(options, DEFAULTS)
    if options.instances is None:
        options.instances = sorted({2**k for k in range(count.bit_length()) if 2**k <= count} | {count})
    if max(options.instances) > count:
        parser.error(f"argument --instances: there are {count} processors, and each instance needs one of its own")
    return options


# --- one row -----------------------------------------------------------------------------------------------------


def row_of(model: str, number: int, folder: str, options: argparse.Namespace) -> Row:
    """Measure one row. If a peer ends its process, repeat without the peer."""
    threads = len(processors()) // number
    row: Row = {"model": model, "instances": number, "threads": threads}
    skipped: dict[str, str] = {}
    while True:
        ways = [name for name in VARIANT_NAMES if name in options.peers and name not in skipped]
        try:
            results = measure(model, [*ways, OURS], number, folder, options, skipped)
        except InstanceEnded as end:
            skipped[end.way] = str(end)
            if end.way == OURS:
                return {**row, "ways": {}, "skipped": skipped, "fault": str(end)}
        else:
            return {**row, "ways": results, "skipped": skipped, "fault": skipped.get(OURS)}


def measure(
    model: str, ways: Sequence[str], number: int, folder: str, options: argparse.Namespace, skipped: dict[str, str]
) -> Ways:
    """Return calls per second of each variant that is ready. The reasons for the others are added to ``skipped``."""
    from torchmdla.testing import timing

    task = {"model": model, "folder": folder, "quick": options.quick}
    with start_instances(ways, number, task, skipped) as (instances, ready):
        rates_of: dict[str, list[float]] = {way: [] for way in ready}
        for index in range(options.rounds):
            for way in timing.order_of(ready, index):
                rates_of[way].append(sum(rates(instances, way, options.seconds)))
    return {
        way: {"max": max(some), "median": statistics.median(some), "rounds": some} for way, some in rates_of.items()
    }


# --- all rows ----------------------------------------------------------------------------------------------------


def best_peer(row: Row) -> str | None:
    """Return the variant with the maximum rate that is not torchmdla's."""
    peers = {name: way["max"] for name, way in row["ways"].items() if not name.startswith(OURS)}
    return max(peers, key=lambda name: peers[name], default=None)


def gain(row: Row) -> float:
    """Return torchmdla's maximum rate over the best peer's; NaN if either is missing."""
    best = best_peer(row)
    if best is None or OURS not in row["ways"]:
        return math.nan
    return float(row["ways"][OURS]["max"] / row["ways"][best]["max"])


def mean_gain(rows: Sequence[Row]) -> float:
    return output.geometric_mean([gain(row) for row in rows if not math.isnan(gain(row))])


def save(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    results = {
        "benchmark": "throughput",
        "quick": options.quick,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rows": [{**row, "best_peer": best_peer(row), "gain": gain(row)} for row in rows],
        "geometric_mean": {
            str(n): mean_gain([row for row in rows if row["instances"] == n]) for n in options.instances
        },
    }
    output.write_json(options.json, results)


def show(rows: Sequence[Row]) -> None:
    names = [name for name in (*VARIANT_NAMES, OURS) if any(name in row["ways"] for row in rows)]
    table = output.table(
        "requests a second of all instances together, greatest / median",
        ("model", "instances × threads", *names, "best peer", "gain"),
        "gain: torchmdla's greatest rate over the best peer's",
    )
    for row in rows:
        best = best_peer(row)
        cells = [cell(row["ways"].get(name), name == best) for name in names]
        table.add_row(row["model"], f"{row['instances']} × {row['threads']}", *cells, best or "–", f"{gain(row):.2f}")
    table.add_section()
    for number in sorted({row["instances"] for row in rows}):
        mean = mean_gain([row for row in rows if row["instances"] == number])
        table.add_row("geometric mean", f"{number} ×", *[""] * (len(names) + 1), f"{mean:.2f}")
    notes = {f"{row['model']}: {way} left out: {why}" for row in rows for way, why in row["skipped"].items()}
    output.show(table, *sorted(notes), width=190)


def cell(way: dict[str, Any] | None, best: bool) -> str:
    text = "–" if way is None else f"{output.digits(way['max'])} / {output.digits(way['median'])}"
    return f"[bold]{text}[/bold]" if best else text


if __name__ == "__main__":
    sys.exit(main())
