"""Transposed convolutions of each channel for itself, which upstream does not lower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NAMES = frozenset(("aten::convolution", "aten::_convolution", "aten::_convolution.deprecated"))


def is_transposed_by_channel(operands: Sequence[Any]) -> bool:
    """Whether a call of one of :data:`NAMES` is such a convolution."""
    value, weight, transposed, groups = operands[0].meta, operands[1].meta, operands[6], operands[8]
    return bool(transposed) and groups == value.shape[1] == weight.shape[0] and weight.shape[1] == 1


def transposed_by_channel(
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: bool,
) -> Tensor:
    """As a convolution by the reversed weight of ``value`` with zeros between its elements and around them."""
    spatial = value.dim() - 2
    steps, borders, spreads, extras = (
        list(given) * (spatial if len(given) == 1 else 1) for given in (stride, padding, dilation, output_padding)
    )
    sizes: list[int] = []
    for dim in reversed(range(spatial)):
        value = _spread(value, 2 + dim, steps[dim])
        border = spreads[dim] * (weight.size(2 + dim) - 1) - borders[dim]
        sizes += [border, border + extras[dim]]
    value = torch.constant_pad_nd(value, sizes)
    weight = weight.flip(list(range(2, weight.dim())))
    return torch.convolution(value, weight, bias, [1] * spatial, [0] * spatial, spreads, False, [0] * spatial, groups)


def _spread(value: Tensor, dim: int, step: int) -> Tensor:
    """``step - 1`` zeros between the elements of a dimension."""
    if step == 1:
        return value
    after = value.dim() - 1 - dim
    spread = torch.constant_pad_nd(value.unsqueeze(dim + 1), [0, 0] * after + [0, step - 1]).flatten(dim, dim + 1)
    return spread.narrow(dim, 0, spread.size(dim) - step + 1)
