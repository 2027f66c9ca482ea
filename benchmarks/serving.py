"""Measure serving: requests per second, their latencies, and the time until a new process gives its first answer.

Each instance is a process that prepares the model for itself, pinned to its own processors, with a thread for each.
OpenVINO runs with its hint for latency and with that for throughput. With the latter, an instance has as many
concurrent requests as OpenVINO recommends; all others have one. BERT's requests have mixed lengths.

Closed loop: each of a number of clients sends a new request when it has its answer. The requests per second are the
capacity of the variant. Open loop: requests arrive at random times (Poisson's process), at fractions of the variant's
own capacity, and, for torchmdla, also at those fractions of the best peer's. A latency starts at the intended arrival
of the request, whether or not the instance was busy then. All variants run in turn, round by round, with requests of
the same order. Figures of a round are percentiles; the table shows the minimum and the median of the rounds.

Starts: seconds from the start of a process to its first answer and to its fifth, with the engines' files on disk. These
are PyTorch's process (frozen), those of peers, and torchmdla's with an empty cache, with a filled one, and from a
package with packed weights.

A variant that differs from eager by more than torchmdla.testing.compare allows is reported, and not timed. The exit
status is 1 if this is torchmdla, or if torchmdla does not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import children, first_answers, output
from harness.charts import save_charts
from harness.instances import Instance, InstanceEnded, processors, serve_loads, start_instances
from harness.load import Answers, Closed, Load, Open, percentile
from harness.rows import COLOURS, KNOWN, OURS

Row = dict[str, Any]

PERCENTILES = (50, 95, 99)
PEERS = ("eager", "frozen", "onnxruntime", "openvino", "openvino-throughput")
PARTS = ("loads", "starts")

# Lengths of requests, for models of sequences. Small models support up to 32.
SIZES = {"bert": {False: [12, 24, 37, 64, 96, 128], True: [7, 16, 24]}}

DEFAULTS = {
    False: {
        "models": ["resnet50", "bert"],
        "peers": ["eager", "onnxruntime", "openvino", "openvino-throughput"],
        "fractions": [0.5, 0.8, 0.95],
        "rounds": 5,
        "seconds": 10.0,
        "starts": 5,
    },
    True: {
        "models": ["mlp", "bert"],
        "peers": ["eager", "frozen"],
        "fractions": [0.5],
        "rounds": 2,
        "seconds": 0.1,
        "starts": 1,
    },
}


def main() -> int:
    options = parse_options()
    rows: list[Row] = []
    starts: list[Row] = []
    total = len(options.models) * (("loads" in options.parts) * len(options.instances) + ("starts" in options.parts))
    with output.progress(total, "row") as bar:
        for model in options.models:
            with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
                for number in options.instances if "loads" in options.parts else []:
                    bar.set_postfix_str(f"{model}, {number} instances")
                    rows.append(row_of(model, number, folder, options))
                    bar.update()
                    save(options, rows, starts)  # keeps the rows so far if a later one is interrupted
                if "starts" in options.parts:
                    bar.set_postfix_str(f"{model}, starts")
                    starts.append(starts_of(model, folder, options))
                    bar.update()
                    save(options, rows, starts)
    show(rows)
    show_starts(starts)
    if options.plot:
        plot(rows, options.plot)
    faults = [f"{row['model']}, {row['instances']} instance(s): {row['fault']}" for row in rows if row["fault"]]
    faults += [f"{row['model']}, starts: {fault}" for row in starts for fault in row["faults"]]
    output.show(*faults)
    return int(bool(faults))


def parse_options() -> argparse.Namespace:
    parser = output.parser(__doc__)
    count = len(processors())
    parser.add_argument(
        "--models", type=output.one_of(KNOWN), metavar="NAMES", help=f"of {','.join(KNOWN)} (resnet50,bert)"
    )
    parser.add_argument(
        "--peers", type=output.one_of(PEERS), metavar="NAMES", help=f"of {','.join(PEERS)} (all but frozen)"
    )
    parser.add_argument(
        "--parts", type=output.one_of(PARTS), default=list(PARTS), metavar="NAMES", help=f"of {','.join(PARTS)} (both)"
    )
    parser.add_argument(
        "--instances", type=output.numbers, metavar="NUMBERS", help=f"at once, up to {count} (1 and {count})"
    )
    parser.add_argument("--clients", type=output.number, metavar="NUMBER", help=f"of the closed loop ({count})")
    parser.add_argument(
        "--fractions", type=positive_numbers, metavar="NUMBERS", help="of the capacity, in open loops (0.5,0.8,0.95)"
    )
    parser.add_argument("--rounds", type=output.number, metavar="NUMBER", help="of each load and way (5)")
    parser.add_argument("--seconds", type=output.positive, metavar="SECONDS", help="of a load, each round (10)")
    parser.add_argument("--starts", type=output.number, metavar="NUMBER", help="of each kind of process (5)")
    parser.add_argument("--plot", type=output.new_file, metavar="FILE", help="draw latencies by rates into this PNG")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install torchmdla[bench]")
    output.fill_in(options, DEFAULTS)
    options.instances = options.instances or sorted({1, count})
    options.clients = options.clients or count
    if max(options.instances) > count:
        parser.error(f"argument --instances: there are {count} processors, and each instance needs one of its own")
    return options


def positive_numbers(text: str) -> list[float]:
    return [output.positive(part) for part in text.split(",")]


def sizes_of(model: str, quick: bool) -> list[int]:
    return SIZES[model][quick] if model in SIZES else []


# --- loads -------------------------------------------------------------------------------------------------------


def row_of(model: str, number: int, folder: str, options: argparse.Namespace) -> Row:
    """Measure one row. If a peer ends its process, repeat without the peer."""
    row: Row = {"model": model, "instances": number, "threads": len(processors()) // number}
    skipped: dict[str, str] = {}
    while True:
        ways = [name for name in PEERS if name in options.peers and name not in skipped]
        try:
            ways_by_name = measure(model, [*ways, OURS], number, folder, options, skipped)
        except InstanceEnded as end:
            skipped[end.way] = str(end)
            if end.way == OURS:
                return {**row, "ways": {}, "ratios": None, "skipped": skipped, "fault": str(end)}
        else:
            ratios = ratios_of(ways_by_name, options.fractions)
            return {**row, "ways": ways_by_name, "ratios": ratios, "skipped": skipped, "fault": skipped.get(OURS)}


def measure(
    model: str, ways: Sequence[str], number: int, folder: str, options: argparse.Namespace, skipped: dict[str, str]
) -> dict[str, Row]:
    """Return the figures of each variant that is ready. The reasons for the others are added to ``skipped``."""
    task = {"model": model, "folder": folder, "quick": options.quick, "sizes": sizes_of(model, options.quick)}
    with start_instances(ways, number, task, skipped) as (instances, ready):
        rounds_of: dict[str, Row] = {way: {"closed": [], "open": {}, "matched": {}} for way in ready}
        measure_closed(instances, rounds_of, options)
        for fraction in options.fractions:
            measure_open(instances, rounds_of, fraction, options)
    return {way: summary(rounds) for way, rounds in rounds_of.items()}


def alternate(names: Sequence[str], index: int) -> list[str]:
    """Return the order of round ``index``."""
    # Import here: instances import this module before they set the variables of PyTorch and torchmdla.
    from torchmdla.testing import timing

    return timing.order_of(names, index)


def measure_closed(instances: Sequence[Instance], rows: dict[str, Row], options: argparse.Namespace) -> None:
    clients = max(1, options.clients // len(instances))
    for index in range(options.rounds):
        for way in alternate(list(rows), index):
            loads = [Closed(options.seconds, clients, seed_of(index, k)) for k in range(len(instances))]
            rows[way]["closed"].append(figures(serve_loads(instances, way, loads)))
    for row in rows.values():
        row["capacity"] = statistics.median(round_figures["rate"] for round_figures in row["closed"])


def measure_open(
    instances: Sequence[Instance], rows: dict[str, Row], fraction: float, options: argparse.Namespace
) -> None:
    """Measure at ``fraction`` of each variant's capacity, and torchmdla also at that of the best peer's."""
    runs = {way: ("open", way, fraction * row["capacity"]) for way, row in rows.items()}
    if OURS in rows and (best := best_peer(rows)):
        runs["matched"] = ("matched", OURS, fraction * rows[best]["capacity"])
    for index in range(options.rounds):
        for name in alternate(list(runs), index):
            kind, way, rate = runs[name]
            loads: list[Load] = [
                Open(rate / len(instances), options.seconds, seed_of(index, k)) for k in range(len(instances))
            ]
            rows[way][kind].setdefault(fraction, []).append(figures(serve_loads(instances, way, loads)))


def seed_of(index: int, instance: int) -> int:
    """Return the seed of the requests of an instance in a round, which is the same for all variants."""
    return 1000 * index + instance


def figures(answers: Sequence[Answers]) -> dict[str, float]:
    """Return the figures of one round, all instances together; latencies in milliseconds."""
    latencies = [latency * 1e3 for instance in answers for latency in instance.latencies]
    return {
        "rate": sum(instance.rate for instance in answers),
        "requests": len(latencies),
        **{f"p{percent}": percentile(latencies, percent) for percent in PERCENTILES},
    }


def summary(way: Row) -> Row:
    """Return the figures of all rounds of a variant, load by load."""
    loads = {
        kind: {part: summarise_rounds(rounds) for part, rounds in way[kind].items()} for kind in ("open", "matched")
    }
    return {"capacity": way["capacity"], "closed": summarise_rounds(way["closed"]), **loads}


def summarise_rounds(rounds: Sequence[Mapping[str, float]]) -> Row:
    """Return the maximum and the median rate, and the minimum and the median of each percentile."""
    rates = [round_figures["rate"] for round_figures in rounds]
    result: Row = {"rate": {"max": max(rates), "median": statistics.median(rates)}, "rounds": list(rounds)}
    for name in (f"p{percent}" for percent in PERCENTILES):
        values = [round_figures[name] for round_figures in rounds]
        result[name] = {"min": min(values), "median": statistics.median(values)}
    return result


def best_peer(ways: Mapping[str, Row]) -> str | None:
    """Return the variant with the greatest capacity that is not torchmdla's."""
    peers = {name: way["capacity"] for name, way in ways.items() if name != OURS}
    return max(peers, key=lambda name: peers[name], default=None)


def ratios_of(ways: Mapping[str, Row], fractions: Sequence[float]) -> Row | None:
    """Return torchmdla's advantage over the best peer: requests per second, and latencies at the peer's rates."""
    peer = best_peer(ways)
    if peer is None or OURS not in ways:
        return None
    ours, theirs = ways[OURS], ways[peer]
    rates, others = ours["closed"]["rate"], theirs["closed"]["rate"]
    latencies = {
        fraction: {
            name: {key: theirs["open"][fraction][name][key] / value for key, value in figures_of_load.items()}
            for name, figures_of_load in ours["matched"][fraction].items()
            if name.startswith("p")
        }
        for fraction in fractions
    }
    return {"peer": peer, "rate": {key: rates[key] / others[key] for key in rates}, "latency": latencies}


# --- starts ------------------------------------------------------------------------------------------------------


def starts_of(model: str, folder: str, options: argparse.Namespace) -> Row:
    """Run processes of all kinds in turn."""
    peers = [way for way in first_answers.VARIANTS if way.startswith(OURS) or is_asked_for(way, options.peers)]
    threads = len(processors())
    row: Row = {"model": model, "threads": threads, "ways": {}, "skipped": {}, "faults": []}
    common = {"folder": folder, "threads": threads}
    task = {**common, "model": model, "quick": options.quick, "sizes": sizes_of(model, options.quick), "ways": peers}
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache:
        variables = {"TORCHMDLA_ENABLE": "0", "TORCHMDLA_CACHE_DIR": cache, "OMP_NUM_THREADS": str(threads)}
        try:
            row["skipped"] = children.run("harness.first_answers:write_files", task, variables)
        except children.ChildFailed as failure:
            return {**row, "faults": [f"files: {failure}"]}
        row["faults"] = [f"{way}: {why}" for way, why in row["skipped"].items() if way.startswith(OURS)]
        ways = [way for way in peers if way not in row["skipped"]]
        times_of: dict[str, list[list[float]]] = {way: [] for way in ways}
        del variables["TORCHMDLA_ENABLE"]
        # The first round fills caches.
        for index in range(options.starts + 1):
            for way in alternate(ways, index):
                try:
                    times, fault = start_of(way, common, variables)
                except children.ChildFailed as failure:
                    times, fault = [], str(failure)
                if index and times:
                    times_of[way].append(times)
                if fault and (index or way != "torchmdla-warm"):
                    row["faults"].append(f"{way}: {fault}")
    row["ways"] = {way: start_figures(runs) for way, runs in times_of.items() if runs}
    return row


def is_asked_for(way: str, peers: Sequence[str]) -> bool:
    """Return whether ``way`` is requested. PyTorch's process always is, as the reference."""
    return way == "frozen" or way.partition("-")[0] in peers


def start_of(way: str, task: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[list[float], str | None]:
    """Return the seconds from the start of a process to each of its answers, and the fault, if any."""
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as empty:
        variables_of_way = {"TORCHMDLA_CACHE_DIR": empty} if way == "torchmdla-cold" else {}
        start = time.monotonic()
        answer = children.run("harness.first_answers:answer", {**task, "way": way}, {**variables, **variables_of_way})
    fault = answer["fault"]
    if way.startswith(OURS) and bool(answer["compiled"]) != (way == "torchmdla-cold"):
        fault = fault or f"{answer['compiled']} programs were compiled"
    return [at - start for at in answer["answered"]], fault


def start_figures(runs: Sequence[Sequence[float]]) -> Row:
    """Return the figures of all processes of a kind; ``runs`` are seconds to each answer."""
    result: Row = {"runs": runs}
    for name, place in (("first", 0), ("fifth", 4)):
        times = [run[place] for run in runs]
        result[name] = {"min": min(times), "median": statistics.median(times)}
    return result


# --- all rows ----------------------------------------------------------------------------------------------------


def save(options: argparse.Namespace, rows: Sequence[Row], starts: Sequence[Row]) -> None:
    settings = {name: getattr(options, name) for name in ("quick", "clients", "fractions", "rounds", "seconds")}
    output.write_json(options.json, {"benchmark": "serving", **settings, "rows": rows, "starts": starts})


def show(rows: Sequence[Row]) -> None:
    if not rows:
        return
    fractions = list(next((way["open"] for row in rows for way in row["ways"].values()), {}))
    loads = output.table(
        "requests a second of all instances together, greatest / median; ms of p50 / p95 / p99, median of the rounds",
        ("model", "instances × threads", "way", "requests/s", *(f"at {fraction:g} of that" for fraction in fractions)),
    )
    ratios = output.table(
        "torchmdla against the best peer, at the peer's rates: best / median of rounds; above 1 torchmdla is better",
        ("model", "instances × threads", "peer", "requests/s", *(f"p50, p95, p99 at {part:g}" for part in fractions)),
    )
    for row in rows:
        place = (row["model"], f"{row['instances']} × {row['threads']}")
        for name, way in row["ways"].items():
            rate = way["closed"]["rate"]
            cells = [latencies(way["open"][fraction]) for fraction in fractions]
            loads.add_row(*place, name, f"{output.digits(rate['max'])} / {output.digits(rate['median'])}", *cells)
        if comparison := row["ratios"]:
            cells = [
                ", ".join(
                    ratio(ratios_of_percentile) for ratios_of_percentile in comparison["latency"][fraction].values()
                )
                for fraction in fractions
            ]
            ratios.add_row(*place, comparison["peer"], ratio(comparison["rate"]), *cells)
    notes = {f"{row['model']}: {way} left out: {why}" for row in rows for way, why in row["skipped"].items()}
    output.show(loads, ratios, *sorted(notes), width=190)


def latencies(load: Row) -> str:
    return " / ".join(output.digits(load[f"p{percent}"]["median"]) for percent in PERCENTILES)


def ratio(values: Mapping[str, float]) -> str:
    return " / ".join(f"{value:.2f}" for value in values.values())


def show_starts(starts: Sequence[Row]) -> None:
    if not starts:
        return
    table = output.table(
        "seconds from a process's start, least / median", ("model", "threads", "way", "first answer", "fifth answer")
    )
    for row in starts:
        for name, way in row["ways"].items():
            table.add_row(
                row["model"], str(row["threads"]), name, *(output.pair(way[answer]) for answer in ("first", "fifth"))
            )
    notes = {f"{row['model']}: {way} left out: {why}" for row in starts for way, why in row["skipped"].items()}
    output.show(table, *sorted(notes))


def plot(rows: Sequence[Row], file: Path) -> None:
    """Draw a chart for each row: the 99th percentile of latencies, and dotted the 50th, by requests per second."""
    save_charts(rows, draw, file, across=len({row["instances"] for row in rows}), height=4.5)


def draw(row: Row, chart: Any) -> None:
    """Draw the chart of one row. A line ends at the capacity of the variant, which is marked."""
    for name, way in row["ways"].items():
        loads = sorted([*way["open"].values(), *way["matched"].values()], key=lambda load: load["rate"]["median"])
        rates = [load["rate"]["median"] for load in loads]
        for percent, style in ((99, "o-"), (50, ".:")):
            heights = [load[f"p{percent}"]["median"] for load in loads]
            chart.plot(rates, heights, style, color=COLOURS[name], label=name if percent == 99 else None)
        chart.axvline(way["capacity"], color=COLOURS[name], linewidth=0.8, linestyle="--")
    chart.set_yscale("log")
    chart.set_xlim(left=0)
    instances, threads = row["instances"], row["threads"]
    chart.set_title(
        f"{row['model']}, {instances} instance{'s' * (instances > 1)} of {threads} thread{'s' * (threads > 1)}"
    )
    chart.set_xlabel("requests a second; dashed: capacity")
    chart.set_ylabel("latency in ms: p99, dotted p50")
    if row["ways"]:
        chart.legend(fontsize="x-small")


if __name__ == "__main__":
    sys.exit(main())
