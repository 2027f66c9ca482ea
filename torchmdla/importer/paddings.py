"""Padding: upstream has no lowering of the circular kind."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchmdla.errors import CompileError


def pad(value: Tensor, sizes: Sequence[int], mode: str = "constant", number: float | None = None) -> Tensor:
    """``aten::pad``; ``sizes``: how much is added before and after, the last dimension's pair first.

    Raises:
        CompileError: a negative size of the circular kind.
    """
    if mode != "circular":
        return torch.ops.aten.pad(value, sizes, mode, number)  # type: ignore[no-any-return]
    if min(sizes) < 0:
        raise CompileError("circular padding by a negative size", op="aten::pad")
    for k in range(0, len(sizes), 2):
        value = _wrapped(value, value.dim() - 1 - k // 2, sizes[k], sizes[k + 1])
    return value


def _wrapped(value: Tensor, dim: int, before: int, after: int) -> Tensor:
    length = value.size(dim)
    ends = [(length - before, before), (0, length), (0, after)]
    pieces = [value.narrow(dim, start, count) for start, count in ends if count]
    return torch.cat(pieces, dim) if len(pieces) > 1 else value
