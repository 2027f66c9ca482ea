"""Loops that a view split in two, joined again: the loops of a convolution, and values."""

from __future__ import annotations

import pytest
import torch
from nest_running import host_target
from test_tile_fusion import all_nests
from torch import Tensor
from torch.nn import functional
from written_programs import TracedProgram, normal

from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import load
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.passes.join_loops import join_loops


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


def test_channels_of_an_image_keep_their_loop() -> None:
    """Check that joined loops do not walk channels, which may be in blocks."""
    memory, image = Buffer("temporary", "f32", (768,), fixed=True), Buffer("temporary", "f32", (2, 16, 6, 4))
    rows, columns = AffineExpr((0, 0, 2, 1, 0)), AffineExpr.of_loop(4, 5)
    written = Access(image, (AffineExpr.of_loop(0, 5), AffineExpr.of_loop(1, 5), rows, columns))
    source = Access(memory, (AffineExpr((384, 24, 8, 4, 1)),))
    step = LoopNest.elementwise((2, 16, 3, 2, 4), written, load(source))
    join_loops(LoopProgram([step], {}))
    assert (image.sizes[:2], step.sizes[:2]) == ((2, 16), (2, 16))
    assert 2 not in step.sizes[2:]
