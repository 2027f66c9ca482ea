"""Copies that bufferisation makes before an op changes a value that nobody needs any more: one buffer does for both.

Large programs are bufferised without upstream's analysis of what may be changed in place (``buffers.py``), whose time
grows faster than the program. It is made up for here, where a copy's source ends with the copy.
"""

from __future__ import annotations

from dataclasses import replace

from torchmdla.devices.cpu.steps import Access, Buffer, NestStep, Step, Steps, covers, first_and_last_uses, is_copy


def remove_copies(steps: Steps) -> None:
    """Lets buffers that are copied whole when they are used for the last time be what they are copied to, in place.
    Copies of what nobody has written yet disappear."""
    first, last = first_and_last_uses(steps.steps)
    becomes: dict[Buffer, Buffer] = {}
    kept: list[Step] = []
    written: set[Buffer] = set()
    for position, step in enumerate(steps.steps):
        if _copies_nothing(step, written):
            continue
        written.update(step.writes)
        pair = _copied(step)
        if pair is not None and last[pair[0]] == position == first[pair[1]]:
            becomes[pair[0]] = pair[1]
        else:
            kept.append(step)
    # The last buffer of a row of copies is what all before it become.
    for source in reversed(becomes):
        becomes[source] = becomes.get(becomes[source], becomes[source])
    steps.steps = kept
    for step in steps.nests():
        step.map_accesses(lambda access: _moved(access, becomes))


def _copies_nothing(step: Step, written: set[Buffer]) -> bool:
    """Whether a step copies from a buffer that holds no value, which is what bufferisation makes of empty tensors."""
    source = step.inputs[0].buffer if isinstance(step, NestStep) and is_copy(step) else None
    return source is not None and source.kind in ("temporary", "result") and source not in written


def _copied(step: Step) -> tuple[Buffer, Buffer] | None:
    """The buffers of a step that copies all of a temporary to the same places of a buffer."""
    if not isinstance(step, NestStep) or not is_copy(step):
        return None
    source, destination = step.inputs[0], step.outputs[0]
    old, new = source.buffer, destination.buffer
    alike = source.indices == destination.indices and (old.sizes, old.element) == (new.sizes, new.element)
    free = old.kind == "temporary" and new.kind in ("temporary", "result") and not old.fixed and not new.fixed
    return (old, new) if alike and free and covers(step, destination) else None


def _moved(access: Access, becomes: dict[Buffer, Buffer]) -> Access:
    return replace(access, buffer=becomes[access.buffer]) if access.buffer in becomes else access
