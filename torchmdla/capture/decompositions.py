"""Which ATen operators PyTorch takes apart before groups form: backward ones that no device has as such."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    is_non_overlapping_and_dense_or_false,
)

aten = torch.ops.aten


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator overload → its decomposition."""
    found = dict(get_decompositions(_DECOMPOSED))
    functional = aten._native_batch_norm_legit_functional.default
    found[functional] = partial(_without_gradients_of_statistics, found[functional])
    found[aten.copy.default] = _copied
    return found


def _without_gradients_of_statistics(norm: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """``norm``, whose new running statistics, its last two results, are hidden from autograd as the operator's are."""
    *results, mean, variance = norm(*args, **kwargs)
    return (*results, mean.detach(), variance.detach())


def _copied(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """``src`` in the sizes, the dtype and the strides of ``self``, by operators that have derivatives."""
    copy = partial(Tensor.to, device=self.device, dtype=self.dtype, copy=True, memory_format=torch.contiguous_format)
    copied = in_order(order_in_memory(self), copy, src.expand(self.shape))
    return copied if is_non_overlapping_and_dense_or_false(self) else _as_in_memory(copied, self)


def _as_in_memory(tensor: Tensor, other: Tensor) -> Tensor:
    """``tensor`` at the offset and the strides of ``other``: AOT Autograd takes a view of a result to be a view of the
    input that was written to, at the offset and the strides that it has of the result."""
    offset, strides = other.storage_offset(), other.stride()
    reach = [(size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True)]
    memory = tensor.new_zeros([offset + 1 + sum(reach)])
    return torch.as_strided_scatter(memory, tensor, tensor.shape, strides, offset).as_strided(
        tensor.shape, strides, offset
    )


def order_in_memory(tensor: Tensor) -> list[int]:
    """The dimensions of ``tensor``, the one with the largest stride first."""
    order, _ = compute_elementwise_output_logical_to_physical_perm(tensor)
    return order


def in_order(order: list[int], make: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """What ``make`` makes of ``tensor`` with its dimensions in ``order``; the result has them in their own order."""
    if order == sorted(order):
        return make(tensor)
    return make(tensor.permute(order)).permute([order.index(dim) for dim in range(tensor.dim())])


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
