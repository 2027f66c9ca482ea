"""Models that torchao has quantised, exported and with ``torch.compile``: one group, with its kernels' values."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

import torchmdla
from torchmdla import _C
from torchmdla.testing.compare import assert_matches

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS: dict[str, Callable[[], Any]] = {
    "int8 in a call, int8": Int8DynamicActivationInt8WeightConfig,
    "int8": Int8WeightOnlyConfig,
    "int4 in groups": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int4 by rows": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)),
    "int8 in a call, int4 in groups": lambda: Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    ),
}


def layers(features: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 96), nn.GELU(), nn.Linear(96, features)).eval()


def assert_one_group() -> None:
    stats = torchmdla.stats()
    assert not stats.fallbacks
    assert not stats.left_out
    assert stats.groups == 1


def by_export(model: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    return torchmdla.compile(model, x, frontend="export")


def by_dynamo(model: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(model, backend="torchmdla")


@pytest.mark.parametrize("road", [by_export, by_dynamo])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", CONFIGS)
def test_linear_layers(name: str, rows: int, road: Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]) -> None:
    model = layers(64)
    quantize_(model, CONFIGS[name]())
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model(x)
        compiled = road(model, x)
        compiled(x)
        torchmdla.reset_stats()
        result = compiled(x)
    # Values that are quantised in a call may differ by one integer where rounding ties.
    assert (result - wanted).abs().max() <= wanted.abs().max() * (0.02 if "in a call" in name else 1e-5)


class Image(nn.Module):
    """Convolutions with a residual, a depthwise convolution, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.branch = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.depthwise = nn.Sequential(nn.Conv2d(16, 24, 1), nn.ReLU6(), nn.Conv2d(24, 24, 3, padding=1, groups=24))
        self.last = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.stem(x), 2)
        x = self.depthwise(torch.relu(self.branch(x) + x))
        return self.last(x.mean((2, 3)))


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(
    ("build", "x"), [(Image, torch.randn(2, 3, 16, 16)), (lambda: layers(64), torch.randn(12, 64))]
)
@pytest.mark.sampled(1)
def test_exported_graphs(build: Callable[[], nn.Module], x: Tensor, is_dynamic: bool) -> None:
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic))
    prepared = prepare_pt2e(torch.export.export(build().eval(), (x,)).module(), quantizer)
    with torch.no_grad():
        prepared(x)
        model = convert_pt2e(prepared)
        wanted = copy.deepcopy(model)(x)
        program = torch.export.export(model, (x,))
        torchmdla.reset_stats()
        compiled = torchmdla.compile(program, x)
        result = compiled(x)
        assert (result - wanted).abs().max() <= wanted.abs().max() * 0.03
        assert_one_group()
        assert_matches(compiled(x), result)


@pytest.mark.parametrize("road", [by_export, by_dynamo])
def test_zero_points_of_zeros(road: Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]) -> None:
    """Check that zeros are not subtracted from weights: with others, later calls run in PyTorch."""
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    x = torch.randn(2, 3, 16, 16)
    prepared = prepare_pt2e(torch.export.export(Image().eval(), (x,)).module(), quantizer)
    with torch.no_grad():
        prepared(x)
        model = convert_pt2e(prepared)
        points = [buffer for name, buffer in model.named_buffers() if "zero_point" in name]
        assert points and not any(buffer.any() for buffer in points)
        compiled = road(model, x)
        assert_close(compiled(x), model(x))
        for buffer in points:
            buffer.fill_(2)
        torchmdla.reset_stats()
        assert_close(compiled(x), model(x))
        assert torchmdla.stats().fallbacks
        torchmdla.reset_stats()
        compiled = road(model, x)
        assert_close(compiled(x), model(x))
        assert not torchmdla.stats().fallbacks


def assert_close(result: Tensor, wanted: Tensor) -> None:
    """Compare results that were quantised on the way, and may differ by one integer where rounding ties."""
    assert (result - wanted).abs().max() <= wanted.abs().max() * 0.03


def few_bits(rows: int) -> tuple[nn.Module, Tensor]:
    """Return a model with weights that are read from memory, packed two to a byte for few rows, and an input."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 512)).eval()
    quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    return model, torch.randn(rows, 1024)


@pytest.mark.parametrize("road", [by_export, by_dynamo])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.sampled(1)
def test_weights_of_four_bits(rows: int, road: Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]) -> None:
    model, x = few_bits(rows)
    with torch.no_grad():
        compiled = road(model, x)
        gc.collect()
        _C.drop_dead()
        before = _C.memory_use()["packed"]
        result = [compiled(x) for _ in range(3)][-1]
        assert_matches(result, model(x))
    # Each weight takes half a byte. There are a scale and a zero point for every 32 weights.
    assert _C.memory_use()["packed"] - before == 1024 * 1536 * (16 + 4 + 1) // 32


def test_weights_that_come_to_need_more_bits() -> None:
    """The packing checks its assumption about the weights. If it does not hold, PyTorch runs the calls."""
    model, x = few_bits(1)
    with torch.no_grad():
        compiled = by_dynamo(model, x)
        compiled(x)
        compiled(x)
        weight: Any = model[0].weight
        weight.qdata[5, 7] = 100
        torchmdla.reset_stats()
        assert_matches(compiled(x), model(x))
        assert torchmdla.stats().fallbacks
        weight.qdata[5, 7] = -8
        torchmdla.reset_stats()
        assert_matches(compiled(x), model(x))
        assert not torchmdla.stats().fallbacks
