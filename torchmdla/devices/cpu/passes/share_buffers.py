"""Reuse of an input's buffer for a step's output, so that fewer bytes stay in the caches."""

from __future__ import annotations

from dataclasses import replace

from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.loop_program import (
    LoopNest,
    LoopProgram,
    RepeatLoop,
    TileLoop,
    covers,
    first_and_last_uses,
)


def share_buffers(steps: LoopProgram) -> None:
    """Let elementwise steps write over inputs that are not used afterwards, so that fewer bytes stay in the caches."""
    first, last = first_and_last_uses(steps.steps)
    merged: dict[Buffer, Buffer] = {}

    def resolved(buffer: Buffer) -> Buffer:
        while buffer in merged:
            buffer = merged[buffer]
        return buffer

    for position, step in enumerate(steps.steps):
        if isinstance(step, LoopNest | TileLoop):
            step.map_accesses(lambda access: replace(access, buffer=resolved(access.buffer)))
        if isinstance(step, RepeatLoop):
            step.rename(resolved)
        if isinstance(step, LoopNest):
            pair = _replaceable(step, position, first, last)
            if pair is not None:
                old, new = pair
                merged[new] = old
                last[old] = last[new]
                step.map_accesses(lambda access: replace(access, buffer=resolved(access.buffer)))


def _replaceable(
    step: LoopNest, position: int, first: dict[Buffer, int], last: dict[Buffer, int]
) -> tuple[Buffer, Buffer] | None:
    """Return an input whose lifetime ends with a step and an output whose lifetime begins with it, or None.

    Both are accessed at the same indices.
    """
    if any(step.reduction) or len(step.outputs) != 1:
        return None
    output = step.outputs[0]
    new = output.buffer
    if not _is_free(new) or first[new] != position or not covers(step, output):
        return None
    for candidate in step.inputs:
        old = candidate.buffer
        same = candidate.indices == output.indices and (old.sizes, old.element) == (new.sizes, new.element)
        alone = sum(old is a.buffer for a in step.inputs) == 1 and all(old is not t.buffer for t in step.tables)
        if same and alone and _is_free(old) and last[old] == position:
            return old, new
    return None


def _is_free(buffer: Buffer) -> bool:
    return buffer.kind == "temporary" and not buffer.fixed
