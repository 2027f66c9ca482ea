"""Where the temporaries of a function lie in its workspace."""

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
    """A byte of the workspace: ``offset`` bytes behind the value ``base``, if the function computes one."""

    base: str
    offset: int


@dataclass(frozen=True)
class Layout:
    """Places of temporaries, and where the last one ends."""

    places: dict[Buffer, Place]
    end: Place


def lay_out(steps: Sequence[Step], symbols: Symbols, sizes: SizeCode) -> Layout:
    """Places of the steps' temporaries: planned, or, with ``symbols``, computed by the function of ``sizes``."""
    if symbols.is_used:
        values, last = sizes.laid_out(lifetimes(steps), symbols.typical)
        return Layout({buffer: Place(value, 0) for buffer, value in values.items()}, Place(last, 0))
    offsets, size = plan_workspace(steps)
    return Layout({buffer: Place("", offset) for buffer, offset in offsets.items()}, Place("", size))


def plan_workspace(steps: Sequence[Step]) -> tuple[dict[Buffer, int], int]:
    """Byte offsets of the steps' temporaries in one workspace, and its size."""
    used = lifetimes(steps)
    offsets, size = plan(list(used.values()))
    return dict(zip(used, offsets, strict=True)), size


def lifetimes(steps: Sequence[Step]) -> dict[Buffer, Lifetime]:
    """Of the steps' temporaries."""
    first, last = first_and_last_uses(steps)
    return {b: Lifetime(b.bytes, first[b], last[b]) for b in first if b.kind == "temporary"}
