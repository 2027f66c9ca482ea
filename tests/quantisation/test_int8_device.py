"""Tests of examples/devices/int8: quantised programs, computed in integers, against eager's quantised reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from child_process import run_script
from torch import Tensor, nn

import torchmdla
from torchmdla import devices

pytest.importorskip("torchao")

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "devices" / "int8"


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from int8_device import Int8Device

    devices.register(Int8Device())
    torchmdla.enable(device="int8")
    torch.manual_seed(0)


class Sum(nn.Module):
    """Sums of tensors with different scales."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x) + x) + x


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


IMAGE = (2, 8, 9, 9)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(8, 6, 3, stride=2, padding=1), IMAGE),
    "dilated": (lambda: nn.Conv2d(8, 6, (2, 3), padding=(0, 2), dilation=2), IMAGE),
    "depthwise": (lambda: nn.Conv2d(8, 16, 3, groups=8), IMAGE),
    "without bias": (lambda: nn.Conv2d(8, 6, 1, bias=False), IMAGE),
    "convolution, norm, relu": (
        lambda: nn.Sequential(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True)),
        IMAGE,
    ),
    "linear": (lambda: nn.Linear(12, 5), (3, 12)),
    "linear of a sequence": (lambda: nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5)), (2, 3, 12)),
    "sums": (Sum, (3, 12)),
    "pooling": (lambda: nn.Sequential(nn.Conv2d(8, 4, 1), nn.MaxPool2d(3, 2, 1), nn.Flatten()), IMAGE),
    "mean": (lambda: nn.Sequential(Mean(), nn.Conv2d(8, 4, 1)), IMAGE),
}


def assert_integers_agree(compiled: Callable[..., Tensor], quantised: nn.Module, x: Tensor) -> None:
    """Check that integers are eager's, or their neighbours where the device rounds a tie to the other one."""
    with torch.no_grad():
        expected, result = quantised(x), compiled(x)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    step = torch.diff(expected.unique()).min()
    steps = ((result - expected) / step).abs()
    assert steps.max() < 1.5
    assert (steps > 0.5).double().mean() <= 0.02


def road(frontend: str, model: nn.Module, x: Tensor) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    if frontend == "export":
        return torchmdla.compile(model, x, frontend="export")  # type: ignore[no-any-return]
    return torch.compile(model, backend="torchmdla", options={"device": "int8"})  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("frontend", ["export", "dynamo"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(4)
def test_integers(name: str, frontend: str) -> None:
    build, sizes = MODELS[name]
    model, x = build().eval(), torch.randn(sizes)
    quantised = torchmdla.quantise(model, [x, 2 * torch.randn(sizes)])
    torchmdla.reset_stats()
    compiled = road(frontend, quantised.module, x)
    assert_integers_agree(compiled, quantised.module, x)
    stats = torchmdla.stats()
    assert stats.specialisations and (stats.fallbacks, stats.left_out) == ({}, {})


def test_what_is_float_runs_in_pytorch() -> None:
    """Check a layer that stays in float, and an operator that the device does not have."""
    model = nn.Sequential(nn.Conv2d(8, 6, 3), nn.Conv2d(6, 6, 3), nn.Sigmoid(), nn.Conv2d(6, 4, 3)).eval()
    x = torch.randn(IMAGE)
    quantised = torchmdla.quantise(model, [x], float_layers=["1"])
    assert [layer.name for layer in quantised.layers] == ["0", "3"]
    assert quantised.float_operators == {"conv2d": 1, "sigmoid": 1}
    torchmdla.reset_stats()
    assert_integers_agree(road("export", quantised.module, x), quantised.module, x)
    stats = torchmdla.stats()
    assert stats.specialisations >= 2 and stats.fallbacks == {}
    (reason,) = stats.left_out
    assert "no instruction for torch.aten.convolution of" in reason


@pytest.mark.sampled(0)
def test_the_example() -> None:
    done: Any = run_script("run.py", folder=EXAMPLE, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    *_, exported, compiled, counts = done.stdout.splitlines()
    for line in (exported, compiled):
        assert " 100% as eager" in line or line.endswith("by 1 step at most")
    assert counts == "fallbacks: none, left out: none"
