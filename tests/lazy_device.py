"""Common helpers of the tests of PyTorch's lazy device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchmdla.testing.compare import assert_matches

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def moved(values: Any) -> Any:
    """Return ``values`` with its tensors on the CPU."""
    return torch.utils._pytree.tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, values)


def check(function: Callable[..., Any], *inputs: Any, calls: int = 4) -> None:
    """Check that every call gives the CPU's results: interpreted, recorded, compiled."""
    for _ in range(calls):
        expected = function(*[copy.deepcopy(x) for x in inputs])
        assert_matches(moved(function(*[x.to("lazy") for x in inputs])), expected, strides=False)
