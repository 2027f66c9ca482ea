"""Padding: upstream has no lowering of the circular kind, and none of negative sizes, which crop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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


def _cropping(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A padding op that takes negative sizes: what is added is taken from the whole of the value, as in eager."""

    def call(value: Tensor, sizes: Sequence[int], *number: float) -> Tensor:
        if min(sizes, default=0) >= 0:
            return op(value, sizes, *number)
        result = op(value, [max(size, 0) for size in sizes], *number) if max(sizes) > 0 else value
        for k in range(0, len(sizes), 2):
            before, after = (max(-size, 0) for size in sizes[k : k + 2])
            dim = value.dim() - 1 - k // 2
            result = result.narrow(dim, before, result.size(dim) - before - after)
        return result

    return call


CROPPING: Mapping[str, Callable[..., Tensor]] = {
    "aten::constant_pad_nd": _cropping(torch.ops.aten.constant_pad_nd.default),
    **{
        f"aten::{kind}_pad{rank}d": _cropping(getattr(torch.ops.aten, f"{kind}_pad{rank}d").default)
        for kind in ("reflection", "replication")
        for rank in (1, 2, 3)
    },
}


def _wrapped(value: Tensor, dim: int, before: int, after: int) -> Tensor:
    length = value.size(dim)
    ends = [(length - before, before), (0, length), (0, after)]
    pieces = [value.narrow(dim, start, count) for start, count in ends if count]
    return torch.cat(pieces, dim) if len(pieces) > 1 else value
