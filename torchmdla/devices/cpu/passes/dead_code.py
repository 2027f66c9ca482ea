"""Steps whose results nobody reads."""

from __future__ import annotations

from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram


def remove_unread(steps: LoopProgram) -> None:
    """Drops steps that only write temporaries that nobody reads, until there are none."""
    kept = steps.steps
    while True:
        needed = {b for s in kept for b in s.reads}
        steps.steps = [s for s in kept if not isinstance(s, LoopNest) or _is_needed(s, needed)]
        if len(steps.steps) == len(kept):
            return
        kept = steps.steps


def _is_needed(step: LoopNest, needed: set[Buffer]) -> bool:
    return bool(step.tables or step.checks) or any(b.kind != "temporary" or b in needed for b in step.writes)
