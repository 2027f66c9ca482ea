"""Padding in cases that upstream does not lower well.

Upstream lowers neither circular padding, nor reflections in space, nor negative sizes, which crop. It replicates
element by element, so its compile time grows with the width of the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def pad(value: Tensor, sizes: Sequence[int], mode: str = "constant", number: float | None = None) -> Tensor:
    """Compute ``aten::pad``. ``sizes`` are the amounts before and after, beginning with the last dimension's pair."""
    if mode != "circular":
        return torch.ops.aten.pad(value, sizes, mode, number)  # type: ignore[no-any-return]
    # Crop first: the cropped elements must not wrap around.
    return _pad_ends(crop(value, sizes), sizes, _wrap)


def reflection_pad(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute ``aten::reflection_pad1d`` and its variants of more dimensions, one dimension after the other."""
    return crop(_pad_ends(value, sizes, _reflect), sizes)


def replication_pad(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """Compute ``aten::replication_pad1d`` and its variants of more dimensions, one dimension after the other."""
    return crop(_pad_ends(value, sizes, _replicate), sizes)


def is_cropping(sizes: Sequence[int]) -> bool:
    """Return whether a padding by ``sizes`` removes elements."""
    return min(sizes, default=0) < 0


def _padded_dims(value: Tensor, sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the dimension, the size before, and the size after, for each padded dimension."""
    return [(value.dim() - 1 - k // 2, sizes[k], sizes[k + 1]) for k in range(0, len(sizes), 2)]


def crop(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return ``value`` without the elements that negative ``sizes`` remove."""
    for dim, before, after in _padded_dims(value, sizes):
        first, last = max(-before, 0), max(-after, 0)
        if first or last:
            value = value.narrow(dim, first, value.size(dim) - first - last)
    return value


def constant_pad_nd(value: Tensor, sizes: Sequence[int], *number: float) -> Tensor:
    """Compute ``aten::constant_pad_nd``, also with negative sizes. Padding is applied before cropping."""
    if not is_cropping(sizes):
        return torch.constant_pad_nd(value, sizes, *number)
    added = [max(size, 0) for size in sizes]
    return crop(torch.constant_pad_nd(value, added, *number) if max(added) else value, sizes)


# The tensors before and after a dimension. An empty one is ``None``.
Ends = tuple[Tensor | None, Tensor | None]


def _pad_ends(value: Tensor, sizes: Sequence[int], ends: Callable[[Tensor, int, int, int], Ends]) -> Tensor:
    """Concatenate ``value`` with ``ends(value, dim, before, after)``, one dimension after the other."""
    for dim, before, after in _padded_dims(value, sizes):
        first, last = ends(value, dim, max(before, 0), max(after, 0))
        pieces = [piece for piece in (first, value, last) if piece is not None]
        value = torch.cat(pieces, dim) if len(pieces) > 1 else value
    return value


def _narrow(value: Tensor, dim: int, start: int, count: int) -> Tensor | None:
    return value.narrow(dim, start, count) if count else None


def _reflect(value: Tensor, dim: int, before: int, after: int) -> Ends:
    first, last = _narrow(value, dim, 1, before), _narrow(value, dim, value.size(dim) - 1 - after, after)
    return first if first is None else first.flip(dim), last if last is None else last.flip(dim)


def _replicate(value: Tensor, dim: int, before: int, after: int) -> Ends:
    def copies(place: int, count: int) -> Tensor | None:
        sizes = [count if k == dim else -1 for k in range(value.dim())]
        return value.narrow(dim, place, 1).expand(sizes) if count else None

    return copies(0, before), copies(value.size(dim) - 1, after)


def _wrap(value: Tensor, dim: int, before: int, after: int) -> Ends:
    return _narrow(value, dim, value.size(dim) - before, before), _narrow(value, dim, 0, after)
