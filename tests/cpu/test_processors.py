"""Code for processors with fewer features than this machine."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla.compiler.program import Target
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.processors import target_of
from torchmdla.testing.compare import assert_matches

BYTES = {"x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}


def target_or_skip(processor: str) -> Target:
    try:
        return target_of(processor)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("processor", BYTES)
def test_values_are_the_same(processor: str) -> None:
    assert Machine.of(target_or_skip(processor)).vector_bytes == BYTES[processor]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(288, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    torchmdla.enable(processor=processor, strict=True)
    compiled = torchmdla.compile(model, x)
    with torch.no_grad():
        assert_matches(compiled(x), model(x))
    assert torchmdla.stats().specialisations == 1


def activations(x: Tensor) -> tuple[Tensor, ...]:
    scaled = 2 * x
    return (
        *(
            function(scaled)
            for function in (
                functional.mish,
                functional.softplus,
                functional.silu,
                functional.elu,
                functional.selu,
                functional.celu,
                functional.logsigmoid,
            )
        ),
        *(
            function(scaled)
            for function in (
                functional.gelu,
                functional.hardswish,
                functional.softsign,
                functional.tanhshrink,
                torch.tanh,
                torch.sigmoid,
            )
        ),
        functional.gelu(scaled, approximate="tanh"),
        scaled * torch.tanh(functional.softplus(scaled)),
        torch.tanh(functional.softplus(scaled, threshold=1.0)),
        torch.exp2(scaled),
    )


def rows(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.softmax(2 * x, -1),
        torch.softmax(2 * x, 0),
        torch.log_softmax(2 * x, -1),
        torch.sigmoid(x.softmax(-1) * 9),
    )


@pytest.mark.parametrize("processor", ["native", *BYTES])
@pytest.mark.parametrize("function", [activations, rows])
@pytest.mark.parametrize("width", [3, 40, 333])
def test_special_values(processor: str, function: Callable[[Tensor], tuple[Tensor, ...]], width: int) -> None:
    """Check NaN, infinities, zeros, subnormal and large numbers, in some rows and among other numbers."""
    target_or_skip(processor)
    x = 20 * torch.randn(40, width)
    for row, value in enumerate([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-45, 1e18, -1e18, 88.7, -88.7]):
        x[row, row % width] = value
        x[row + 15] = value
    # PyTorch's gelu of infinity depends on the element's place.
    x = torch.where(x == math.inf, 1e30, x) if function is activations else x
    torchmdla.enable(processor=processor, strict=True)
    compiled = torch.jit.trace(function, x, check_trace=False)
    with torch.no_grad():
        results = [compiled(x) for _ in range(3)]
    assert_matches(results[-1], function(x))
    assert torchmdla.stats().specialisations == 1


def test_each_is_another_target() -> None:
    targets = {target_or_skip(name) for name in ("native", "x86-64-v2", "x86-64-v3")}
    assert len(targets) == 3


def test_an_unknown_processor_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"unknown processor 'pentium' \(choose from native, x86-64-v2"):
        torchmdla.enable(processor="pentium")
