"""Errors against float64: a compiled program's error is at most twice the error of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchmdla
from torchmdla.testing.models import MODELS

# An error below this fraction of the largest output is a few roundings of the result. It does not depend on the
# algorithm.
FLOOR = 1e-7


def rms(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())


def check(function: Callable[..., Tensor], exact: Callable[..., Tensor], *inputs: Tensor) -> None:
    compiled = torchmdla.compile(function, *inputs)
    with torch.no_grad():
        wanted = exact(*(x.double() if x.is_floating_point() else x for x in inputs))
        eager, ours = function(*inputs), compiled(*inputs)
        if isinstance(wanted, tuple):
            wanted, eager, ours = wanted[0], eager[0], ours[0]
    floor = FLOOR * float(wanted.abs().max())
    assert rms(ours - wanted) <= 2 * max(rms(eager - wanted), floor)


@pytest.mark.parametrize("length", [300, 1024, 5000])
def test_long_sums(length):
    """Check long sums. The error of a sum grows with the number of additions into one accumulator."""
    left, right = torch.rand(8, length), torch.rand(length, 48)
    check(torch.mm, torch.mm, left, right)
    check(lambda x: x.sum(1) * 2, lambda x: x.sum(1) * 2, left)


@pytest.mark.parametrize(("shape", "dim"), [((20_000,), 0), ((3, 20_000), 1), ((20_000, 3), 0), ((2, 9_000, 3), 1)])
@pytest.mark.sampled(0)
def test_running_sums_and_products(shape, dim):
    """Check cumulative sums and products. Eager accumulates them in double precision."""
    values = torch.rand(shape)
    check(lambda x: x.cumsum(dim), lambda x: x.cumsum(dim), values)
    check(lambda x: x.cumprod(dim), lambda x: x.cumprod(dim), 1 + (values - 0.5) / 100)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(2)
def test_models(name):
    spec = MODELS[name].reduced()
    module = spec.build()
    check(module, copy.deepcopy(module).double(), *spec.inputs())
