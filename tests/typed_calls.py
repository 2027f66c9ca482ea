"""Calls whose CPU results have other dtypes or sizes than PyTorch's meta kernels or lazy backend report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_OPS = torch.ops.aten

FLOATS = torch.linspace(-2, 2, 6).view(2, 3)
HALVES, DOUBLES, INTEGERS = FLOATS.half(), FLOATS.double(), torch.arange(6).view(2, 3)
MANY, SMALL = INTEGERS > 2, INTEGERS.int()
TABLE, PICKED, STARTS = torch.linspace(0, 1, 8).view(4, 2), torch.tensor([0, 2, 3]), torch.tensor([0, 1])


def _bags(op: Callable[..., Any], mode: int, *more: Any) -> tuple[Callable[..., Any], Tensor, Tensor, Tensor]:
    return (lambda table, picked, starts: op(table, picked, starts, False, mode, *more), TABLE, PICKED, STARTS)


CALLS: dict[str, Sequence[Any]] = {
    "threshold_backward": (lambda g, x: _OPS.threshold_backward(g, x, 0.5), INTEGERS, FLOATS),
    "threshold_backward_of_booleans": (lambda g, x: _OPS.threshold_backward(g, x, 0.5), MANY, SMALL),
    "mse_loss_backward": (lambda g, x, y: _OPS.mse_loss_backward(g, x, y, 0), FLOATS, DOUBLES, FLOATS),
    "smooth_l1_loss_backward": (lambda g, x, y: _OPS.smooth_l1_loss_backward(g, x, y, 0, 1.0), DOUBLES, FLOATS, FLOATS),
    "smooth_l1_loss_backward_of_a_number": (
        lambda g, x, y: _OPS.smooth_l1_loss_backward(g, x, y, 0, 1.0),
        FLOATS,
        FLOATS[0, 0],
        FLOATS,
    ),
    "soft_margin_loss": (lambda x, y: _OPS.soft_margin_loss(x, y), HALVES, FLOATS),
    "huber_loss": (lambda x, y: _OPS.huber_loss(x, y), FLOATS, DOUBLES),
    "native_dropout_backward": (lambda g, mask: _OPS.native_dropout_backward(g, mask, 2.0), FLOATS, DOUBLES),
    "silu_backward": (lambda g, x: _OPS.silu_backward(g, x), HALVES, INTEGERS),
    "stack": (lambda *parts: torch.stack(parts, -2), MANY, SMALL, INTEGERS),
    "stack_of_floats": (lambda *parts: torch.stack(parts), FLOATS, DOUBLES),
    "native_layer_norm": (lambda x, w: _OPS.native_layer_norm(x, [3], w, None, 1e-5), HALVES, HALVES[0]),
    "bags_summed": _bags(_OPS._embedding_bag, 0),
    "bags_averaged": _bags(_OPS._embedding_bag, 1),
    "bags_largest": _bags(_OPS._embedding_bag, 2),
    "bags_without_gradients": _bags(_OPS._embedding_bag_forward_only, 0),
    "bags_with_padding": _bags(_OPS._embedding_bag_forward_only, 0, False, None, False, 2),
    "embedding_bag": _bags(_OPS.embedding_bag, 0, False, None, False),
}


def types_of(results: Any) -> list[tuple[torch.dtype, torch.Size]]:
    """Return dtypes and sizes of all tensors, without computing their values."""
    return [(leaf.dtype, leaf.shape) for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
