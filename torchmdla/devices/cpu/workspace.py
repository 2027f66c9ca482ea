"""Placement of buffers in the workspace. Buffers whose lifetimes do not overlap share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import AnySize, static

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """Lifetime of ``size`` bytes, from step ``first`` to step ``last``, both included."""

    size: AnySize
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether both are live at some step."""
        return self.first <= other.last and other.first <= self.last


def plan(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each buffer in one workspace, and the size of the workspace in bytes.

    The largest buffer is placed first, each at the lowest free offset. Buffers whose lifetimes overlap never share
    memory. Every offset is a multiple of 64 bytes.
    """
    offsets, sizes = [0] * len(lifetimes), [static(lifetime.size) for lifetime in lifetimes]
    placed: list[int] = []
    for k in sorted(range(len(lifetimes)), key=lambda k: -sizes[k]):
        current = lifetimes[k]
        busy = sorted((offsets[j], offsets[j] + sizes[j]) for j in placed if current.overlaps(lifetimes[j]))
        for start, end in busy:
            if start - offsets[k] >= sizes[k]:
                break
            offsets[k] = max(offsets[k], _align(end))
        placed.append(k)
    return offsets, _align(max((offsets[k] + sizes[k] for k in placed), default=0))


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
