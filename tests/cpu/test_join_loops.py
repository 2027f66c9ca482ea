"""Loops that a view split in two, joined again: the loops of a convolution, and values."""

from __future__ import annotations

import pytest
import torch
from nest_running import host_target
from test_tile_fusion import all_nests
from torch import Tensor
from torch.nn import functional
from written_programs import TracedProgram, normal


def upsample(x: Tensor, weight: Tensor) -> Tensor:
    """Return a transposed convolution of stride 2, whose results are interleaved."""
    return functional.conv_transpose2d(x, weight, stride=2)


def add_and_convolve(x: Tensor, skip: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    residual = upsample(x, up)
    return torch.where(skip > 0, functional.conv2d(functional.relu(residual), weight, padding=1) + residual, 0)


ARGUMENTS = normal(2, 16, 6, 5), normal(2, 16, 12, 10)
WEIGHTS = normal(16, 16, 2, 2), normal(16, 16, 3, 3)


@pytest.mark.parametrize("features", [(), ("+avx2", "+fma")], ids=["widest", "avx2"])
def test_a_residual_splits_no_loop_of_a_convolution(features: tuple[str, ...]) -> None:
    program = TracedProgram(add_and_convolve, *ARGUMENTS, weights=WEIGHTS)
    target = host_target(*features)
    (convolution,) = (nest for nest in all_nests(program.steps(target)) if sum(nest.reduction) == 4 and 3 in nest.sizes)
    assert {12, 10} <= {
        size for size, reduces in zip(convolution.sizes, convolution.reduction, strict=True) if not reduces
    }
    program.check(target)
