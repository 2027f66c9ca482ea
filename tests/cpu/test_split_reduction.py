"""Long reductions to a few numbers: the ones that are split, and that results match eager for any thread count."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from nest_running import MACHINE
from torch import Tensor
from torch.nn import functional
from written_programs import TracedProgram

import torchmdla
from torchmdla.devices.cpu.ir.loop_program import LoopNest
from torchmdla.devices.cpu.ir.parser import parse_program
from torchmdla.devices.cpu.ir.patterns import apply
from torchmdla.devices.cpu.passes.split_reduction import SPLIT_REDUCTIONS
from torchmdla.testing.compare import assert_matches


def total(*sizes: int, dims: list[int] | None = None) -> TracedProgram:
    """Return a program of the sum of exponentials over ``dims``, or over all dimensions if None."""
    over = list(range(len(sizes))) if dims is None else dims
    return TracedProgram(lambda x: x.exp().sum(over), torch.zeros(sizes))


def reductions(program: TracedProgram) -> list[LoopNest]:
    return [step for step in program.steps().nests() if any(step.reduction)]


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        pytest.param(total(512, 1024), 128, id="rows"),
        pytest.param(total(1 << 19), 128, id="one dimension"),
        pytest.param(total(7, 1 << 17), 7 * 16, id="few rows"),
        pytest.param(total(65537, 4, 4), 16, id="rows that cannot be divided"),
        pytest.param(total(96, 3, 4096, dims=[0, 2]), 96, id="a dimension that stays"),
    ],
)
def test_a_long_one_is_made_in_parts(program: TracedProgram, parts: int) -> None:
    making, combining = reductions(program)
    (partial,) = making.writes
    assert combining.reads == [partial]
    results = math.prod(n for n, reduced in zip(combining.sizes, combining.reduction, strict=True) if not reduced)
    assert partial.count == math.prod(combining.sizes) == parts * results


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(total(64, 1024), id="short"),
        pytest.param(total(512, 1024, dims=[1]), id="a number for each row"),
        pytest.param(total(262147), id="a prime"),
    ],
)
def test_others_stay_whole(program: TracedProgram) -> None:
    assert len(reductions(program)) == 1


INDEX = """
buffer input0 : f32[524288]
buffer input1 : f32[]
buffer result2 : i64[]
entry {
  nest d0:524288+ {
    i0 = input0[d0]
    i1 = input1[]
    o0 = from 9223372036854775807 : i64
    v0 : i1 = arith.cmpf i0, i1 {predicate = 1 : i64}
    v1 : i64 = arith.index_cast d0
    v2 : i64 = arith.select v0, v1, 524288
    v3 : i64 = arith.minsi v2, o0
    result2[] = v3
  }
}
"""


def test_an_index_is_found_in_parts() -> None:
    steps = parse_program(INDEX)
    apply([SPLIT_REDUCTIONS], steps, MACHINE)
    assert [step.sizes for step in steps.nests()] == [(128, 4096), (128,)]


def logistic(x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x, torch.sigmoid(y))


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "sum": (lambda x: (x * x).sum(), [(512, 1024)]),
    "mean with an epilogue": (lambda x: (x.abs().mean() + 1).sqrt() * 2, [(300, 1021)]),
    "maximum": (lambda x: (x * 2).max(), [(1 << 19,)]),
    "minimum": (lambda x: torch.relu(x).min(), [(3, 5, 1 << 15)]),
    "product": (lambda x: (x.double() * 1e-3 + 1).prod(), [(1 << 18,)]),
    "any": (lambda x: (x > 9).any(), [(1 << 19,)]),
    "count": (lambda x: (x > 0).sum(), [(512, 1024)]),
    "deviation": (lambda x: (x + 1).std(), [(1 << 19,)]),
    "norm": (lambda x: (x * 2).norm(), [(512, 1024)]),
    "loss": (functional.mse_loss, [(512, 1024)] * 2),
    "loss of several steps": (logistic, [(512, 1024)] * 2),
    "for each channel": (lambda x: x.exp().sum((0, 2)), [(16, 5, 8191)]),
    "dot product": (lambda x, y: torch.dot(x, y) + 1, [(1 << 19,)] * 2),
    "index of the largest": (lambda x: (x * 2).argmax(), [(512, 1024)]),
    "index of the first of equals": (lambda x: torch.relu(-x).argmin() + x.sign().argmax(), [(1 << 19,)]),
    "index of what is no number": (lambda x: x.sqrt().argmax(), [(512, 1024)]),
    "indices of few rows": (lambda x: (x * 2).argmin(1), [(8, 1 << 17)]),
    "indices of few columns": (lambda x: torch.relu(x).argmax(0), [(1 << 17, 3)]),
    "largest and its index": (lambda x: torch.add(*(x * 2).max(1)), [(2, 1 << 18)]),
    "not a number": (lambda x: (x.sqrt() * 2).max(), [(512, 1024)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape) for shape in shapes]
    traced = torch.jit.trace(function, inputs, check_trace=False)
    results = []
    with torch.no_grad():
        compiled = torchmdla.compile(traced, *inputs)
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(compiled(*inputs))
            assert_matches(results[-1], function(*inputs))
    assert torchmdla.stats().fallbacks == {}
    assert torch.equal(*results) or all(torch.isnan(x).all() for x in results)
