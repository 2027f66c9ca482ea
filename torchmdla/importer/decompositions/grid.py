"""Sampling at the points of a grid. Upstream reads beyond the image, and does not lower every mode."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchmdla.errors import CompileError

# ATen's numbers of the interpolation and padding modes (ATen/native/GridSamplerUtils.h).
_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def grid_sampler(image: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Tensor:
    """Compute ``aten::grid_sampler``.

    The grid's coordinates name the last dimension first.

    Args:
        image: [N, C, *sizes].
        grid: [N, *places, len(sizes)].
        interpolation: ATen's number of the interpolation mode.
        padding: ATen's number of the padding mode.
        align_corners: whether -1 and 1 are the centres of the corner elements, not their outer corners.

    Raises:
        CompileError: If the interpolation is bicubic.
    """
    if interpolation not in (_BILINEAR, _NEAREST):
        raise CompileError("bicubic interpolation", op="aten::grid_sampler")
    sizes = image.shape[2:]
    at = [
        _unnormalise(grid.select(-1, len(sizes) - 1 - dim), size, padding, align_corners)
        for dim, size in enumerate(sizes)
    ]
    if interpolation == _NEAREST:
        return _read(image, [torch.round(x) for x in at])
    low = [torch.floor(x) for x in at]
    result = None
    for upper in itertools.product((False, True), repeat=len(sizes)):
        corner = [x + 1 if above else x for x, above in zip(low, upper, strict=True)]
        weights = [x - x0 if above else x0 + 1 - x for x, x0, above in zip(at, low, upper, strict=True)]
        weight = math.prod(weights[1:], start=weights[0]).unsqueeze(1)  # type: ignore[arg-type]
        part = _read(image, corner) * weight
        result = part if result is None else result + part
    assert result is not None
    return result


def _unnormalise(x: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """Map -1 … 1 to 0 … size - 1. The padding mode may reflect or clamp the result to this range."""
    x = (x + 1) * ((size - 1) / 2) if align_corners else ((x + 1) * size - 1) / 2
    if padding == _REFLECTION:
        x = _reflect(x, 0, 2 * (size - 1)) if align_corners else _reflect(x, -1, 2 * size - 1)
    return x if padding == _ZEROS else torch.clamp(x, 0, size - 1)


def _reflect(x: Tensor, twice_low: int, twice_high: int) -> Tensor:
    """Return ``x`` reflected at both bounds until it is between them."""
    if twice_low == twice_high:
        return torch.zeros_like(x)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    x = torch.abs(x - low)
    extra = torch.fmod(x, span)
    flips = torch.floor(x / span)
    return torch.where(torch.remainder(flips, 2) == 0, extra + low, span - extra + low)


def _read(image: Tensor, at: Sequence[Tensor]) -> Tensor:
    """Return [N, C, *places]: the elements at whole numbers, or 0 beyond the image."""
    count, channels, *sizes = image.shape
    inside = [(x >= 0) & (x <= size - 1) for x, size in zip(at, sizes, strict=True)]
    places = [
        torch.clamp(torch.nan_to_num(x), 0, size - 1).to(torch.int64).unsqueeze(1)
        for x, size in zip(at, sizes, strict=True)
    ]
    ones = [1] * len(sizes)
    samples = torch.arange(count, device=image.device).view([count, 1, *ones])
    planes = torch.arange(channels, device=image.device).view([1, channels, *ones])
    values = torch.ops.aten.index.Tensor(image, [samples, planes, *places])
    return torch.where(functools.reduce(torch.logical_and, inside).unsqueeze(1), values, 0.0)
