"""Programs that are compiled here for AArch64, run in an emulator and are compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulator
import pytest
import torch
from native_models import export
from torch import Tensor, nn
from torch.ao import quantization as quantisation

from torchmdla.testing.models import MODELS


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    emulator.build()


class Function(nn.Module):
    """Module without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def quantised() -> nn.Module:
    """Return a module of products of unsigned and signed bytes."""
    module = nn.Sequential(nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(192, 16))
    wrapped = quantisation.QuantWrapper(module).eval()
    wrapped.qconfig = quantisation.get_default_qconfig("x86")
    prepared = quantisation.prepare(wrapped)
    prepared(normal(8, 8, 6, 6))
    return quantisation.convert(prepared)


def normal(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*sizes).to(dtype)


# Modules, inputs, and the number of layers that sum.
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], int]] = {
    "elementwise": (
        lambda: Function(lambda x, y: (x * y + 1).relu() - y.abs().sqrt()),
        lambda: (normal(13, 37), normal(37)),
        1,
    ),
    "functions": (
        lambda: Function(lambda x, y: (torch.sin(x), torch.atan2(x, y), torch.pow(x.abs(), y), x.erf(), x.exp())),
        lambda: (normal(7, 11), normal(7, 11)),
        1,
    ),
    "double": (lambda: Function(lambda x: x.double().tanh() / 3), lambda: (normal(5, 9),), 1),
    "integers": (
        lambda: Function(lambda i, j: (i // j, i % j, (4 * i) ^ j, i.float() / j)),
        lambda: (torch.arange(-20, 20), torch.arange(1, 41)),
        1,
    ),
    "bools": (lambda: Function(lambda x: (x > 0, (x > 0).all(1), x.isnan())), lambda: (normal(6, 33),), 1),
    "matmul": (lambda: Function(torch.matmul), lambda: (normal(3, 65, 130), normal(130, 43)), 1),
    "softmax": (lambda: nn.Softmax(-1), lambda: (normal(9, 77) * 20,), 1),
    "reductions": (
        lambda: Function(lambda x: (x.sum(0), x.mean(), x.amax(1), x.argmin(1), x.var(1), x.cumsum(1))),
        lambda: (normal(19, 53),),
        1,
    ),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(50), nn.GELU()), lambda: (normal(4, 50),), 1),
    "convolution": (lambda: nn.Conv2d(8, 24, 3, stride=2, padding=1), lambda: (normal(2, 8, 17, 21),), 1),
    "depthwise": (lambda: nn.Conv2d(24, 24, 5, groups=24, padding=2), lambda: (normal(1, 24, 15, 9),), 1),
    "pooling": (lambda: nn.Sequential(nn.MaxPool2d(3, 2), nn.AvgPool2d(2)), lambda: (normal(2, 5, 19, 23),), 1),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(50, 12), nn.Linear(12, 5)),
        lambda: (torch.tensor([[3, 49, 0], [7, 7, 1]]),),
        1,
    ),
    "half": (lambda: nn.Linear(40, 24).half(), lambda: (normal(6, 40, dtype=torch.float16),), 1),
    "bfloat16": (lambda: nn.Linear(96, 32).bfloat16(), lambda: (normal(8, 96, dtype=torch.bfloat16),), 1),
    "bytes": (quantised, lambda: (normal(3, 8, 6, 6),), 2),
}


@pytest.mark.parametrize("target", ["armv8-a", "armv8.6-a"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, inputs, layers = PROGRAMS[name]
    model = export(build(), inputs(), tmp_path / "model.tmdla", layers, target)
    emulator.check(model, tmp_path)


@pytest.mark.parametrize("name", ["mlp", "resnet18", "bert", "mobilenet_v3_large", "lstm", "gpt"])
@pytest.mark.sampled(0)
def test_models(name: str, tmp_path: Path) -> None:
    spec = MODELS[name].reduced()
    model = export(spec.build(), spec.inputs(), tmp_path / "model.tmdla", spec.layers, "armv8-a")
    emulator.check(model, tmp_path)


def test_any_sizes(tmp_path: Path) -> None:
    spec = MODELS["mlp"].reduced()
    calls = [spec.inputs(batch=batch) for batch in (2, 5, 7)]
    model = export(spec.build(), calls, tmp_path / "model.tmdla", spec.layers, "armv8-a")
    for batch in (2, 9, 31):
        emulator.check(model, tmp_path, spec.inputs(batch=batch))
