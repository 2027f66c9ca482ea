"""Reductions whose lowerings in torch-mlir are missing or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def logsumexp(value: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Compute ``log(sum(exp(value)))`` with the largest value factored out. A row of infinities gives that infinity."""
    if not value.is_floating_point():
        value = value.to(torch.get_default_dtype())
    largest = torch.amax(value, dim, keepdim=True)
    largest = torch.where(torch.abs(largest) == math.inf, 0.0, largest)
    total = torch.log(torch.sum(torch.exp(value - largest), dim, keepdim=True)) + largest
    return total if keepdim else torch.squeeze(total, tuple(dim))


def nansum(
    value: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the sum, with NaN counted as 0."""
    if value.is_floating_point():
        value = torch.where(torch.isnan(value), 0.0, value)
    dims = list(range(value.dim())) if dim is None else list(dim)
    return torch.sum(value, dims, keepdim, dtype=dtype)


def count_nonzero(value: Tensor, dim: int | None = None) -> Tensor:
    """Compute ``aten::count_nonzero``. Upstream does not support 0-d tensors."""
    return torch.sum(value != 0, [] if dim is None else [dim], dtype=torch.int64)


def vector_norm(
    value: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute the ``ord``-norm over ``dim`` (all dimensions when None)."""
    dims = list(range(value.dim())) if dim is None else list(dim)
    size = torch.abs(value if dtype is None else value.to(dtype))
    if abs(ord) == math.inf:
        return (torch.amax if ord > 0 else torch.amin)(size, dims, keepdim=keepdim)
    if ord == 0:
        return torch.sum((size != 0).to(size.dtype), dims, keepdim=keepdim)
    if ord == 1:
        return torch.sum(size, dims, keepdim=keepdim)
    if ord == 2:
        return torch.sqrt(torch.sum(size * size, dims, keepdim=keepdim))
    if abs(ord) > torch.finfo(size.dtype).max:  # Eager's kernel converts ord to the dtype of the computation.
        ord = math.copysign(math.inf, ord)
    return torch.pow(torch.sum(torch.pow(size, ord), dims, keepdim=keepdim), 1.0 / ord)


def norm(value: Tensor, p: float = 2) -> Tensor:
    """Compute ``aten::norm.Scalar`` over all dimensions."""
    return vector_norm(value, p)


def norm_of_dims(value: Tensor, p: float | None, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    """Compute ``aten::norm.ScalarOpt_dim``. An empty ``dim`` selects all dimensions."""
    return vector_norm(value, 2 if p is None else p, dim or None, keepdim)


def sum_to_size(value: Tensor, size: Sequence[int] | None) -> Tensor:
    """Sum over the dimensions that broadcasting from ``size`` added. None leaves the value unchanged."""
    if size is None:
        return value
    if not size:  # The sum of integers is int64 in this case.
        return torch.sum(value)
    if list(size) == list(value.shape):
        return value
    added = value.dim() - len(size)
    stretched = [added + dim for dim, length in enumerate(size) if length == 1 and value.size(added + dim) != 1]
    return torch.sum(value, [*range(added), *stretched], keepdim=True).view(size)


def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """Compute the gradient of softmax. The sum is subtracted first, as in eager, so that infinities do not combine."""
    return (grad - torch.sum(grad * output, dim, keepdim=True)) * output


Extremum = Callable[..., Tensor]


def extremum_of_dim(largest: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function for ``aten::max.dim`` or ``aten::min.dim``: the extreme value and its first index.

    NaN counts as more extreme than all numbers. Upstream's index skips NaN. Integers cannot be NaN, and keep the
    original op.
    """
    whole = torch.max if largest else torch.min
    extremum: Extremum = torch.amax if largest else torch.amin

    def reduce(value: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if value.dim() == 0:
            return torch.clone(value), torch.zeros([], dtype=torch.int64, device=value.device)
        if not value.is_floating_point():
            result = whole(value, dim, keepdim)
            return result.values, result.indices
        extreme = extremum(value, dim, keepdim=True)
        index = _first_place(value, extreme, dim)
        return (extreme, index) if keepdim else (extreme.squeeze(dim), index.squeeze(dim))

    return reduce


def place_of_extremum(largest: bool) -> Callable[..., Tensor]:
    """Return a function for ``aten::argmax`` or ``aten::argmin``.

    NaN counts as in :func:`extremum_of_dim`. The index is over all dimensions when ``dim`` is ``None``.
    """
    whole = torch.argmax if largest else torch.argmin
    extremum: Extremum = torch.amax if largest else torch.amin

    def reduce(value: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if value.dim() == 0:
            return torch.zeros([], dtype=torch.int64, device=value.device)
        if not value.is_floating_point():
            return whole(value, dim, keepdim)
        if dim is None:
            index = _first_place(value.reshape(-1), extremum(value).view(1), 0)
            return index.view([1] * value.dim() if keepdim else [])
        index = _first_place(value, extremum(value, dim, keepdim=True), dim)
        return index if keepdim else index.squeeze(dim)

    return reduce


def _first_place(value: Tensor, extreme: Tensor, dim: int) -> Tensor:
    """Return the first index of ``extreme``, or of a NaN, along ``dim``. The result keeps ``dim`` with size 1."""
    length, after = value.size(dim), value.dim() - 1 - dim % value.dim()
    places = torch.arange(length, device=value.device).view([-1] + [1] * after)
    return torch.where((value == extreme) | torch.isnan(value), places, length).amin(dim, keepdim=True)
