"""Layout of a function's temporaries in its workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.code.sizes import SizeCode
from torchmdla.devices.cpu.loop_program import Step, first_and_last_uses
from torchmdla.devices.cpu.schedule import Symbols
from torchmdla.devices.cpu.workspace import Lifetime, plan


@dataclass(frozen=True)
class Place:
    """Byte of the workspace: ``offset`` bytes after its start, or after the value ``base`` if that is not empty."""

    base: str
    offset: int


@dataclass(frozen=True)
class Layout:
    """Places of temporaries, and the end of the last one."""

    places: dict[Buffer, Place]
    end: Place


def lay_out(steps: Sequence[Step], symbols: Symbols, sizes: SizeCode) -> Layout:
    """Return the places of the steps' temporaries.

    They are planned at compile time. In a program with ``symbols``, the function of ``sizes`` computes them.
    """
    if symbols.is_used:
        values, last = sizes.laid_out(lifetimes(steps), symbols.typical)
        return Layout({buffer: Place(value, 0) for buffer, value in values.items()}, Place(last, 0))
    offsets, size = plan_workspace(steps)
    return Layout({buffer: Place("", offset) for buffer, offset in offsets.items()}, Place("", size))


def plan_workspace(steps: Sequence[Step]) -> tuple[dict[Buffer, int], int]:
    """Return the byte offsets of the steps' temporaries in one workspace, and the size of the workspace."""
    used = lifetimes(steps)
    offsets, size = plan(list(used.values()))
    return dict(zip(used, offsets, strict=True)), size


def lifetimes(steps: Sequence[Step]) -> dict[Buffer, Lifetime]:
    """Return the lifetimes of the steps' temporaries."""
    first, last = first_and_last_uses(steps)
    return {b: Lifetime(b.bytes, first[b], last[b]) for b in first if b.kind == "temporary"}
