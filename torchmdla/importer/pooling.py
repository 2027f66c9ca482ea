"""Adaptive average pooling: upstream takes only some of the sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def adaptive_average(spatial: int) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """Pools the last ``spatial`` dimensions to given sizes. The windows are boxes: one dimension at a time."""

    def pool(value: Tensor, sizes: Sequence[int]) -> Tensor:
        dims = range(value.dim() - spatial, value.dim())
        whole = [dim for dim, size in zip(dims, sizes, strict=True) if size == 1]
        if whole:
            value = value.mean(whole, keepdim=True)
        for dim, size in zip(dims, sizes, strict=True):
            value = _pool_dim(value, dim, size)
        return value

    return pool


def _pool_dim(value: Tensor, dim: int, size: int) -> Tensor:
    length = value.size(dim)
    if length == size:
        return value
    if length % size == 0:
        blocks = value.view([*value.shape[:dim], size, length // size, *value.shape[dim + 1 :]])
        return blocks.mean(dim + 1)
    # Window i of PyTorch's rule: from floor(i · length / size) to ceil((i + 1) · length / size).
    bounds = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
    return torch.cat([value.narrow(dim, a, b - a).mean(dim, keepdim=True) for a, b in bounds], dim)
