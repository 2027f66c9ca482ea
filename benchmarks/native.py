"""Compare models without PyTorch: the runtime of ``torchmdla.export_native``, ONNX Runtime and OpenVINO. Linux only.

Each engine runs in a separate process, which imports only NumPy besides; torchmdla's also runs in a C program. All
processes start in turn, several times, which gives the time until the first result. In the last process of each, calls
are timed in rounds, in turn, and memory is read after them. Columns: ``library`` is the size on disk of the engine's
shared objects that its process has mapped. ``model`` is the size of the model's files. ``peak`` is the peak resident
set. ``without model`` is the peak less the model's files, which contain little but weights. ``private`` is the memory
of each further process of the same kind, without the shared part.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import output

MIB = 2**20
HARNESS = Path(__file__).resolve().parent / "harness"

Row = dict[str, Any]


@dataclass(frozen=True)
class Engine:
    """Engine that runs the model: the command, the model's files, and a part of its libraries' paths."""

    label: str
    command: Sequence[str]
    files: Sequence[Path]
    library: str


class Process:
    """Process of an engine, after its first result."""

    def __init__(self, engine: Engine) -> None:
        start = time.monotonic() * 1e3
        path = os.pathsep.join([str(HARNESS.parent), str(HARNESS.parents[1])])
        self._child = subprocess.Popen(
            engine.command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._engine = engine
        self.start = float(self._answer()) - start

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.communicate()

    def times(self, calls: int) -> list[float]:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{calls}\n")
        self._child.stdin.flush()
        return [float(text) for text in self._answer().split()]

    def memory(self) -> dict[str, float]:
        """Return ``VmHWM``, ``RssAnon`` and other fields of its status, in MiB."""
        lines = Path(f"/proc/{self._child.pid}/status").read_text().splitlines()
        pairs = (line.split() for line in lines if line.endswith("kB"))
        return {name.rstrip(":"): int(number) / 1024 for name, number, _ in pairs}

    def library(self) -> float:
        """Return the size of the engine's shared objects in MiB."""
        lines = Path(f"/proc/{self._child.pid}/maps").read_text().splitlines()
        mapped = {line.split(maxsplit=5)[5] for line in lines if self._engine.library in line and ".so" in line}
        return sum(Path(file).stat().st_size for file in mapped) / MIB

    def _answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"{self._engine.label} ended with status {self._child.wait()}")
        return line


def main() -> int:
    from torchmdla.testing.models import MODELS

    parser = output.parser(__doc__)
    parser.add_argument("--model", default="resnet50", choices=list(MODELS), help="%(default)s, on one input")
    parser.add_argument("--threads", type=output.numbers, default=[1, 2], help="of each engine (1,2)")
    parser.add_argument("--starts", type=output.number, default=7, help="of each process (%(default)s)")
    parser.add_argument("--rounds", type=output.number, default=12, help="of calls (%(default)s)")
    options = parser.parse_args()
    if options.quick:
        options.starts = options.rounds = 1
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        files, sizes = export(options.model, options.quick, Path(folder))
        rows = [
            row
            for threads in options.threads
            for row in measure(engines(files, sizes, threads, Path(folder)), threads, options)
        ]
    output.write_json(options.json, {"benchmark": "native", "model": options.model, "rows": rows})
    show(options.model, rows)
    return 0


# --- measurements


def export(model: str, quick: bool, folder: Path) -> tuple[dict[str, list[Path]], str]:
    """Return the model's files by engine, and its input's sizes. PyTorch runs in a child process only."""
    code = f"import json, native; print(json.dumps(native.write_files({model!r}, {quick}, {str(folder)!r})))"
    path = os.pathsep.join([str(HARNESS.parent), str(HARNESS.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    files, sizes = json.loads(done.stdout.splitlines()[-1])
    return {engine: list(map(Path, paths)) for engine, paths in files.items()}, sizes


def write_files(model: str, quick: bool, folder: str) -> tuple[dict[str, list[str]], str]:
    from harness.peers import Subject

    import torchmdla
    from torchmdla.testing.models import MODELS

    spec = MODELS[model].reduced() if quick else MODELS[model]
    module, inputs = spec.build().eval(), spec.inputs(batch=1)
    path = Path(folder)
    torchmdla.export_native(module, inputs, path / "model.tmdla")
    files = {"torchmdla": [str(path / "model.tmdla")]}
    subject = Subject(module, inputs, 1, path)
    if _installed("onnxruntime") and _installed("onnxscript"):
        files["onnxruntime"] = [str(subject.onnx), *map(str, subject.onnx.parent.glob("*.data"))]
    if "onnxruntime" in files and _installed("openvino"):
        import openvino

        # Avoid convert_model, which reports its use over the network, from forks of this process.
        openvino.save_model(openvino.Core().read_model(str(subject.onnx)), path / "model.xml", compress_to_fp16=False)
        files["openvino"] = [str(path / "model.xml"), str(path / "model.bin")]
    return files, "x".join(map(str, inputs[0].shape))


def _installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


def engines(files: dict[str, list[Path]], sizes: str, threads: int, folder: Path) -> list[Engine]:
    libraries = {"torchmdla": "torchmdla_runtime", "onnxruntime": "/onnxruntime/", "openvino": "/openvino/"}
    labels = {"torchmdla": "torchmdla, Python", "onnxruntime": "ONNX Runtime, Python", "openvino": "OpenVINO, Python"}
    result = []
    if program := build_program(folder):
        paths_of_model = files["torchmdla"]
        result.append(
            Engine(
                "torchmdla, C", [program, str(paths_of_model[0]), str(threads)], paths_of_model, libraries["torchmdla"]
            )
        )
    for engine, paths in files.items():
        command = [sys.executable, "-m", "harness.engine_process", engine, str(paths[0]), sizes, str(threads)]
        result.append(Engine(labels[engine], command, paths, libraries[engine]))
    return result


def build_program(folder: Path) -> str | None:
    """Return the path of the C program; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    options = subprocess.run(
        [sys.executable, "-m", "torchmdla_runtime"],
        env={**os.environ, "PYTHONPATH": str(HARNESS.parents[1])}, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    program = str(folder / "engine")
    subprocess.run([compiler, "-O2", str(HARNESS / "engine.c"), *shlex.split(options), "-o", program], check=True)
    return program


def measure(engines_to_run: Sequence[Engine], threads: int, options: Any) -> list[Row]:
    starts: dict[str, list[float]] = {engine.label: [] for engine in engines_to_run}
    for _ in range(options.starts):
        for engine in engines_to_run:
            with Process(engine) as process:
                starts[engine.label].append(process.start)
    with ExitStack() as stack:
        processes = {engine.label: stack.enter_context(Process(engine)) for engine in engines_to_run}
        times: dict[str, list[float]] = {label: [] for label in processes}
        for number in range(options.rounds + 1):
            for label, process in processes.items():
                milliseconds = process.times(5)
                times[label] += milliseconds if number else []
        return [_row(engine, threads, processes[engine.label], starts, times) for engine in engines_to_run]


def _row(
    engine: Engine,
    threads: int,
    process: Process,
    starts: dict[str, list[float]],
    times: dict[str, list[float]],
) -> Row:
    memory, size = process.memory(), sum(file.stat().st_size for file in engine.files) / MIB
    return {
        "engine": engine.label,
        "threads": threads,
        "library": process.library(),
        "model": size,
        "start": {"min": min(starts[engine.label]), "median": statistics.median(starts[engine.label])},
        "call": {"min": min(times[engine.label]), "median": statistics.median(times[engine.label])},
        "peak": memory["VmHWM"],
        "without_model": memory["VmHWM"] - size,
        "private": memory["RssAnon"],
    }


def show(model: str, rows: Sequence[Row]) -> None:
    columns = ("engine", "threads", "library", "model", "start, ms", "call, ms", "peak", "without model", "private")
    table = output.table(f"{model} without PyTorch; MiB, and least / median of times", columns)
    for row in rows:
        sizes = [output.digits(row[name]) for name in ("library", "model")]
        memory = [f"{row[name]:.0f}" for name in ("peak", "without_model", "private")]
        table.add_row(
            row["engine"], str(row["threads"]), *sizes, output.pair(row["start"]), output.pair(row["call"]), *memory
        )
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
