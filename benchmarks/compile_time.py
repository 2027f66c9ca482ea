"""Measure compile times: seconds until a model runs compiled, cold and from the cache, each in a separate process.

The measurement covers torchmdla.compile on the trace: freezing, the calls that PyTorch's executor needs, and compiling.
A third process measures the same freezing and calls without torchmdla. The marks apply to the difference, which is the
time that torchmdla adds. The process that compiles cold also starts the compiler and loads its modules. A process that
finds all programs in the cache does not.

Peers run in their own processes: Inductor with freezing, cold and from its own cache, and ONNX Runtime and OpenVINO,
which read a file that was exported before. Their time ends at the first result.

With --stages, more tables show the stages of the compile (docs/design/compile_time.md), for the cold process
with the fastest compiler. With --check, the exit status is 1 if a mark is missed. It is always 1 if a second process
compiled anything, or if anything fell back.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from harness import children, output

# Peers, and the processes of each: the second process finds the first one's results in its cache.
PEERS = {"inductor": ("cold", "cached"), "onnxruntime": ("cold",), "openvino": ("cold",)}

# Maximum seconds that torchmdla may add, cold and from the cache, on two cores.
MARKS = {"resnet50": {"cold": 4.0, "cached": 0.3}}

Row = dict[str, Any]


def main() -> int:
    from torchmdla.testing.models import MODELS

    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(MODELS), help=f"of {','.join(MODELS)} (all)")
    parser.add_argument("--threads", type=output.number, default=os.cpu_count(), help="of each op (%(default)s)")
    parser.add_argument("--repeat", type=output.number, help="measurements of each, of which the least counts (3)")
    parser.add_argument("--peers", type=output.one_of(PEERS), help=f"of {','.join(PEERS)} (those that are installed)")
    parser.add_argument("--stages", action="store_true", help="tell the stages of compiling, too")
    parser.add_argument("--check", action="store_true", help="end with status 1 where a mark is missed")
    options = parser.parse_args()
    models = options.models or (["mlp"] if options.quick else list(MODELS))
    repeat = options.repeat or (1 if options.quick else 3)
    peers = installed(options.peers or ([] if options.quick else list(PEERS)))
    rows: list[Row] = []
    processes = 3 + sum(len(PEERS[peer]) for peer in peers)
    with output.progress(len(models) * repeat * processes, "process") as bar:
        for model in models:
            task = {"model": model, "threads": options.threads, "quick": options.quick}
            runs = [measure_once(task, bar) for _ in range(repeat)]
            others = {peer: least([measure_peer_once(peer, task, bar) for _ in range(repeat)]) for peer in peers}
            rows.append({**row_of(model, runs), "peers": others})
            output.write_json(options.json, {"benchmark": "compile_time", "quick": options.quick, "rows": rows})
    show(rows)
    if options.stages:
        show_stages(rows)
    missed = [f"{row['model']}: {fault}" for row in rows for fault in row["missed"]]
    faults = [f"{row['model']}: {fault}" for row in rows for fault in row["faults"]]
    output.show(*missed, *faults)
    return int(bool(faults or (options.check and missed)))


def installed(peers: list[str]) -> list[str]:
    """Return those of ``peers`` whose packages are installed. Print the others."""
    from harness.peers import VARIANTS

    missing = {peer: packages for peer in peers if (packages := VARIANTS[peer].missing())}
    output.show(*(f"without {peer}: not installed: {', '.join(packages)}" for peer, packages in missing.items()))
    return [peer for peer in peers if peer not in missing]


def measure_once(task: dict[str, Any], bar: Any) -> dict[str, Any]:
    """Measure each of the three variants once, in three processes; cold and cached share a new cache folder."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        for name, enabled in (("without", "0"), ("cold", "1"), ("cached", "1")):
            bar.set_postfix_str(f"{task['model']}, {name}")
            variables = {"TORCHMDLA_ENABLE": enabled, "TORCHMDLA_CACHE_DIR": folder}
            variables["OMP_NUM_THREADS"] = str(task["threads"])
            results[name] = children.run("compile_time:measure", task, variables)
            bar.update()
    return results


def measure_peer_once(peer: str, task: dict[str, Any], bar: Any) -> dict[str, float]:
    """Return the seconds of one measurement of a peer in each of its processes, which share a new cache folder."""
    seconds = {}
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        for name in PEERS[peer]:
            bar.set_postfix_str(f"{task['model']}, {peer}, {name}")
            variables = {"TORCHMDLA_ENABLE": "0", "TORCHINDUCTOR_CACHE_DIR": folder}
            variables["OMP_NUM_THREADS"] = str(task["threads"])
            task_of_peer = {**task, "peer": peer, "folder": folder}
            seconds[name] = children.run("compile_time:measure_peer", task_of_peer, variables)
            bar.update()
    return seconds


def least(measurements: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(seconds[name] for seconds in measurements) for name in measurements[0]}


def measure_peer(model: str, threads: int, quick: bool, peer: str, folder: str) -> float:
    """Return the seconds until a peer's first result for one model, in this process."""
    import torch
    from harness.peers import VARIANTS, subject_of

    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    subject = subject_of(MODELS[model].reduced() if quick else MODELS[model], (), threads, Path(folder))
    with torch.no_grad():
        subject.module(*subject.inputs)  # as in `measure`
        if "onnx" in VARIANTS[peer].packages:
            assert subject.onnx
        start = time.perf_counter()
        VARIANTS[peer].prepare(subject).results(subject.inputs)
        return time.perf_counter() - start


def measure(model: str, threads: int, quick: bool) -> dict[str, Any]:
    """Compile one model in this process."""
    import torch

    import torchmdla
    from torchmdla.compile_service.service import default_service
    from torchmdla.testing.models import MODELS

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    spec = MODELS[model].reduced() if quick else MODELS[model]
    module, inputs = spec.build(), spec.inputs()
    with torch.no_grad():
        module(*inputs)  # exclude the setup of libraries in their first call
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
    """Return the minimum of each time, and the faults."""
    seconds = {name: min(run[name]["seconds"] for run in runs) for name in ("without", "cold", "cached")}
    added = {name: seconds[name] - seconds["without"] for name in ("cold", "cached")}
    first = runs[0]
    conditions = {
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
        "faults": [fault for fault, holds in conditions.items() if holds],
    }


def show(rows: list[Row]) -> None:
    columns = ["model", "programs", "without", "cold", "cached", "compiler", "added cold", "added cached", "marks"]
    columns += [f"{peer}, {name}" for peer, seconds in rows[0]["peers"].items() for name in seconds]
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
            *(f"{number:.2f}" for seconds in row["peers"].values() for number in seconds.values()),
        )
    output.show(table)


def show_stages(rows: list[Row]) -> None:
    """Print the stages of the compiler's seconds.

    The remainder is the time of starting the compiler process and sending the program.
    """
    for row in rows:
        fastest = min((run["cold"] for run in row["runs"]), key=lambda run: run["compiler_seconds"])
        stages = {**fastest["stages"]}
        stages["start"] = fastest["compiler_seconds"] - sum(stages.values())
        table = output.table(f"Seconds of each stage, {row['model']}", tuple(stages))
        table.add_row(*(f"{seconds:.2f}" for seconds in stages.values()))
        output.show(table)


if __name__ == "__main__":
    sys.exit(main())
