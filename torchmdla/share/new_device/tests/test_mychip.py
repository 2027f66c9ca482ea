"""Tests of the device mychip against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchmdla
from torchmdla.testing.compare import assert_matches

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "elementwise": (lambda x: torch.sigmoid(x) * 2 - torch.maximum(x, x.exp()) / 3, (3, 5)),
    "nan": (lambda x: torch.relu(torch.log(x)) + torch.log(x).clamp(-1, 1), (3, 5)),
    "conditions": (lambda x: functional.leaky_relu(x) + functional.elu(x), (3, 5)),
    "broadcast": (lambda x: x[:, None] * x[None] + x.sum(0, keepdim=True), (3, 5)),
    "reductions": (lambda x: x.mean(1) + x.amax((0, 2)) - x.sum(), (2, 2, 2)),
    "softmax": (lambda x: torch.softmax(x, -1) + torch.log_softmax(x, 0), (3, 5)),
    "matrices": (lambda x: (x @ x.transpose(-1, -2)).relu() @ x, (2, 3, 70)),
    "convolution": (lambda x: functional.conv2d(x, x[:4, :2], stride=2, padding=(1, 2), groups=2), (4, 4, 5, 6)),
    "max pool": (lambda x: functional.max_pool2d(x, 3, 2, padding=1, ceil_mode=True).relu(), (2, 3, 6, 7)),
    "average": (lambda x: functional.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False).relu(), (2, 3, 6, 7)),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x + 1, x * 2), (2, 3, 5, 4)),
    "views": (lambda x: torch.cat([x.t().reshape(3, 5)[1:], x[::2, :5]], 0).unsqueeze(1).neg(), (3, 5)),
    "empty": (lambda x: x[:0].exp().sum(0), (3, 5)),
}

MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.LayerNorm(30), nn.Linear(30, 7)), (4, 20)),
    "convolutional": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=4, bias=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        ),
        (2, 3, 12, 10),
    ),
}


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    torch.manual_seed(0)
    torchmdla.enable(device="mychip")
    torchmdla.reset_stats()
    yield
    torchmdla.enable(False)


def check(function: Callable[..., Any], *arguments: Tensor) -> None:
    """Compare calls on the device with eager ones, and check that the device ran and that nothing fell back."""
    compiled = torch.compile(function, backend="torchmdla", options={"device": "mychip"})
    with torch.no_grad():
        for _ in range(3):
            assert_matches(compiled(*arguments), function(*arguments))
    stats = torchmdla.stats()
    assert not stats.fallbacks and not stats.left_out, (stats.fallbacks, stats.left_out)
    assert stats.specialisations  # compiled, or read from the cache


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, shape = PROGRAMS[name]
    check(function, torch.randn(shape))


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    model, shape = MODELS[name]
    check(model.eval(), torch.randn(shape))


def test_weights_that_change() -> None:
    """Check that packed weights follow the parameters."""
    model, x = nn.Linear(6, 5).eval(), torch.randn(3, 6)
    check(model, x)
    with torch.no_grad():
        model.weight.mul_(2)
    check(model, x)


def test_training() -> None:
    """Check the gradients of a model whose forward and backward passes are compiled."""
    model, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), torch.randn(3, 6)
    compiled = torch.compile(model, backend="torchmdla", options={"device": "mychip"})
    for _ in range(3):
        gradients = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        assert_matches(gradients, torch.autograd.grad(model(x).square().sum(), list(model.parameters())))
    assert torchmdla.stats().compiled
