"""Matrix products as plain two-dimensional or batched ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def linear(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``value weightᵀ + bias``: every leading dimension goes into the rows of one product.

    Upstream repeats the weight for each batch instead.
    """
    product = torch.mm(value.reshape(-1, value.size(-1)), weight.t())
    if bias is not None:
        product = product + bias
    return product.view([*value.shape[:-1], weight.size(0)])


def added_to(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """``beta · value + alpha · product(left, right)``: the ``addmm`` family. A ``beta`` of 0 drops NaN in ``value``."""

    def add(value: Tensor, left: Tensor, right: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
        result = product(left, right)
        result = result if alpha == 1 else result * alpha
        if beta == 0:
            return result
        return result + (value if beta == 1 else value * beta)

    return add
