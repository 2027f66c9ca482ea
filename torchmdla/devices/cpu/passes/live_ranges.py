"""One buffer for each value: bufferisation computes many values in one temporary, and passes want them apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.loop_program import (
    LoopNest,
    LoopProgram,
    RepeatLoop,
    Step,
    TileLoop,
    covers,
    first_and_last_uses,
    is_copy,
)


def split_live_ranges(steps: LoopProgram) -> None:
    """Gives each value that a temporary or a result holds all of, one after the other, a buffer of its own. The last
    value of a result stays where it is."""
    steps.steps = [s for s in steps.steps if not (is_copy(s) and _copies_to_itself(s))]
    left = Counter(b for s in steps.nests() for b in _fresh(s))
    current = {b: _another(b) for b in left if b.kind == "result"}

    def renamed(access: Access) -> Access:
        return replace(access, buffer=current.get(access.buffer, access.buffer))

    for step in steps.nests():
        fresh, outputs = _fresh(step), step.outputs
        step.map_accesses(renamed)
        for buffer in fresh:
            left[buffer] -= 1
            last = buffer.kind == "result" and not left[buffer]
            current[buffer] = buffer if last else _another(buffer)
        step.outputs = tuple(map(renamed, outputs))


def _another(buffer: Buffer) -> Buffer:
    """A temporary for another value of the same type."""
    return Buffer("temporary", buffer.element, buffer.sizes, varies=buffer.varies)


def _copies_to_itself(step: Step) -> bool:
    return isinstance(step, LoopNest) and step.inputs == step.outputs


def _fresh(step: LoopNest) -> list[Buffer]:
    """The buffers that start a new value with a step."""
    return [a.buffer for a in step.outputs if _starts_value(step, a)]


def _starts_value(step: LoopNest, output: Access) -> bool:
    """Whether a step overwrites the buffer of one of its outputs without carrying on what it holds."""
    buffer = output.buffer
    if buffer.kind not in ("temporary", "result") or buffer.fixed or step.epilogue or any(step.reduction):
        return False
    alone = sum(a.buffer is buffer for a in step.outputs) == 1 and all(t.buffer is not buffer for t in step.tables)
    return alone and covers(step, output)


def share_buffers(steps: LoopProgram) -> None:
    """Lets an elementwise step write over an input that nobody needs afterwards: fewer bytes stay in the caches."""
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
    """An input that ends with a step and an output that starts with it, accessed alike."""
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
