"""Measure packages in C++: how long a program needs to load and for its first answer, compared with libtorch alone.

Each model is saved with the code of its groups. The example in examples/cpp, which this script builds, loads the file
in separate processes, without Python and without a compiler: with torchmdla, and with torchmdla switched off, in turn.
There are two marks. The first call lasts at most 1.2 times the tenth. Load and first call together last at most 100 ms
more than with libtorch alone. With --check, the exit status is 1 if the medians miss a mark. It is always 1 if anything
fell back.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import output

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "examples-cpp"

# Maximum ratio of the first to the tenth call, and maximum milliseconds of load and first call beyond libtorch's.
MOST_TENTHS, MOST_BEYOND = 1.2, 100.0

Run = dict[str, float]


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--models", type=output.one_of(["resnet50", "bert", "mlp"]), help="(resnet50,bert)")
    parser.add_argument("--threads", type=output.number, default=os.cpu_count(), help="of each op (%(default)s)")
    parser.add_argument("--rounds", type=output.number, default=7, help="processes of each kind (%(default)s)")
    parser.add_argument("--pack-weights", action="store_true", help="have packed weights in the files")
    parser.add_argument("--check", action="store_true", help="end with status 1 where a mark is missed")
    options = parser.parse_args()
    models = options.models or (["mlp"] if options.quick else ["resnet50", "bert"])
    program = build()
    rows = []
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        for model in models:
            call = save(model, Path(folder), options.quick, options.pack_weights)
            rows.append(measure(program, Path(folder), call, model, 2 if options.quick else options.rounds, options))
            output.write_json(options.json, {"benchmark": "packages", "quick": options.quick, "rows": rows})
    show(rows)
    missed = [f"{row['model']}: {fault}" for row in rows for fault in row["missed"]]
    faults = [f"{row['model']}: {fault}" for row in rows for fault in row["faults"]]
    output.show(*missed, *faults)
    return int(bool(faults or (options.check and missed)))


def build() -> Path:
    """Build the example program."""
    prefix = subprocess.run([sys.executable, "-m", "torchmdla", "cmake"], capture_output=True, text=True, check=True)
    cmake = str(Path(sys.executable).with_name("cmake"))
    configure = ["-S", str(ROOT / "examples" / "cpp"), "-B", str(BUILD), f"-DCMAKE_PREFIX_PATH={prefix.stdout.strip()}"]
    for command in ([cmake, *configure], [cmake, "--build", str(BUILD)]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return BUILD / "run"


def save(model: str, folder: Path, quick: bool, pack_weights: bool) -> str:
    """Write the package of a model. Return the inputs of a call, as the example reads them."""
    import torch

    import torchmdla
    from torchmdla.testing.models import MODELS

    spec = MODELS[model].reduced() if quick else MODELS[model]
    inputs = spec.inputs()
    torchmdla.save(spec.build().eval(), folder / f"{model}.pt", [inputs], pack_weights=pack_weights)
    torch.save(list(inputs), folder / f"{model}.inputs")
    return f"@{folder / f'{model}.inputs'}"


def measure(program: Path, folder: Path, call: str, model: str, rounds: int, options: Any) -> dict[str, Any]:
    """Run processes with and without torchmdla, in turn."""
    runs: dict[str, list[Run]] = {"torchmdla": [], "libtorch": []}
    faults: set[str] = set()
    with output.progress(rounds, model) as bar:
        for _ in range(rounds):
            for way, runs_of_way in runs.items():
                variables = {"TORCHMDLA_ENABLE": str(int(way == "torchmdla")), "OMP_NUM_THREADS": str(options.threads)}
                done = subprocess.run(
                    [str(program), str(folder / f"{model}.pt"), call],
                    env={**os.environ, **variables},
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                runs_of_way.append({name: float(ms) for name, ms in re.findall(r"(load|call \d+) ([\d.]+) ms", done)})
                faults.update(json.loads(done.splitlines()[-1])["fallbacks"])
            bar.update()
    return row_of(model, runs, sorted(faults), options.threads)


def row_of(model: str, runs: dict[str, list[Run]], faults: list[str], threads: int) -> dict[str, Any]:
    row: dict[str, Any] = {"model": model, "threads": threads, "runs": runs, "faults": faults, "missed": []}
    row["tenths"] = statistics.median(run["call 1"] / run["call 10"] for run in runs["torchmdla"])
    both = {
        way: statistics.median(run["load"] + run["call 1"] for run in runs_of_way) for way, runs_of_way in runs.items()
    }
    row["beyond"] = both["torchmdla"] - both["libtorch"]
    if row["tenths"] > MOST_TENTHS:
        row["missed"].append(f"the first call takes {row['tenths']:.2f} of the tenth, more than {MOST_TENTHS}")
    if row["beyond"] > MOST_BEYOND:
        row["missed"].append(f"load and first call take {row['beyond']:.0f} ms more, more than {MOST_BEYOND:.0f}")
    return row


def show(rows: list[dict[str, Any]]) -> None:
    columns = ["model", "", "load", "first call", "tenth call", "first ÷ tenth", "load and first, beyond libtorch"]
    table = output.table("Packages in C++", columns, "ms, least and median of processes")
    for row in rows:
        for way, runs in row["runs"].items():
            times = [times_of([run[name] for run in runs]) for name in ("load", "call 1", "call 10")]
            ratios = [f"{row['tenths']:.2f}", f"{row['beyond']:+.0f} ms"] if way == "torchmdla" else ["", ""]
            table.add_row(row["model"], way, *times, *ratios)
    output.show(table)


def times_of(milliseconds: list[float]) -> str:
    return f"{min(milliseconds):.1f}  {statistics.median(milliseconds):.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
