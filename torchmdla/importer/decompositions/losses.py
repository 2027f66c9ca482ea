"""Losses whose lowerings in torch-mlir are missing or wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.decompositions.elementwise import log_sigmoid

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
    return _reduced(loss if weight is None else loss * weight, reduction)


def kl_div(value: Tensor, target: Tensor, reduction: int = _MEAN, log_target: bool = False) -> Tensor:
    """Compute ``target · (log target - value)``, where ``value`` holds logarithms.

    ``target`` holds logarithms if ``log_target`` is set. A target of zero adds nothing; upstream's adds NaN.
    """
    if log_target:
        return _reduced(torch.exp(target) * (target - value), reduction)
    return _reduced(torch.xlogy(target, target) - target * value, reduction)


def mse_loss(value: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    """Compute the square of the difference. Eager also rounds the difference before it squares it."""
    difference = value - target
    return _reduced(difference * difference, reduction)


def mse_loss_backward(grad: Tensor, value: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Compute PyTorch's decomposition, for floats only: for integers eager rounds intermediate results."""
    if not value.is_floating_point():
        raise CompileError("integers", op="aten::mse_loss_backward")
    decomposition = torch._decomp.decomposition_table[torch.ops.aten.mse_loss_backward.default]
    return decomposition(grad, value, target, reduction)  # type: ignore[no-any-return]


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return torch.mean(loss)
    return torch.sum(loss) if reduction == _SUM else loss
