"""Compare files of TorchScript that torchmdla reads and runs itself with those of libtorch's importer.

The first table shows the time to load a file and of its first call, with the code in torchmdla's cache. The second
shows the time of a call without groups, for programs whose operators take almost no time: the cost of control flow, of
integers and lists, of attributes and of parameters. The ways are timed in turn in one process, and the least time
counts. ``python benchmarks/own_reader.py --help`` shows the options.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import output
from torch import Tensor, nn

import torchmdla
from torchmdla.testing.models import MODELS

Row = dict[str, Any]
READERS = ("libtorch", "own")
LOADS: Mapping[str, Callable[[Path], Any]] = {
    "torch.jit.load": torch.jit.load,
    "own": partial(torchmdla.load, reader="own"),
    "own, mapped": partial(torchmdla.load, reader="own", map_weights=True),
}


class Steps(nn.Module):
    """Loop with a branch, on tensors."""

    def forward(self, x: Tensor, count: int) -> Tensor:
        for i in range(count):
            x = (x + 1) * 2
            if i % 2 == 0:
                x = x - 1
        return x


class Integers(nn.Module):
    """Loop on integers and a list."""

    def forward(self, x: Tensor, count: int) -> list[int]:
        total = 0
        values: list[int] = []
        for i in range(count):
            total = total + i * 2
            if total > 100:
                total = total - 100
            values.append(total)
        return values


class State(nn.Module):
    """Attributes that a call sets."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: Tensor, count: int) -> Tensor:
        self.calls += 1
        self.state = self.state * 0.5 + x
        return self.state


class Layers(nn.Module):
    """Module with many parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(50)])

    def forward(self, x: Tensor, count: int) -> Tensor:
        result: Tensor = self.layers(x)
        return result


class Add(nn.Module):
    """One operator."""

    def forward(self, x: Tensor, count: int) -> Tensor:
        return x + 1


PROGRAMS: Mapping[str, type[nn.Module]] = {
    "one operator": Add,
    "loop of 100 steps on tensors": Steps,
    "loop of 100 steps on integers": Integers,
    "attributes": State,
    "100 parameters": Layers,
}


def main() -> int:
    options = output.parser(__doc__)
    options.add_argument("--models", type=output.one_of(MODELS), default=["resnet18", "resnet50"])
    options.add_argument("--rounds", type=int, default=7, help="of which the fastest counts (7)")
    chosen = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.pt"
        loads = [load_row(name, path, chosen.rounds) for name in (["mlp"] if chosen.quick else chosen.models)]
        torchmdla.disable()
        calls = [call_row(name, path, chosen.rounds, 20 if chosen.quick else 300) for name in PROGRAMS]
    output.write_json(chosen.json, {"benchmark": "own_reader", "loads_ms": loads, "calls_us": calls})
    show("milliseconds", loads)
    show("microseconds of a call", calls)
    return 0


def load_row(name: str, path: Path, rounds: int) -> Row:
    """Return the times to load a model, and of its first call."""
    model = MODELS[name]
    torch.jit.script(model.build()).save(path)
    inputs = model.inputs()
    for load in LOADS.values():  # compiles
        run(load(path), inputs, 3)
    row: Row = {"program": name, "MiB": path.stat().st_size >> 20}
    for title, load in LOADS.items():
        seconds, firsts = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            program = load(path)
            seconds.append(time.perf_counter() - start)
            start = time.perf_counter()
            run(program, inputs, 1)
            firsts.append(time.perf_counter() - start)
        row |= {title: min(seconds) * 1e3, f"{title}: first call": min(firsts) * 1e3}
    return row


def call_row(name: str, path: Path, rounds: int, calls: int) -> Row:
    """Return the times of a call."""
    torch.jit.script(PROGRAMS[name]()).save(path)
    programs = {reader: torchmdla.load(path, reader=reader) for reader in READERS}  # type: ignore[arg-type]
    inputs = (torch.ones(1, 4), 100)
    times: dict[str, list[float]] = {reader: [] for reader in READERS}
    for program in programs.values():
        run(program, inputs, 20)
    for _ in range(rounds):
        for reader, program in programs.items():
            start = time.thread_time()
            run(program, inputs, calls)
            times[reader].append((time.thread_time() - start) / calls)
    return {"program": name, **{reader: min(seconds) * 1e6 for reader, seconds in times.items()}}


def run(program: Callable[..., Any], inputs: tuple[Any, ...], calls: int) -> None:
    for _ in range(calls):
        program(*inputs)


def show(unit: str, rows: list[Row]) -> None:
    table = output.table(unit, list(rows[0]))
    for row in rows:
        table.add_row(*[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()])
    output.show(table)


if __name__ == "__main__":
    sys.exit(main())
