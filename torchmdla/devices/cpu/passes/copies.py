"""Copies that bufferisation makes before an op changes a value that nobody needs any more: one buffer does for both.

Large programs are bufferised without upstream's analysis of what may be changed in place (``buffers.py``), whose time
grows faster than the program. It is made up for here, where a copy's source ends with the copy.

Copies of copies (a weight that is transposed, mirrored, laid out for its kernel) become one.
"""

from __future__ import annotations

from dataclasses import replace

from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import load
from torchmdla.devices.cpu.loop_program import (
    LoopNest,
    LoopProgram,
    Step,
    covers,
    first_and_last_uses,
    is_copy,
    is_found_by_index,
)
from torchmdla.devices.cpu.passes.rematerialise import through


def remove_copies(steps: LoopProgram) -> None:
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


def merge_copies(steps: LoopProgram) -> None:
    """Lets copies of what is only copied copy its source, in place."""
    for maker in steps.nests():
        readers = _only_copies(steps, maker)
        for reader in readers:
            reader.values = (load(through(maker.inputs[0], maker, reader.inputs[0])),)
        if readers:
            steps.steps.remove(maker)
    for step in steps.nests():
        if is_copy(step):
            _walk_upwards(step)


def _only_copies(steps: LoopProgram, maker: LoopNest) -> list[LoopNest]:
    """The readers of what a step copies, if these are copies alone that may read its source."""
    if not is_copy(maker) or not is_found_by_index(maker, maker.outputs[0]):
        return []
    position = steps.steps.index(maker)
    made, source = maker.outputs[0].buffer, maker.inputs[0].buffer
    if made.kind != "temporary" or made.fixed or source is made:
        return []
    users = [step for step in steps.users(made) if step is not maker]
    readers = [step for step in users if isinstance(step, LoopNest) and is_copy(step) and made not in step.writes]
    if not readers or len(readers) != len(users):
        return []
    until = steps.steps.index(readers[-1])
    # A reader that writes to the source itself would meet what it has just written.
    overwritten = any(source in step.writes for step in steps.steps[position : until + 1])
    return [] if overwritten or steps.steps.index(readers[0]) < position else readers


def _walk_upwards(step: LoopNest) -> None:
    """Turns loops of a copy round along which the source falls in smaller steps than the destination rises: the code
    for copies reads along the source's memory."""
    loops = len(step.sizes)
    source, destination = step.inputs[0].flat(loops), step.outputs[0].flat(loops)
    falling = {d for d in range(loops) if 0 < -source.factors[d] < destination.factors[d]}

    def turned(index: AffineExpr) -> AffineExpr:
        factors = tuple(-f if d in falling else f for d, f in enumerate(index.factors))
        return AffineExpr(factors, index.constant + sum(index.factors[d] * (step.sizes[d] - 1) for d in falling))

    step.map_accesses(lambda access: replace(access, indices=tuple(map(turned, access.indices))))


def _copies_nothing(step: Step, written: set[Buffer]) -> bool:
    """Whether a step copies from a buffer that holds no value, which is what bufferisation makes of empty tensors."""
    source = step.inputs[0].buffer if isinstance(step, LoopNest) and is_copy(step) else None
    return source is not None and source.kind in ("temporary", "result") and source not in written


def _copied(step: Step) -> tuple[Buffer, Buffer] | None:
    """The buffers of a step that copies all of a temporary to the same places of a buffer."""
    if not isinstance(step, LoopNest) or not is_copy(step):
        return None
    source, destination = step.inputs[0], step.outputs[0]
    old, new = source.buffer, destination.buffer
    alike = source.indices == destination.indices and (old.sizes, old.element) == (new.sizes, new.element)
    free = old.kind == "temporary" and new.kind in ("temporary", "result") and not old.fixed and not new.fixed
    return (old, new) if alike and free and covers(step, destination) else None


def _moved(access: Access, becomes: dict[Buffer, Buffer]) -> Access:
    return replace(access, buffer=becomes[access.buffer]) if access.buffer in becomes else access
