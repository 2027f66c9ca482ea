"""Memory order: the permutation of a strided tensor's dimensions that makes it contiguous."""

from __future__ import annotations

from collections.abc import Sequence


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a new contiguous tensor of sizes ``shape``, as PyTorch computes them."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def invert(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of ``permutation``."""
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the dimensions from outermost to innermost in memory, or None if that permutation is not contiguous.

    Strides of dimensions of size 1 do not count, and the identity is preferred.
    """
    return _first_match(shape, strides, counts=lambda size: size != 1)


def exact_memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the memory order that also gives the strides of dimensions of size 1, where a permutation can.

    Otherwise the result is that of :func:`memory_order`. PyTorch chooses the memory format of later ops by those
    strides.
    """
    return _first_match(shape, strides, counts=lambda size: True) or memory_order(shape, strides)


def _first_match(shape: Sequence[int], strides: Sequence[int], counts) -> tuple[int, ...] | None:  # type: ignore[no-untyped-def]
    identity = tuple(range(len(shape)))
    if 0 in shape:
        return identity
    by_stride = tuple(sorted(identity, key=lambda dim: -strides[dim]))
    for order in (identity, by_stride):
        expected = contiguous_strides([shape[dim] for dim in order])
        if all(strides[dim] == step for dim, step in zip(order, expected, strict=True) if counts(shape[dim])):
            return order
    return None
