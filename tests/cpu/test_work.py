"""Manifest entries of kernels: loops, operations, bytes, and the nodes of the group that they compute."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchmdla
from torchmdla import _C
from torchmdla.capture.specialise import Compiled
from torchmdla.compiler.artifact import Manifest
from torchmdla.compiler.sizes import Size

pytestmark = pytest.mark.usefixtures("without_gradients")


def compiled(function: Any, *inputs: Tensor) -> Compiled:
    """Return the compiled specialisation of the latest group."""
    # The name keeps the group alive.
    wrapper = torchmdla.compile(function, *inputs)
    assert wrapper is not None
    (specialisation,) = _C.groups()[-1]["specialisations"]
    assert specialisation["executable"] is not None
    result: Compiled = specialisation["executable"].owner
    return result


def test_a_product_with_its_epilogue() -> None:
    """Check operation counts: two for each summed element, and one for each result of the addition."""
    group = compiled(lambda x, y, z: torch.relu(x @ y + z), torch.randn(8, 24), torch.randn(24, 40), torch.randn(40))
    (kernel,) = group.manifest.kernels
    assert kernel.loops == "8x40 reduce 24"
    assert isinstance(kernel.flops, int) and 2 * 8 * 40 * 24 + 8 * 40 <= kernel.flops <= 2 * 8 * 40 * 24 + 3 * 8 * 40
    assert kernel.bytes == 4 * (8 * 24 + 24 * 40 + 40 + 8 * 40)
    assert [group.ops[node] for node in kernel.nodes] == ["aten::matmul", "aten::add.Tensor", "aten::relu"]


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Softmax(-1)),
    ],
    ids=["convolution", "layer norm"],
)
def test_every_operator_is_in_a_kernel(module: nn.Module) -> None:
    group = compiled(torch.jit.script(module.eval()), torch.randn(2, 3, 16, 16))
    seen = {group.ops[node] for kernel in group.manifest.kernels for node in kernel.nodes}
    assert seen == {op for op in group.ops if op.startswith("aten::")}


@pytest.mark.sampled(0)
def test_steps_that_repeat_count_each_time() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    short, long = (compiled(torch.jit.script(Net().eval()), torch.randn(n, 1, 16)) for n in (40, 80))
    flops = [sum(k.flops for k in group.manifest.kernels if isinstance(k.flops, int)) for group in (short, long)]
    assert flops[0] >= 40 * 4 * 16 * 32 * 2
    assert 1.9 <= flops[1] / flops[0] <= 2.1


def test_sizes_that_vary() -> None:
    scripted = torch.jit.trace(lambda x: torch.softmax(x @ x.t(), 1), (torch.randn(9, 6),), check_trace=False)
    for rows in (9, 9, 11, 13, 17):
        scripted(torch.randn(rows, 6))
    dynamic = _C.groups()[-1]["specialisations"][-1]
    assert dynamic["is_dynamic"] and dynamic["executable"] is not None
    kernels = dynamic["executable"].owner.manifest.kernels
    flops = [Size(kernel.flops).at((20,)) for kernel in kernels if not isinstance(kernel.flops, int)]
    assert sum(flops) >= 2 * 20 * 20 * 6


def test_written_and_read_back() -> None:
    manifest = compiled(lambda x: torch.softmax(x * 2, 1), torch.randn(4, 5)).manifest
    assert manifest.kernels
    assert Manifest.of(json.loads(json.dumps(dataclasses.asdict(manifest)))) == manifest
