"""Tests of ``interpolate``, in every mode.

Sizes are given directly or by factors that result in the old size, its double or another size. Each case is traced and
run by ``torch.compile``. For the latter, PyTorch has Python decompositions that lack eager's shortcuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import warmed_up
from torch import Tensor
from torch.nn import functional

import torchmdla
from torchmdla.testing.compare import assert_matches

MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
    "area": (1, 2, 3),
}
ALIGNED = ("linear", "bilinear", "bicubic", "trilinear")

# PyTorch uses its general kernel for images whose new sizes add up to more than 128.
SIZES = {1: (3, 5), 2: ((3, 4), (33, 49)), 3: ((3, 4, 2),)}
FACTORS = (0.5, 0.9, 1.0, 1.3, 1.9, 2.0, 2.1, 2.3)

_LAYOUTS = {"channels last": {2: torch.channels_last, 3: torch.channels_last_3d}}


def image(layout: str, channels: int, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    tensor = torch.randn(2, channels, *sizes, dtype=dtype)
    return tensor.contiguous(memory_format=_LAYOUTS[layout][len(sizes)]) if layout in _LAYOUTS else tensor


def by_factors(mode: str) -> Callable[[Tensor], list[Tensor]]:
    """Return a function that resizes by each factor, with and without ``align_corners`` and recomputed factors."""

    def resize(x: Tensor) -> list[Tensor]:
        x = x.neg()
        return [
            functional.interpolate(x, None, factor, mode, align, recomputes) + 0.5
            for factor in FACTORS
            for align in ((None, True) if mode in ALIGNED else (None,))
            for recomputes in (None, True)
        ]

    return resize


def by_sizes(mode: str) -> Callable[[Tensor], list[Tensor]]:
    """Return a function that resizes to the same sizes, neighbouring sizes, doubles and halves."""

    def resize(x: Tensor) -> list[Tensor]:
        x, old = x.neg(), [int(size) for size in x.shape[2:]]
        wanted = [old, [2 * n for n in old], [2 * n - 1 for n in old], [n + 1 for n in old], [-(-n // 2) for n in old]]
        return [functional.interpolate(x, sizes, None, mode) + 0.5 for sizes in wanted]

    return resize


CASES = [
    (mode, dims, sizes, layout, channels, dtype)
    for mode, ranks in MODES.items()
    for dims in ranks
    for sizes in SIZES[dims]
    for layout, channels in (("contiguous", 2), ("contiguous", 4), ("channels last", 4))
    for dtype in (torch.float32, torch.float64)
    if (layout, channels) == ("contiguous", 2) or (dims > 1 and "nearest" in mode)
    if dtype == torch.float32 or mode == "nearest"
]


@pytest.mark.parametrize("make", [by_factors, by_sizes])
@pytest.mark.parametrize(("mode", "dims", "sizes", "layout", "channels", "dtype"), CASES)
@pytest.mark.sampled(6)
def test_resizing(
    make: Callable[[str], Callable[[Tensor], list[Tensor]]],
    mode: str,
    dims: int,
    sizes: tuple[int, ...] | int,
    layout: str,
    channels: int,
    dtype: torch.dtype,
) -> None:
    x = image(layout, channels, sizes if isinstance(sizes, tuple) else (sizes,), dtype)
    resize = make(mode)
    with torch.no_grad():
        traced = warmed_up(resize, x)
        assert_matches(traced(x), resize(x), layers=8 if mode == "bicubic" else 1)
    assert torchmdla.stats().compiled_calls > 0


BY_DYNAMO = [(mode, dims, False) for mode in MODES if mode != "area" for dims in MODES[mode]]
BY_DYNAMO += [("nearest", 2, True), ("bicubic", 2, True)]


@pytest.mark.parametrize(("mode", "dims", "dynamic"), BY_DYNAMO)
@pytest.mark.sampled(1)
def test_resizing_by_dynamo(mode: str, dims: int, dynamic: bool) -> None:
    torch._dynamo.reset()
    resize = by_sizes(mode) if dynamic else by_factors(mode)
    compiled = torch.compile(resize, backend="torchmdla", dynamic=dynamic)
    for length in (3, 3, 5):
        x = torch.randn(2, 2, *(length + dim for dim in range(dims)), requires_grad=True)
        assert_matches(results_and_gradient(compiled, x), results_and_gradient(resize, x), layers=8)
    assert torchmdla.stats().compiled_calls > 0


def results_and_gradient(resize: Callable[[Tensor], list[Tensor]], x: Tensor) -> Any:
    results = resize(x)
    return results, torch.autograd.grad(sum(result.square().sum() for result in results), x)
