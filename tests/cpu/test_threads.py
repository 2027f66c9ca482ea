"""Kernels that many threads share: the partition of ranges, its balance in whole models, and values."""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path

import pytest
import torch
from child_process import run_script
from nest_running import KERNEL, host_target
from nest_samples import AVX512
from torch import nn
from torch.nn import functional
from torch_mlir import ir
from written_programs import PARALLEL_FOR, TracedProgram, normal

import torchmdla
from torchmdla import _C
from torchmdla.compiler.mlir import new_context
from torchmdla.devices import get
from torchmdla.devices.cpu.lowering import plan_program
from torchmdla.devices.cpu.passes.packing import panel_width
from torchmdla.devices.cpu.passes.tile_fusion import balance_tile
from torchmdla.devices.cpu.schedule.partition import count_tasks, largest_share
from torchmdla.devices.cpu.schedule.scaling import Scaling, scaling_of
from torchmdla.devices.cpu.target.machine import Machine, share_between

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "scaling_threads.py"
MODELS = (
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


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(96, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.keys(x).view(50, 4, 24).transpose(0, 1)
        return functional.scaled_dot_product_attention(rows, rows, rows)


class LongCache(nn.Module):
    """Attention of one row to a long cache, whose heads are shared by ``heads // shared`` heads of the row."""

    def __init__(self, heads: int, shared: int, length: int, width: int = 64) -> None:
        super().__init__()
        self.repeats = heads // shared
        self.inputs = normal(heads, 1, width), normal(shared, length, width), normal(shared, length, width)

    def forward(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        keys, values = (cache.repeat_interleave(self.repeats, 0) for cache in (keys, values))
        return functional.scaled_dot_product_attention(query, keys, values)


def with_inputs(module: LongCache) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return module, module.inputs


PROGRAMS = {
    "Winograd": (nn.Conv2d(32, 64, 3, padding=1), (normal(1, 32, 14, 14),)),
    "Strassen": (nn.Linear(512, 512), (normal(128, 512),)),
    "few rows": (nn.Linear(384, 200), (normal(3, 384),)),
    "norms": (nn.Sequential(nn.LayerNorm(256), nn.Softmax(-1)), (normal(67, 256),)),
    "attention": (Attention(), (normal(50, 96),)),
    "long cache": with_inputs(LongCache(4, 2, 4096)),
    "recurrence": (nn.GRU(16, 64), (normal(6, 3, 16),)),
    "images": (nn.Sequential(nn.Conv2d(3, 16, 5, 2), nn.MaxPool2d(2), nn.ReLU()), (normal(2, 3, 33, 33),)),
}


def ranges_of_runtime(iterations: int, grain: int) -> list[tuple[int, int]]:
    """Return the ranges that the runtime's threads run."""
    ranges = []
    lock = threading.Lock()

    def body(_operands: int, begin: int, end: int) -> None:
        with lock:
            ranges.append((begin, end))

    kernel = KERNEL(body)
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    PARALLEL_FOR(("mdla_parallel_for", ctypes.CDLL(_C.__file__)))(address, None, 0, iterations, grain)
    return sorted(ranges)


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 32])
@pytest.mark.parametrize(("iterations", "grain"), [(1, 1), (7, 1), (16, 1), (17, 1), (64, 3), (64, 40), (100, 100)])
def test_partition_is_that_of_the_runtime(iterations: int, grain: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ranges = ranges_of_runtime(iterations, grain)
    finally:
        torch.set_num_threads(before)
    assert count_tasks(iterations, grain, threads) == len(ranges)
    longest = max(end - begin for begin, end in ranges)
    assert largest_share([(iterations, 1)], grain, threads) == longest / iterations


def test_partial_blocks_are_less_work() -> None:
    # Rows of blocks of 4, 4 and 2 columns: two threads share five rows in 15 blocks.
    assert largest_share([(5, 1), (10, 4)], 1, 2) == (4 + 4 + 2 + 4 + 4 + 2 + 4 + 4) / 50
    assert largest_share([(5, 1), (10, 4)], 0, 2) == 1


@pytest.mark.parametrize(
    ("threads", "rounded"), [(1, ""), (3, ""), (4, "threads=4"), (15, "threads=8"), (200, "threads=32")]
)
def test_targets_differ_between_few_numbers_of_threads(threads: int, rounded: str) -> None:
    host = host_target()
    target = share_between(host, threads)
    assert target.features.removeprefix(host.features) == (f",{rounded}" if rounded else "")
    assert Machine.of(target).threads == (int(rounded.removeprefix("threads=")) if rounded else 1)


def test_programs_are_compiled_for_the_threads_of_pytorch() -> None:
    device, before = get("cpu"), torch.get_num_threads()
    torch.set_num_threads(16)
    try:
        target, machine = device.target(), device.machine
    finally:
        torch.set_num_threads(before)
    assert Machine.of(target).threads == 16
    assert machine.endswith("threads=16")
    assert Machine.of(device.target_for("native")).threads == 1


def scaling(name: str, threads: int) -> Scaling:
    target = share_between(host_target(), threads)
    module, inputs = PROGRAMS[name]
    program = TracedProgram(module, *inputs).program(target)
    with new_context(), ir.Location.unknown():
        return scaling_of(*plan_program(program, {}), Machine.of(target), threads)


def test_kernels_too_small_for_threads_are_serial() -> None:
    kernels = scaling("recurrence", 32).kernels
    assert sum(kernel.calls for kernel in kernels) > 6
    assert all(kernel.is_serial for kernel in kernels if kernel.cycles < 5_000 * kernel.calls)
    assert any(kernel.is_serial for kernel in kernels)
    assert scaling("Strassen", 16).joins > 0


@pytest.mark.parametrize("threads", [4, 8, 16, 32])
@pytest.mark.parametrize(("heads", "shared", "length"), [(8, 8, 4096), (8, 2, 32768), (12, 4, 32768), (8, 1, 32768)])
def test_threads_share_a_long_cache(heads: int, shared: int, length: int, threads: int) -> None:
    module = LongCache(heads, shared, length)
    target = share_between(host_target(*AVX512), threads)
    program = TracedProgram(module, *module.inputs).program(target)
    with new_context(), ir.Location.unknown():
        result = scaling_of(*plan_program(program, {}), Machine.of(target), threads)
    # Softmax of eight rows is less work than another start of 32 threads.
    assert result.imbalance <= (0.1 if threads < 32 else 0.12)
    assert result.serial_share <= 0.02


@pytest.mark.parametrize("threads", [4, 32])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(4)
def test_values_do_not_depend_on_threads(name: str, threads: int) -> None:
    module, inputs = PROGRAMS[name]
    with torch.no_grad():
        TracedProgram(module, *inputs).check(share_between(host_target(), threads))


@pytest.mark.parametrize(
    ("sizes", "tile", "threads", "balanced"),
    [
        ((14, 14), (1, 14), 4, (1, 7)),
        ((12, 128), (1, 128), 16, (1, 32)),
        ((64,), (4,), 16, (4,)),
        ((64,), (4,), 32, (2,)),
        ((64,), (4,), 1, (4,)),
    ],
)
def test_tiles_are_balanced(
    sizes: tuple[int, ...], tile: tuple[int, ...], threads: int, balanced: tuple[int, ...]
) -> None:
    assert balance_tile(sizes, tile, [1] * len(sizes), threads) == list(balanced)


@pytest.mark.parametrize(("columns", "fewest", "width"), [(512, 1, 32), (512, 16, 32), (512, 32, 16), (48, 1, 48)])
def test_panels_are_narrower_for_more_threads(columns: int, fewest: int, width: int) -> None:
    assert panel_width(columns, 16, fewest=fewest) == width


@pytest.mark.parametrize(("threads", "algorithm"), [(1, "strassen"), (16, "direct")])
def test_algorithms_that_exchange_data_do_not_pay_for_many_threads(threads: int, algorithm: str) -> None:
    program = TracedProgram(nn.Linear(768, 768), normal(128, 768))
    steps = program.steps(share_between(host_target(*AVX512), threads))
    assert [contraction.algorithm for contraction in steps.contractions.values()] == [algorithm]


def test_a_program_runs_with_any_number_of_threads() -> None:
    before, module = torch.get_num_threads(), nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512)).eval()
    x = normal(40, 256)
    with torch.no_grad():
        torch.set_num_threads(16)
        try:
            compiled = torchmdla.compile(torch.jit.trace(module, (x,)), x)
            results = []
            for threads in (16, 1, 3, 40):
                torch.set_num_threads(threads)
                results.append(compiled(x))
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], module(x))


@pytest.mark.parametrize("processor", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.sampled(2)
def test_threads_share_the_work_of_models(model: str, processor: str, tmp_path: Path) -> None:
    if not host_target().triple.startswith("x86_64"):
        pytest.skip("schedules are for another processor")
    file = tmp_path / "results.json"
    options = ("--threads", "4,8,16,32", "--processor", processor, "--json", str(file))
    done = run_script(BENCHMARK, "--models", model, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["threads"] for row in rows] == [4, 8, 16, 32]
    for row in rows:
        assert row["imbalance"] <= 0.1, row["threads"]
        assert row["serial_share"] <= 0.02, row["threads"]
        shared = sum(kernel["calls"] for kernel in row["kernels"] if kernel["tasks"] > 1)
        assert row["joins"] == 1
        assert row["barriers"] < shared, row["threads"]
