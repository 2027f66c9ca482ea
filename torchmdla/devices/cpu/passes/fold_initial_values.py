"""Buffers that start from a constant: their fills move into the reductions that carry them on."""

from __future__ import annotations

from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, covers, filled_with, is_copy


def fold_initial_values(steps: LoopProgram) -> None:
    """Starts reductions from constants in registers, where their output has just been filled with one."""
    _fill_instead_of_copying(steps)
    remove_unread(steps)
    following = _next_users(steps)
    moved = set()
    for step in steps.nests():
        constant = filled_with(step)
        user = following.get(step)
        if constant is not None and isinstance(user, LoopNest) and _starts_over(user, step):
            user.initial = constant
            moved.add(step)
    steps.steps = [s for s in steps.steps if s not in moved]


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


def _fill_instead_of_copying(steps: LoopProgram) -> None:
    """A copy of a buffer that holds one constant throughout, whatever becomes of it later, is a fill."""
    writer: dict[object, Step] = {}
    for step in steps.steps:
        if isinstance(step, LoopNest) and is_copy(step) and step.inputs[0].buffer in writer:
            constant = filled_with(writer[step.inputs[0].buffer])
            if constant is not None:
                step.values = (constant,)
        writer.update(dict.fromkeys(step.writes, step))


def _next_users(steps: LoopProgram) -> dict[Step, Step]:
    """For each nest with one output the next step that uses that buffer."""
    following: dict[Step, Step] = {}
    latest: dict[Buffer, Step] = {}
    for step in reversed(steps.steps):
        if isinstance(step, LoopNest) and len(step.outputs) == 1 and step.outputs[0].buffer in latest:
            following[step] = latest[step.outputs[0].buffer]
        latest.update(dict.fromkeys([*step.reads, *step.writes], step))
    return following


def _starts_over(step: LoopNest, fill: LoopNest) -> bool:
    """Whether a nest reduces into all of the filled buffer, its only output, and uses it for nothing else."""
    buffer = fill.outputs[0].buffer
    others = [a.buffer for a in step.inputs] + [t.buffer for t in step.tables]
    alone = len(step.outputs) == 1 and step.outputs[0].buffer is buffer and buffer not in others
    return alone and step.initial is None and any(step.reduction) and covers(step, step.outputs[0])
