"""Reductions, and losses, whose lowerings in torch-mlir are missing or wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.decompositions.elementwise import log_sigmoid


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
        index = _first_index(value, extreme, dim)
        return (extreme, index) if keepdim else (extreme.squeeze(dim), index.squeeze(dim))

    return reduce


def index_of_extremum(largest: bool) -> Callable[..., Tensor]:
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
            index = _first_index(value.reshape(-1), extremum(value).view(1), 0)
            return index.view([1] * value.dim() if keepdim else [])
        index = _first_index(value, extremum(value, dim, keepdim=True), dim)
        return index if keepdim else index.squeeze(dim)

    return reduce


def _first_index(value: Tensor, extreme: Tensor, dim: int) -> Tensor:
    """Return the first index of ``extreme``, or of a NaN, along ``dim``. The result keeps ``dim`` with size 1."""
    length, after = value.size(dim), value.dim() - 1 - dim % value.dim()
    places = torch.arange(length, device=value.device).view([-1] + [1] * after)
    return torch.where((value == extreme) | torch.isnan(value), places, length).amin(dim, keepdim=True)


# Losses

# ATen's numbers of reductions. The number 0 leaves a loss unreduced.
_MEAN, _SUM = 1, 2


def binary_cross_entropy_with_logits(
    value: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Compute ``(1 - target) · value - factor · log sigmoid(value)``, where ``factor`` weights the positive targets.

    Upstream's lowering derives the size of the loss from ``pos_weight``.
    """
    likelihood = log_sigmoid(value)
    if pos_weight is not None:
        likelihood = ((pos_weight - 1) * target + 1) * likelihood
    loss = (1 - target) * value - likelihood
    return _reduce_loss(loss if weight is None else loss * weight, reduction)


def kl_div(value: Tensor, target: Tensor, reduction: int = _MEAN, log_target: bool = False) -> Tensor:
    """Compute ``target · (log target - value)``, where ``value`` holds logarithms.

    ``target`` holds logarithms if ``log_target`` is set. A target of zero adds nothing; upstream's adds NaN.
    """
    if log_target:
        return _reduce_loss(torch.exp(target) * (target - value), reduction)
    return _reduce_loss(torch.xlogy(target, target) - target * value, reduction)


def mse_loss(value: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """Compute the square of the difference. Eager also rounds the difference before it squares it."""
    difference = value - target
    return _reduce_loss(difference * difference, reduction)


def mse_loss_backward(grad: Tensor, value: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Compute PyTorch's decomposition, for floats only: for integers eager rounds intermediate results."""
    if not value.is_floating_point():
        raise CompileError("integers", op="aten::mse_loss_backward")
    decomposition = torch._decomp.decomposition_table[torch.ops.aten.mse_loss_backward.default]
    return decomposition(grad, value, target, reduction)  # type: ignore[no-any-return]


def _reduce_loss(loss: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return torch.mean(loss)
    return torch.sum(loss) if reduction == _SUM else loss
