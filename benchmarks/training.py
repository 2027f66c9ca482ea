"""Compare steps of training: forward, loss, backward and optimiser, with equal losses.

Each row trains one model with all systems in turn, in a process of its own. Each system has a copy of the model with
the same weights. Times are the minimum and the median of the rounds, in milliseconds for one step. The gain is the
best peer's minimum time over torchmdla's. First steps include compiling. A system that ends the first steps with
another loss than eager is reported, and not timed.

The memory of a step, in MiB, is the largest resident set during the step, without what was resident before it. So it
is that of activations, gradients and temporary values. The step runs on a new thread, so that memory which a system
keeps for a thread is counted. Linux only.

With --level x86-64-v3 all systems are held to AVX2. zentorch takes part if it is installed. So does JAX with the models
mlp and bert, in float32 with SGD, but not at that level: its products have no switch that holds them to AVX2. The exit
status is 1 if torchmdla fails or its loss differs.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import children, output
from harness.charts import save_charts
from harness.jax_steps import MODELS as JAX_MODELS
from harness.steps import OPTIMISERS, TASKS, Training, build, train

Row = dict[str, Any]

OURS = ("torchmdla", "torchscript", "lazy", "acap")
PEERS = ("eager", "inductor", "zentorch", "jax")
SYSTEMS = (*PEERS, *OURS)

# Systems that need a package which may be missing.
OPTIONAL = ("zentorch", "jax")

COLOURS = {
    "eager": "midnightblue",
    "inductor": "lightsteelblue",
    "zentorch": "darkgrey",
    "jax": "silver",
    "torchmdla": "crimson",
    "torchscript": "lightcoral",
    "lazy": "sandybrown",
    "acap": "peachpuff",
}

_STEPS = 20  # before losses are compared
_TOLERANCE = 1e-2  # of the losses, relative


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(TASKS), help=f"of {','.join(TASKS)} (all)")
    parser.add_argument("--systems", type=output.one_of(SYSTEMS), help=f"of {','.join(SYSTEMS)} (all)")
    parser.add_argument("--threads", type=output.numbers, help="of each op, in turn (1,2)")
    parser.add_argument("--rounds", type=output.number, help="timed rounds of each system (7)")
    parser.add_argument("--optimiser", choices=OPTIMISERS, default="sgd", help="(%(default)s)")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="bfloat16: by autocast")
    parser.add_argument("--level", choices=children.LEVELS, default="native", help="instructions to use (%(default)s)")
    parser.add_argument(
        "--compile-optimiser", action="store_true", help="compile the optimiser's step by torch.compile"
    )
    parser.add_argument("--plot", type=output.new_file, metavar="FILE", help="draw speeds and memory into this PNG")
    options = parser.parse_args()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install torchmdla[bench]")
    present = [name for name in SYSTEMS if name not in OPTIONAL or importlib.util.find_spec(name)]
    output.fill_in(
        options,
        {
            False: {"models": list(TASKS), "systems": present, "threads": [1, 2], "rounds": 7},
            True: {"models": ["mlp", "lstm"], "systems": ["eager", *OURS], "threads": [1], "rounds": 2},
        },
    )
    if options.level != "native":
        options.systems = [system for system in options.systems if system != "jax"]
    rows: list[Row] = []
    settings = {
        name: getattr(options, name) for name in ("quick", "optimiser", "compile_optimiser", "precision", "level")
    }
    with output.progress(len(options.models) * len(options.threads), "row") as bar:
        for threads in options.threads:
            for model in options.models:
                bar.set_postfix_str(f"{model}, {threads} thread(s)")
                task = {"model": model, "systems": options.systems, "threads": threads, "rounds": options.rounds}
                task |= {
                    name: getattr(options, name) for name in ("optimiser", "compile_optimiser", "precision", "quick")
                }
                variables = {**children.LEVELS[options.level], "OMP_NUM_THREADS": str(threads)}
                rows.append(children.run("training:measure", task, variables, bar.set_postfix_str))
                output.write_json(options.json, {"benchmark": "training", **settings, "rows": rows})
                bar.update()
    if options.plot:
        plot(rows, options.plot)
    for threads in options.threads:
        show([row for row in rows if row["threads"] == threads], options, threads)
    return int(any(system in OURS for row in rows for system in row["faults"]))


def measure(
    model: str,
    systems: list[str],
    threads: int,
    rounds: int,
    optimiser: str,
    compile_optimiser: bool,
    precision: str,
    quick: bool,
) -> Row:
    """Return the times of one row's systems, their first steps, losses and memory."""
    import torch
    import torch._inductor.config

    import torchmdla
    from torchmdla.testing import timing

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    torch._inductor.config.fallback_random = True
    program = build(TASKS[model], quick)
    trainings: dict[str, Training] = {}
    first: dict[str, float] = {}
    losses: dict[str, float] = {}
    faults: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache:
        os.environ["TORCHMDLA_CACHE_DIR"] = cache
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}/inductor"
        for system in systems:
            if system == "jax" and not (model in JAX_MODELS and optimiser == "sgd" and precision == "float32"):
                continue
            children.step(f"{model}: first steps of {system}")
            try:
                step, _ = trainings[system] = train(system, program, optimiser, compile_optimiser, precision)
                torch.manual_seed(0)  # of dropout; a trace draws numbers, too
                start = time.perf_counter()
                step()
                first[system] = time.perf_counter() - start
                losses[system] = [step() for _ in range(_STEPS)][-1]
            except Exception as error:
                faults[system] = f"{type(error).__name__}: {str(error)[:200]}"
        reference = losses["eager"]
        for system, last in losses.items():
            if not abs(last - reference) <= _TOLERANCE * abs(reference):
                faults[system] = f"loss {last:.6g} after {_STEPS} steps, eager's is {reference:.6g}"
        right = {system: training for system, training in trainings.items() if system not in faults}
        calls = {system: training.step for system, training in right.items()}
        times = calls and timing.time_interleaved(
            calls, rounds, on_round=lambda k: children.step(f"{model}: round {k + 1} of {rounds}")
        )
        children.step(f"{model}: memory")
        memory = {system: peak for system, training in right.items() if (peak := peak_of(training)) is not None}
    stats = torchmdla.stats()
    return {
        "model": model,
        "threads": threads,
        "times": {system: {**timing.summary(of), "rounds_s": of} for system, of in times.items()},
        "first_s": first,
        "losses": losses,
        "memory_mib": memory,
        "faults": faults,
        "groups": stats.groups,
        "fallbacks": {**stats.fallbacks, **stats.left_out},
    }


# Blocks from this size on leave the process when they are freed, so that the resident set shows what is in use.
_LEAST_MAPPED = 64 << 10
_M_MMAP_THRESHOLD = -3  # of mallopt


def peak_of(training: Training) -> float | None:
    """Return the MiB by which the resident set grows in a step on a new thread; None where this is not measured."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_THRESHOLD, _LEAST_MAPPED)
    peaks = []
    for _ in range(3):
        training.step()  # memory that the previous step left is freed
        training.free_gradients()
        library.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present resident set
        before = _status("VmRSS")
        thread = threading.Thread(target=training.step)
        thread.start()
        thread.join()
        peaks.append(_status("VmHWM") - before)
    return min(peaks)


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def show(rows: list[Row], options: Any, threads: int) -> None:
    """Print the tables of rows with one number of threads: times, first steps and memory."""
    whole = "compiled " * options.compile_optimiser + options.optimiser
    title = f"A step of training, {whole}, {options.precision}, {options.level}, {threads} thread(s)"
    gains = [gain(row) for row in rows]
    mean = output.geometric_mean([value for value in gains if value == value])
    times = output.table(title, ["model", *(f"{s}, ms" for s in options.systems), "gain"], f"mean gain {mean:.2f}")
    others = output.table("First step, s; memory of a step, MiB", ["model", *options.systems, *options.systems])
    for row, value in zip(rows, gains, strict=True):
        least = {system: of["min"] for system, of in row["times"].items()}
        times.add_row(row["model"], *_cells(least, options.systems), f"{value:.2f}")
        cells = (*_cells(row["first_s"], options.systems), *_cells(row["memory_mib"], options.systems))
        others.add_row(row["model"], *cells)
    faults = [f"{row['model']}, {system}: {why}" for row in rows for system, why in row["faults"].items()]
    fallbacks = [f"{row['model']}: {count} × {why}" for row in rows for why, count in row["fallbacks"].items()]
    output.show(times, others, *faults, *fallbacks)


def _cells(values: Mapping[str, float], systems: Sequence[str]) -> list[str]:
    return [f"{values[system]:.3g}" if system in values else "–" for system in systems]


def plot(rows: list[Row], file: Path) -> None:
    """Draw speed and memory relative to eager as bars, one chart for each quantity and number of threads."""
    charts: list[tuple[str, int, Callable[[Row, str], float]]] = []
    for threads in sorted({row["threads"] for row in rows}):
        charts.append(
            ("speed", threads, lambda row, system: row["times"]["eager"]["min"] / row["times"][system]["min"])
        )
        charts.append(("memory", threads, lambda row, system: row["memory_mib"][system] / row["memory_mib"]["eager"]))

    def draw(chart: tuple[str, int, Callable[[Row, str], float]], axes: Any) -> None:
        quantity, threads, relative = chart
        shown = [row for row in rows if row["threads"] == threads]
        systems = [name for name in SYSTEMS if any(name in row["times"] for row in shown)]
        width = 0.85 / max(len(systems), 1)
        for index, system in enumerate(systems):
            places = [place + (index - (len(systems) - 1) / 2) * width for place in range(len(shown))]
            bars = [relative(row, system) if system in row["times"] and row["memory_mib"] else 0 for row in shown]
            axes.bar(places, bars, width, label=system, color=COLOURS[system])
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_xticks(range(len(shown)), [row["model"] for row in shown], fontsize="small")
        better = "higher" if quantity == "speed" else "lower"
        axes.set_title(f"{quantity} of a step, eager = 1, {threads} thread(s); {better} is better", fontsize="medium")
        axes.legend(fontsize="small", ncols=len(systems))

    save_charts(charts, draw, file, across=1, height=3.2)


def gain(row: Row) -> float:
    """Return the best peer's minimum time over that of the best of torchmdla's systems; NaN if one is missing."""
    ours = [of["min"] for system, of in row["times"].items() if system in OURS]
    peers = [of["min"] for system, of in row["times"].items() if system not in OURS]
    return float(min(peers) / min(ours)) if ours and peers else float("nan")


if __name__ == "__main__":
    sys.exit(main())
