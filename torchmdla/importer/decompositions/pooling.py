"""Adaptive pooling. Upstream supports only some of the sizes, and does not give the index of a NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def adaptive_average(spatial: int) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """Return a function that pools the last ``spatial`` dimensions to given sizes, one dimension at a time.

    This is exact, because the windows are boxes.
    """

    def pool(value: Tensor, sizes: Sequence[int]) -> Tensor:
        dims = range(value.dim() - spatial, value.dim())
        whole = [dim for dim, size in zip(dims, sizes, strict=True) if size == 1]
        if whole:
            value = value.mean(whole, keepdim=True)
        for dim, size in zip(dims, sizes, strict=True):
            value = _pool_dim(value, dim, size)
        return value

    return pool


# Maximum number of windows that are written as separate slices, which are faster than a lookup.
_MAX_SLICES = 32


def _pool_dim(value: Tensor, dim: int, size: int) -> Tensor:
    length = value.size(dim)
    if length == size:
        return value
    if length % size == 0:
        blocks = value.view([*value.shape[:dim], size, length // size, *value.shape[dim + 1 :]])
        return blocks.mean(dim + 1)
    if size > _MAX_SLICES:
        return _mean_of_places(value, dim, size)
    return torch.cat([value.narrow(dim, *window).mean(dim, keepdim=True) for window in _windows(length, size)], dim)


def _mean_of_places(value: Tensor, dim: int, size: int) -> Tensor:
    """Return the mean of each window by one lookup. The length of the program does not depend on the window count."""
    start, end = _bounds(value.size(dim), size, value.device)
    counts, places = end - start, _places(value.size(dim), size, value.device)
    windows = value.index_select(dim, places.flatten()).unflatten(dim, places.shape)
    behind = [1] * (value.dim() - dim - 1)
    inside = (torch.arange(places.size(1), device=value.device) < counts).view(*places.shape, *behind)
    return torch.where(inside, windows, 0).sum(dim + 1) / counts.view(size, *behind)


def _windows(length: int, size: int) -> list[tuple[int, int]]:
    """Return start and length of each window.

    Window i ranges from floor(i · length / size) to ceil((i + 1) · length / size).
    """
    bounds = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
    return [(start, end - start) for start, end in bounds]


def adaptive_maximum(spatial: int) -> Callable[[Tensor, Sequence[int]], tuple[Tensor, Tensor]]:
    """Return a function that finds the largest value of each window of the last ``spatial`` dimensions.

    The function also returns the flat index of that value in these dimensions. Among equal values it selects the
    first, and among NaNs the last, as in eager.
    """

    def pool(value: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        lengths, lead = value.shape[-spatial:], value.dim() - spatial
        places = [_places(length, size, value.device) for length, size in zip(lengths, sizes, strict=True)]
        for dim, place in enumerate(places):
            value = value.index_select(lead + dim, place.flatten())
        value = value.view([*value.shape[:lead], *(n for place in places for n in place.shape)])
        cells, inside = (range(lead + first, value.dim(), 2) for first in (0, 1))
        windows = value.permute([*range(lead), *cells, *inside]).flatten(lead + spatial)
        flat = _flat_places(places, lengths)
        largest = windows.amax(-1)
        first = torch.where(windows == largest.unsqueeze(-1), flat, math.prod(lengths)).amin(-1)
        last_nan = torch.where(torch.isnan(windows), flat, -1).amax(-1)
        return largest, torch.where(last_nan >= 0, last_nan, first)

    return pool


def _places(length: int, size: int, device: torch.device) -> Tensor:
    """Return the places in each window of one dimension, ``[size, widest]``. Shorter windows repeat the last place."""
    widest = max(inside for _, inside in _windows(length, size))
    start, end = _bounds(length, size, device)
    return torch.minimum(start + torch.arange(widest, device=device), end - 1)


def _bounds(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the starts and the ends of the windows of one dimension, ``[size, 1]`` each."""
    cell = torch.arange(size, device=device).unsqueeze(1)
    start = torch.div(cell * length, size, rounding_mode="trunc")
    return start, torch.div((cell + 1) * length + (size - 1), size, rounding_mode="trunc")


def _flat_places(places: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Return the flat index of each place of each window, ``[*cells, places of a window]``."""
    rank = len(places)
    flat: Tensor | int = 0
    for dim, (place, length) in enumerate(zip(places, lengths, strict=True)):
        shape = [1] * (2 * rank)
        shape[dim], shape[rank + dim] = place.shape
        flat = flat * length + place.view(shape)
    assert isinstance(flat, Tensor)
    return flat.flatten(rank)
