"""Which ATen operators PyTorch takes apart before groups form: backward ones that no device has as such."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator overload → its decomposition."""
    found = dict(get_decompositions(_DECOMPOSED))
    functional = aten._native_batch_norm_legit_functional.default
    found[functional] = partial(_without_gradients_of_statistics, found[functional])
    return found


def _without_gradients_of_statistics(norm: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """``norm``, whose new running statistics, its last two results, are hidden from autograd as the operator's are."""
    *results, mean, variance = norm(*args, **kwargs)
    return (*results, mean.detach(), variance.detach())


_DECOMPOSED: list[Any] = [
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit.no_stats,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten.native_layer_norm_backward,
    aten.native_group_norm_backward,
    aten.select_backward,
    aten.slice_backward,
    aten.diagonal_backward,
    aten.unfold_backward,
    aten._safe_softmax,
]
