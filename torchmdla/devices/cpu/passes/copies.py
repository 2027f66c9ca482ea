"""Chains of copies (of a transposed, mirrored or packed weight) are merged into one copy."""

from __future__ import annotations

from dataclasses import replace

from torchmdla.compiler.sizes import is_positive
from torchmdla.devices.cpu.accesses import AffineExpr
from torchmdla.devices.cpu.expressions import load
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, is_copy, is_found_by_index
from torchmdla.devices.cpu.passes.rematerialise import through


def merge_copies(steps: LoopProgram) -> None:
    """Replace copies of copies by copies of the first source, in place."""
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
    """Return the readers of the destination of a copy, or nothing.

    The list is empty if some reader is not a copy, or if the source may be overwritten before a reader runs.
    """
    if not is_copy(maker) or not is_found_by_index(maker, maker.outputs[0]):
        return []
    position = steps.steps.index(maker)
    copied, source = maker.outputs[0].buffer, maker.inputs[0].buffer
    if copied.kind != "temporary" or copied.fixed or source is copied:
        return []
    users = [step for step in steps.users(copied) if step is not maker]
    readers = [step for step in users if isinstance(step, LoopNest) and is_copy(step) and copied not in step.writes]
    if not readers or len(readers) != len(users):
        return []
    until = steps.steps.index(readers[-1])
    # A reader that writes to the source itself would read elements that it has just overwritten.
    overwritten = any(source in step.writes for step in steps.steps[position : until + 1])
    return [] if overwritten or steps.steps.index(readers[0]) < position else readers


def _walk_upwards(step: LoopNest) -> None:
    """Reverse loops of a copy along which the source's stride is negative and smaller than the destination's.

    The code for copies reads along the source's memory.
    """
    loops = len(step.sizes)
    source, destination = step.inputs[0].flat(loops), step.outputs[0].flat(loops)
    pairs = enumerate(zip(source.factors, destination.factors, strict=True))
    falling = {d for d, (its, other) in pairs if is_positive(-its) and is_positive(its + other)}

    def turned(index: AffineExpr) -> AffineExpr:
        factors = tuple(-f if d in falling else f for d, f in enumerate(index.factors))
        return AffineExpr(factors, index.constant + sum(index.factors[d] * (step.sizes[d] - 1) for d in falling))

    step.map_accesses(lambda access: replace(access, indices=tuple(map(turned, access.indices))))
