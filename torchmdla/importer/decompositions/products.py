"""Matrix products as plain two-dimensional or batched ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def linear(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``value weightᵀ + bias``. All leading dimensions become the rows of one product.

    Upstream repeats the weight for each batch instead.
    """
    product = torch.mm(_flatten_rows(value), weight.t())
    if bias is not None:
        product = product + bias
    return product.view([*value.shape[:-1], weight.size(0)])


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Compute ``aten::matmul`` as one product. If the right operand is a matrix, all leading dimensions become rows."""
    if right.dim() == 1:
        product = torch.mm(_flatten_rows(left), right.unsqueeze(1))
        return product.view(left.shape[:-1])
    if right.dim() == 2:
        product = torch.mm(_flatten_rows(left), right)
        return product.view([*left.shape[:-1], right.size(-1)])
    if left.dim() == 1:
        return matmul(left.unsqueeze(0), right).squeeze(-2)
    batch = _broadcast_batch(left, right)
    product = torch.bmm(_flatten_batch(left, batch), _flatten_batch(right, batch))
    return product.view([*batch, left.size(-2), right.size(-1)])


def _flatten_rows(value: Tensor) -> Tensor:
    """Return a matrix whose rows are all leading dimensions."""
    return value.reshape(math.prod(value.shape[:-1]), value.size(-1))


def _broadcast_batch(left: Tensor, right: Tensor) -> list[int]:
    rank = max(left.dim(), right.dim()) - 2
    pairs = zip(*([1] * (rank + 2 - x.dim()) + list(x.shape[:-2]) for x in (left, right)), strict=True)
    return [b if a == 1 else a for a, b in pairs]


def _flatten_batch(value: Tensor, batch: list[int]) -> Tensor:
    matrix = list(value.shape[-2:])
    return value.expand(batch + matrix).reshape([math.prod(batch), *matrix])


def add_product(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return a function for ``beta · value + alpha · product(left, right)``, which is the ``addmm`` family.

    A ``beta`` of 0 drops NaN in ``value``. Numbers that are known only at run time are 0-d tensors.
    """

    def add(value: Tensor, left: Tensor, right: Tensor, beta: float | Tensor = 1, alpha: float | Tensor = 1) -> Tensor:
        result = product(left, right)
        result = result if isinstance(alpha, float | int) and alpha == 1 else result * alpha
        if isinstance(beta, Tensor):
            scaled = value * beta
            return result + torch.where(beta == 0, torch.zeros_like(scaled), scaled)
        if beta == 0:
            return result
        return result + (value if beta == 1 else value * beta)

    return add
