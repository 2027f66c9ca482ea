"""Waits of threads that share an entry: for the data of other threads, and for no others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
import torch
from child_process import run_python
from nest_running import host_target
from torch import nn
from torch_mlir import ir
from written_programs import Executable, TracedProgram, normal

from torchmdla.compiler.mlir import new_context
from torchmdla.devices.cpu.codegen.entry import module
from torchmdla.devices.cpu.codegen.entry.waits import find_waits
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.lowering import lower, plan_program
from torchmdla.devices.cpu.schedule.footprints import Addresses, KernelWaits, Loop, Wait
from torchmdla.devices.cpu.schedule.partition import chunk_size
from torchmdla.devices.cpu.schedule.plan import Plan
from torchmdla.devices.cpu.target.machine import share_between

# Footprints. A kernel of these tests has one access.

THREADS = 4


def addresses(*loops: Loop, offset: int = 0, blocks: Mapping[int, int]) -> Addresses:
    return Addresses.of_loops(offset, 1, loops, blocks)


def waits_of(earlier: Addresses, later: Addresses, modulus: int, grain: int = 1) -> list[list[int]]:
    """Return the threads that each of some threads waits for before its chunk of a later kernel."""
    sides = earlier.footprint(modulus), later.footprint(modulus)
    assert sides[0] is not None
    assert sides[1] is not None
    wait = Wait(1, earlier.iterations, grain, sides[0], sides[1])
    return [list(wait.threads(first, end, THREADS)) for first, end in chunks(later.iterations, grain, THREADS)]


def chunks(iterations: int, grain: int, threads: int) -> Iterator[tuple[int, int]]:
    size = chunk_size(iterations, grain, threads)
    for first in range(0, iterations, size):
        yield first, min(first + size, iterations)


ROWS = {0: 1}


@pytest.mark.parametrize(
    ("earlier", "later", "modulus", "threads"),
    [
        # Rows of 10 numbers: the same rows, the rows around them, and all rows.
        (addresses((10, 8), (1, 10), blocks=ROWS), addresses((10, 8), (1, 10), blocks=ROWS), 0, [[0], [1], [2], [3]]),
        (
            addresses((10, 8), (1, 10), offset=10, blocks=ROWS),
            addresses((10, 8), (10, 3), (1, 10), blocks=ROWS),
            0,
            [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]],
        ),
        (addresses((10, 8), (1, 10), blocks=ROWS), addresses((1, 10), (10, 8), blocks=ROWS), 0, [[0, 1, 2, 3]] * 4),
        # Rows of two channels: the addresses are those of rows, modulo the distance of channels.
        (
            addresses((10, 8), (80, 2), (1, 10), blocks=ROWS),
            addresses((10, 8), (80, 2), (1, 10), blocks=ROWS),
            80,
            [[0], [1], [2], [3]],
        ),
        # A range of channels and rows, and one of all rows in blocks of four.
        (
            addresses((80, 2), (10, 8), (1, 10), blocks={0: 1, 1: 2}),
            addresses((10, 16), (1, 10), blocks={0: 4}),
            0,
            [[0], [1], [2], [3]],
        ),
        # One thread writes.
        (addresses((1, 80), blocks={}), addresses((10, 8), (1, 10), blocks=ROWS), 0, [[0]] * 4),
    ],
)
def test_threads_wait_for_the_owners_of_their_data(
    earlier: Addresses, later: Addresses, modulus: int, threads: list[list[int]]
) -> None:
    assert waits_of(earlier, later, modulus) == threads


@dataclass(frozen=True)
class Sample:
    """Access of a kernel whose range has the loops in ``blocks``."""

    offset: int
    width: int
    loops: list[Loop]
    blocks: dict[int, int]

    @classmethod
    def random(cls, generator: random.Random) -> Sample:
        sizes = [generator.choice([1, 2, 3, 4, 6]) for _ in range(3)]
        distances, distance = [0] * 3, generator.choice([1, 2])
        for loop in generator.sample(range(3), 3):
            distances[loop] = generator.choice([distance, distance, distance, 0, 2 * distance])
            distance *= sizes[loop]
        ranged = generator.sample(range(3), generator.choice([0, 1, 2, 3]))
        blocks = {loop: generator.choice([1, 1, 2, sizes[loop]]) for loop in ranged}
        loops = list(zip(distances, sizes, strict=True))
        return cls(generator.choice([0, 0, 4, 9]), generator.choice([1, 2]), loops, blocks)

    @property
    def addresses(self) -> Addresses:
        return Addresses.of_loops(self.offset, self.width, self.loops, self.blocks)

    def chunk(self, first: int, end: int) -> set[int]:
        """Return the addresses of blocks, one by one."""
        return {address for block in range(first, end) for address in self._block(block)}

    def _block(self, block: int) -> Iterator[int]:
        parts = [range(size) for _, size in self.loops]
        for loop, step in reversed(self.blocks.items()):
            block, index = divmod(block, -(-self.loops[loop][1] // step))
            parts[loop] = parts[loop][index * step : (index + 1) * step]
        for indices in itertools.product(*parts):
            start = sum(index * distance for index, (distance, _) in zip(indices, self.loops, strict=True))
            yield from range(self.offset + start, self.offset + start + self.width)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(8)
def test_footprints_have_all_addresses(seed: int) -> None:
    generator = random.Random(seed)
    compared = 0
    for _ in range(50):
        earlier, later = Sample.random(generator), Sample.random(generator)
        grain, threads = generator.choice([1, 2]), generator.choice([2, 3, 5])
        for modulus in {0, *(distance for distance, _ in (*earlier.loops, *later.loops))}:
            before, now = earlier.addresses.footprint(modulus), later.addresses.footprint(modulus)
            if before is None or now is None:
                continue
            compared += 1
            wait = Wait(1, earlier.addresses.iterations, grain, before, now)
            written = [earlier.chunk(*each) for each in chunks(wait.iterations, grain, threads)]
            for first, end in chunks(later.addresses.iterations, grain, threads):
                used = later.chunk(first, end)
                owners = {thread for thread, each in enumerate(written) if not each.isdisjoint(used)}
                assert owners <= set(wait.threads(first, end, threads)), (earlier, later, modulus)
    assert compared > 50


# Programs. Executables of tests run with three threads, each as far ahead of the others as it may be.


class Bottleneck(nn.Module):
    """Block of a mobile network, whose temporaries share memory."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.Conv2d(16, 64, 1),
            nn.ReLU6(),
            nn.Conv2d(64, 64, 3, 1, 1, groups=64),
            nn.ReLU6(),
            nn.Conv2d(64, 16, 1),
        ]
        self.first, self.second = nn.Sequential(*layers), nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(x)
        return x + self.second(x).mean((2, 3), keepdim=True)


def columns_then_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.softmax(x, 0).t().contiguous() * 3, 0)


def gather_and_scatter(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(300, 128).index_add(0, index, x.tanh() * 2)
    return torch.softmax(y[index] * x, 1)


INDICES = torch.randint(0, 300, (3000,), generator=torch.Generator().manual_seed(3))

PROGRAMS = {
    "bottlenecks": (Bottleneck(), (normal(1, 16, 33, 34),)),
    "strided": (nn.Sequential(nn.Conv2d(8, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 5, 1, 2), nn.AvgPool2d(3, 2)),
                (normal(2, 8, 101, 100),)),
    "rows": (nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.Softmax(-1)),
             (normal(130, 512),)),
    "columns": (columns_then_rows, (normal(400, 300),)),
    "scatter": (gather_and_scatter, (normal(3000, 128), INDICES)),
    "recurrence": (nn.GRU(128, 256), (normal(9, 16, 128),)),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(4)
def test_values_do_not_depend_on_the_order_of_threads(name: str, threads: int) -> None:
    subject, inputs = PROGRAMS[name]
    with torch.no_grad():
        executable = TracedProgram(subject, *inputs).check(share_between(host_target(), threads))
    assert executable.team.kernels > 1


def test_values_depend_on_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(steps: LoopProgram, plan: Plan) -> list[KernelWaits]:
        return [KernelWaits()] * len(find_waits(steps, plan))

    monkeypatch.setattr(module, "find_waits", find_none)
    subject, inputs = PROGRAMS["bottlenecks"]
    program = TracedProgram(subject, *inputs)
    with torch.no_grad(), pytest.raises(AssertionError):
        program.check(share_between(host_target(), 16))


def planned_waits(subject: nn.Module, *inputs: torch.Tensor) -> list[KernelWaits]:
    program = TracedProgram(subject, *inputs).program(share_between(host_target(), 16))
    with new_context(), ir.Location.unknown():
        return find_waits(*plan_program(program, {}))


def test_threads_do_not_wait_for_their_own_rows() -> None:
    with torch.no_grad():
        waits = planned_waits(nn.Sequential(nn.LayerNorm(1024), nn.Softmax(-1), nn.LayerNorm(1024)), normal(640, 1024))
    assert not any(each.barrier or each.waits for each in waits)


def test_programs_with_one_shared_kernel_are_not_shared() -> None:
    with torch.no_grad():
        executable = Executable(lower(TracedProgram(nn.Tanh(), normal(1 << 16)).program()))
    assert "mdla_share_entry" not in executable.manifest.device_calls


# Real threads. More of them than CPUs, and fewer than were asked for.

_STRESS = """
import sys, threading
import torch, torchmdla
from torch import nn

def block(channels):
    layers = [nn.Conv2d(16, channels, 1), nn.ReLU6(), nn.Conv2d(channels, channels, 3, 1, 1, groups=channels)]
    return nn.Sequential(*layers, nn.ReLU6(), nn.Conv2d(channels, 16, 1), nn.Hardswish())

asked, calls = map(int, sys.argv[1:])
torch.set_num_threads(asked)
torch.manual_seed(0)
with torch.no_grad():
    module = nn.Sequential(*(block(channels) for channels in (48, 96, 64)), nn.AdaptiveAvgPool2d(1)).eval()
    inputs = [torch.randn(1, 16, 24, 24) for _ in range(4)]
    compiled = torchmdla.compile(torch.jit.trace(module, inputs[0]), inputs[0])
    torch.set_num_threads(1)
    expected = [compiled(x) for x in inputs]
    for x, y in zip(inputs, expected):
        torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-5)
    faults = []

    def work(number):
        with torch.no_grad():
            torch.set_num_threads(asked)
            for call in range(calls):
                if number == 0 and call % 50 == 49:
                    torch.set_num_threads(2 + call % (asked - 1))
                k = (number + call) % len(inputs)
                if not torch.equal(compiled(inputs[k]), expected[k]):
                    faults.append((number, call))

    work(0)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert not torchmdla.stats().fallbacks
assert not faults, faults
"""


@pytest.mark.parametrize(("asked", "variables"), [(8, {}), (5, {"OMP_THREAD_LIMIT": "7"})])
def test_many_calls_on_more_threads_than_cpus(asked: int, variables: dict[str, str]) -> None:
    done = run_python(_STRESS, str(asked), "300", OMP_NUM_THREADS="2", **variables)
    assert done.returncode == 0, done.stderr
