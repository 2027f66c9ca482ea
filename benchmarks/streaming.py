"""Compare silero-vad on a stream: the runtime without PyTorch, TorchScript, torchmdla in PyTorch and ONNX Runtime.

Each engine runs in a process of its own, on one thread. The runtime also runs in a C program (``stream.c``), which
counts the allocations of its calls. Rounds of calls alternate between the engines. The package silero-vad has the files
(``pip install --no-deps --target build/silero silero-vad``).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import output

HARNESS = Path(__file__).resolve().parent / "harness"
ROOT = HARNESS.parents[1]
SAMPLES = {16000: 512, 8000: 256}


class Process:
    """Process of an engine; see ``harness/stream_process.py``."""

    def __init__(self, engine: str, path: Path, rate: int) -> None:
        command = [sys.executable, "-W", "ignore", str(HARNESS / "stream_process.py"), engine, str(path)]
        self._child = subprocess.Popen(
            [*command, str(SAMPLES[rate]), str(rate)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.load, self.first = map(float, self._answer().split())

    def times(self, calls: int) -> np.ndarray[Any, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{calls}\n")
        self._child.stdin.flush()
        return read_times(Path(self._answer().strip()))

    def end(self) -> None:
        self._child.communicate()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended with status {self._child.wait()}")
        return line


class Program:
    """The C program, in a new process for each round."""

    def __init__(self, program: Path, model: Path, rate: int) -> None:
        self._command = [str(program), str(model), str(SAMPLES[rate]), str(rate)]
        self.first = self.load = float("inf")
        self.allocations = 0

    def times(self, calls: int) -> np.ndarray[Any, Any]:
        file = Path(tempfile.mktemp(suffix=".bin"))
        done = subprocess.run(
            [*self._command, str(calls), "10", str(file)], stdout=subprocess.PIPE, text=True, check=True
        )
        words, times = done.stdout.split(), read_times(file)
        self.allocations += int(words[0])
        self.load = min(self.load, float(words[-2]))
        self.first = min(self.first, times[0] / 1e6)
        return times[10:]

    def end(self) -> None:
        pass


def read_times(file: Path) -> np.ndarray[Any, Any]:
    times = np.fromfile(file, np.int64)
    file.unlink()
    return times


def main() -> int:
    parser = output.parser(__doc__)
    parser.add_argument("--data", type=Path, default=ROOT / "build/silero/silero_vad/data", help="(%(default)s)")
    parser.add_argument("--rate", type=output.number, default=16000, choices=list(SAMPLES), help="(%(default)s)")
    parser.add_argument("--rounds", type=output.number, default=20, help="of calls (%(default)s)")
    parser.add_argument("--calls", type=output.number, default=5000, help="of each round (%(default)s)")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.calls = 1, 200
    with tempfile.TemporaryDirectory(prefix="torchmdla-benchmark-") as folder:
        model, program = Path(folder) / "silero.tmdla", Path(folder) / "stream"
        difference = export(options.data / "silero_vad.jit", model)
        build(program)
        script, onnx = options.data / "silero_vad.jit", options.data / "silero_vad.onnx"
        engines: dict[str, Process | Program] = {
            "torchmdla, C": Program(program, model, options.rate),
            "torchmdla, Python without PyTorch": Process("native", model, options.rate),
            "torchmdla in PyTorch": Process("torchmdla", script, options.rate),
            "TorchScript": Process("torchscript", script, options.rate),
            "ONNX Runtime": Process("onnxruntime", onnx, options.rate),
        }
        times: dict[str, list[np.ndarray[Any, Any]]] = {label: [] for label in engines}
        for _ in range(options.rounds):
            for label, engine in engines.items():
                times[label].append(engine.times(options.calls))
        rows = [row(label, engine, np.concatenate(times[label]) / 1e3) for label, engine in engines.items()]
        for engine in engines.values():
            engine.end()
    output.write_json(
        options.json, {"benchmark": "streaming", "rate": options.rate, "difference": difference, "rows": rows}
    )
    show(rows)
    print(f"largest difference from TorchScript in 1000 chunks: {difference:.1e}")
    return 0


def export(script: Path, model: Path) -> float:
    """Export the program in a process of its own, because only that one imports PyTorch.

    Return the largest difference from TorchScript on a stream.
    """
    path = os.pathsep.join([str(HARNESS.parent), str(ROOT)])
    code = f"import streaming; print(streaming.write_model({str(script)!r}, {str(model)!r}))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def write_model(script: str, path: str, chunks: int = 500) -> float:
    import torch

    import torchmdla
    import torchmdla_runtime

    program = torch.jit.load(script).eval()
    calls = [(torch.randn(1, SAMPLES[rate]), rate) for rate in (16000, 8000, 16000)]
    torchmdla.export_native(program, {"forward": calls, "reset_states": [()]}, path)
    session = torchmdla_runtime.Model(path, threads=1).session()
    worst = 0.0
    with torch.no_grad(), torchmdla.enabled(False):
        for rate, size in SAMPLES.items():
            program.reset_states(), session.reset_states()
            for k in range(chunks):
                # Tones and pauses, so that the probability rises and falls.
                volume = 0.3 * max(0.0, float(np.sin(k / 25)))
                samples = torch.sin(torch.arange(size) * (0.02 + 0.01 * (k // 100 % 7))) * volume
                samples = samples[None] + 0.02 * torch.randn(1, size)
                expected, result = program(samples, rate).item(), session(samples.numpy(), rate).item()
                worst = max(worst, abs(expected - result))
    return worst


def build(program: Path) -> None:
    options = subprocess.run(
        [sys.executable, "-m", "torchmdla_runtime"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    source = str(HARNESS.parent / "stream.c")
    subprocess.run(["cc", "-O2", "-std=gnu99", source, *shlex.split(options), "-lm", "-o", str(program)], check=True)


def row(label: str, engine: Process | Program, times: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {
        "engine": label,
        "load_ms": engine.load,
        "first_ms": engine.first,
        "median_us": float(np.median(times)),
        "p999_us": float(np.quantile(times, 0.999)),
        "calls": len(times),
        "allocations": engine.allocations if isinstance(engine, Program) else None,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print("| engine | load, ms | first call, ms | median, µs | p99.9, µs | calls | allocations |")
    print("|---|---|---|---|---|---|---|")
    for cells in rows:
        allocations = "" if cells["allocations"] is None else cells["allocations"]
        print(
            f"| {cells['engine']} | {cells['load_ms']:.1f} | {cells['first_ms']:.2f} | {cells['median_us']:.1f} "
            f"| {cells['p999_us']:.1f} | {cells['calls']} | {allocations} |"
        )


if __name__ == "__main__":
    raise SystemExit(main())
