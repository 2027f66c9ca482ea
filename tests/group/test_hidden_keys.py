"""Attention with a masked key that holds infinity or NaN: the key's weight is 0 or NaN, as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from graphs import warmed_up
from torch import Tensor
from torch.nn import functional

import torchmdla
from torchmdla.testing.compare import assert_matches

_generator = torch.Generator().manual_seed(0)
LENGTH = 8
HIDDEN = 2

_kept = torch.rand(LENGTH, LENGTH, generator=_generator) > 0.5
_kept[:, 0] = True
_kept[:, HIDDEN] = torch.arange(LENGTH) % 2 == 0

MASKS = {
    "booleans": _kept,
    "a row of nothing": _kept & (torch.arange(LENGTH)[:, None] != 1),
    "numbers": torch.where(_kept, 0.5, -math.inf),
    "large numbers": torch.where(_kept, 0.0, -1e9),
    "causal": None,
}
# Eager has one kernel for four dimensions and values as long as keys. It uses products and softmax for other shapes.
SIZES = {
    "fused": ((1, 2, LENGTH, 4), (1, 2, LENGTH, 4)),
    "no batch": ((2, LENGTH, 4), (2, LENGTH, 4)),
    "longer values": ((1, 2, LENGTH, 4), (1, 2, LENGTH, 6)),
}


def attention(mask: Tensor | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return result * 2

    return attend


@pytest.mark.parametrize("frontend", ["trace", "compile"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.usefixtures("without_gradients")
@pytest.mark.sampled(6)
def test_hidden_keys(sizes: str, mask: str, frontend: str) -> None:
    of_keys, of_values = SIZES[sizes]
    query, key = (torch.randn(of_keys, generator=_generator) for _ in range(2))
    value = torch.randn(of_values, generator=_generator)
    function = attention(MASKS[mask])
    if frontend == "trace":
        compiled = warmed_up(function, query, key, value)
        assert torchmdla.stats().compiled_calls > 0
    else:
        compiled = torch.compile(function, backend="torchmdla")
    for tensor in (key, value):
        for number in (math.inf, -math.inf, math.nan):
            previous = tensor[..., HIDDEN, 0].clone()
            tensor[..., HIDDEN, 0] = number
            assert_matches(compiled(query, key, value), function(query, key, value), layers=4)
            tensor[..., HIDDEN, 0] = previous
