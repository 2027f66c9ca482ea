"""Resizing of images, and sampling at the points of a grid.

Images are resized one dimension at a time: each output element is a weighted sum of a few input elements.
Coordinates are those of PyTorch's kernels. With ``align_corners`` the centres of the corner elements coincide.
Otherwise the outer corners of the corner elements coincide.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchmdla.errors import CompileError

# Arguments: the indices of the new elements, the old length, the step between samples, align_corners. Result:
# [(indices, weights or None)].
Taps = Callable[[Tensor, int, float, bool], "list[tuple[Tensor, Tensor | None]]"]


def _nearest(numbers: Tensor, length: int, step: float, align: bool) -> list[tuple[Tensor, Tensor | None]]:
    return [(_element_at(numbers * step, length), None)]


def _nearest_of_centres(numbers: Tensor, length: int, step: float, align: bool) -> list[tuple[Tensor, Tensor | None]]:
    return [(_element_at((numbers + 0.5) * step, length), None)]


def _element_at(place: Tensor, length: int) -> Tensor:
    """Return the index of the element at a place. PyTorch's kernels round places to float32 even in float64."""
    return torch.floor(place.to(torch.float32)).to(torch.int64).clamp(0, length - 1)


def _linear(numbers: Tensor, length: int, step: float, align: bool) -> list[tuple[Tensor, Tensor | None]]:
    place = _places(numbers, step, align).clamp(min=0.0)
    low = torch.floor(place)
    part = place - low
    index = low.to(torch.int64)
    return [(index.clamp(0, length - 1), 1.0 - part), ((index + 1).clamp(0, length - 1), part)]


def _cubic(numbers: Tensor, length: int, step: float, align: bool) -> list[tuple[Tensor, Tensor | None]]:
    place = _places(numbers, step, align)
    low = torch.floor(place)
    part = place - low
    index = low.to(torch.int64)
    weights = (_far(part + 1.0), _near(part), _near(1.0 - part), _far(2.0 - part))
    return [
        ((index + offset).clamp(0, length - 1), weight) for offset, weight in zip((-1, 0, 1, 2), weights, strict=True)
    ]


# The cubic convolution kernel (Keys, 1981) with PyTorch's coefficient, for distances up to 1 and up to 2.
_A = -0.75


def _near(distance: Tensor) -> Tensor:
    return ((_A + 2.0) * distance - (_A + 3.0)) * distance * distance + 1.0


def _far(distance: Tensor) -> Tensor:
    return ((_A * distance - 5.0 * _A) * distance + 8.0 * _A) * distance - 4.0 * _A


def _places(numbers: Tensor, step: float, align: bool) -> Tensor:
    return numbers * step if align else (numbers + 0.5) * step - 0.5


def _step(length: int, new: int, scale: float | None, align: bool) -> float:
    if align:
        return (length - 1) / (new - 1) if new > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else length / new


def _resize_dim(
    taps: Taps, value: Tensor, dim: int, new: int, scale: float | None, align: bool, dtype: torch.dtype
) -> Tensor:
    length = value.size(dim)
    if length == new and scale in (None, 1.0):
        return value
    shape = [-1 if d == dim else 1 for d in range(value.dim())]
    step = _step(length, new, scale, align)
    terms = []
    for index, weight in taps(torch.arange(new, device=value.device).to(dtype), length, step, align):
        term = torch.index_select(value, dim, index)
        terms.append(term if weight is None else term * weight.view(shape))
    return sum(terms[1:], start=terms[0])


def _resize(taps: Taps, value: Tensor, sizes: Sequence[int], scales: Sequence[float | None], align: bool) -> Tensor:
    first = value.dim() - len(sizes)
    dtype, ratios = value.dtype, _RATIOS_WITHOUT_SCALE.get(taps, ())
    if taps in (_nearest, _nearest_of_centres):
        is_vectorised = _is_vectorised(value, sizes)
        dtype = torch.float64 if dtype == torch.float64 and not is_vectorised else torch.float32
        ratios = ratios if is_vectorised else ()
    scales = _drop_unused_scales(scales, ratios, value.shape[first:], sizes)
    # PyTorch's kernels sum the innermost dimension first.
    for offset in reversed(range(len(sizes))):
        value = _resize_dim(taps, value, first + offset, sizes[offset], scales[offset], align, dtype)
    return value


# PyTorch's kernels that ignore the scale of a dimension, and the ratios of new to old length at which they do. The
# linear kernels copy. The vectorised nearest-element kernel copies or halves places.
_RATIOS_WITHOUT_SCALE: Mapping[Taps, Sequence[int]] = {_linear: (1,), _nearest: (1, 2)}

# The largest sum of an image's two sizes for which PyTorch uses its vectorised kernel in every memory format.
_SMALL_IMAGE = 128
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def _is_vectorised(value: Tensor, sizes: Sequence[int]) -> bool:
    """Return whether PyTorch finds nearest elements with its vectorised kernel, which is for images and volumes."""
    if len(sizes) not in _CHANNELS_LAST:
        return False
    if len(sizes) == 2 and sizes[0] + sizes[1] <= _SMALL_IMAGE:
        return True
    return value.size(1) > 3 and value.is_contiguous(memory_format=_CHANNELS_LAST[len(sizes)])


def _drop_unused_scales(
    scales: Sequence[float | None], ratios: Sequence[int], lengths: Sequence[int], sizes: Sequence[int]
) -> Sequence[float | None]:
    """Return the scales, with None for dimensions whose new length is one of ``ratios`` times the old one."""
    return [
        None if scale is None or any(new == ratio * length for ratio in ratios) else scale
        for scale, length, new in zip(scales, lengths, sizes, strict=True)
    ]


def resize(taps: Taps, spatial: int, *, aligns: bool, vec: bool) -> Callable[..., Tensor]:
    """Return a function for an overload that accepts output sizes and then, optionally, one scale per dimension.

    ``aligns`` is true if the op has an argument ``align_corners`` after the sizes. The overload ``.vec`` has a list of
    scale factors. Of output sizes and scale factors, one is ``None``.
    """

    def call(value: Tensor, sizes: Sequence[int] | None, *rest: Any) -> Tensor:
        align, *scales = rest if aligns else (False, *rest)
        scales = scales[0] if vec else scales
        sizes = result_sizes(value.shape[value.dim() - spatial :], sizes, scales)
        return _resize(taps, value, sizes, scales or [None] * spatial, bool(align))

    return call


def result_sizes(lengths: Sequence[int], sizes: Sequence[int] | None, factors: Any) -> Sequence[int]:
    """Return the sizes of an image of ``lengths`` resized to ``sizes``, or by ``factors`` if ``sizes`` is ``None``."""
    if sizes is not None:
        return sizes
    return [
        length * int(factor) if float(factor).is_integer() else math.floor(length * factor)
        for length, factor in zip(lengths, factors, strict=True)
    ]


# Name of the op -> (taps, number of dimensions, whether it has align_corners).
_KINDS: dict[str, tuple[Taps, int, bool]] = {
    "upsample_nearest1d": (_nearest, 1, False),
    "upsample_nearest2d": (_nearest, 2, False),
    "upsample_nearest3d": (_nearest, 3, False),
    "_upsample_nearest_exact1d": (_nearest_of_centres, 1, False),
    "_upsample_nearest_exact2d": (_nearest_of_centres, 2, False),
    "_upsample_nearest_exact3d": (_nearest_of_centres, 3, False),
    "upsample_linear1d": (_linear, 1, True),
    "upsample_bilinear2d": (_linear, 2, True),
    "upsample_trilinear3d": (_linear, 3, True),
    "upsample_bicubic2d": (_cubic, 2, True),
}


def resized_shape(spatial: int, *, vec: bool) -> Callable[..., list[int]]:
    """Return a function from the arguments of an overload to the result's shape, for ``spatial`` dimensions."""

    def shape(value: Tensor, sizes: Sequence[int] | None, *rest: object) -> list[int]:
        first = value.dim() - spatial
        return [*value.shape[:first], *result_sizes(value.shape[first:], sizes, rest[-1] if vec else None)]

    return shape


# Name of the op -> function that returns the shape of its result.
RESIZED_SHAPES: dict[str, Callable[..., list[int]]] = {
    f"aten::{name}{'.vec' if vec else ''}": resized_shape(spatial, vec=vec)
    for name, (_, spatial, _) in _KINDS.items()
    for vec in (False, True)
}

RESIZES: dict[str, Callable[..., Tensor]] = {
    f"aten::{name}{'.vec' if vec else ''}": resize(taps, spatial, aligns=aligns, vec=vec)
    for name, (taps, spatial, aligns) in _KINDS.items()
    for vec in (False, True)
}


# Sampling at the points of a grid. Upstream reads beyond the image, and does not lower every mode.

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
