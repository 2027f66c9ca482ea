"""Where buffers lie in the workspace: those that are never needed at one time share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import AnySize, static

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """``size`` bytes that are needed from step ``first`` to step ``last``, both included."""

    size: AnySize
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both are needed at some step."""
        return self.first <= other.last and other.first <= self.last


def plan(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets of the buffers in one workspace, and its bytes: largest first, each at the lowest free offset.

    Buffers whose lifetimes meet never overlap; every offset is a multiple of 64 bytes.
    """
    offsets, sizes = [0] * len(lifetimes), [static(lifetime.size) for lifetime in lifetimes]
    placed: list[int] = []
    for k in sorted(range(len(lifetimes)), key=lambda k: -sizes[k]):
        own = lifetimes[k]
        busy = sorted((offsets[j], offsets[j] + sizes[j]) for j in placed if own.meets(lifetimes[j]))
        for start, end in busy:
            if start - offsets[k] >= sizes[k]:
                break
            offsets[k] = max(offsets[k], _aligned(end))
        placed.append(k)
    return offsets, _aligned(max((offsets[k] + sizes[k] for k in placed), default=0))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
