"""Removal of steps whose results are unused."""

from __future__ import annotations

from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram


def remove_unread(steps: LoopProgram) -> None:
    """Remove steps that only write unread temporaries, until no such step is left."""
    remaining = steps.steps
    while True:
        needed = {b for s in remaining for b in s.reads}
        steps.steps = [s for s in remaining if not isinstance(s, LoopNest) or _is_needed(s, needed)]
        if len(steps.steps) == len(remaining):
            return
        remaining = steps.steps


def _is_needed(step: LoopNest, needed: set[Buffer]) -> bool:
    return bool(step.tables or step.checks) or any(b.kind != "temporary" or b in needed for b in step.writes)
