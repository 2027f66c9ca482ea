"""Temporaries computed from expanded tensors: equal elements are stored once.

::

    nest d0:32 d1:256 { temporary0[d0, d1] = extf parameter1[d1] }     →     nest d0:1 d1:256 { temporary0[0, d1] = … }
    nest d0:32 d1:8 d2:256+ { … temporary0[d0, d2] … }                       nest d0:32 … { … temporary0[0, d2] … }
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, Users, is_elementwise, is_found_by_index


def shrink_broadcasts(steps: LoopProgram) -> None:
    """Shrink temporaries to size 1 along each dimension with equal elements, in place."""
    users = Users(steps.steps)
    for maker in steps.nests():
        if not is_elementwise(maker) or len(maker.outputs) != 1 or not is_found_by_index(maker, maker.outputs[0]):
            continue
        (access,) = maker.outputs
        repeated = _repeated(maker, access)
        if repeated and _is_alone(users.of(access.buffer), maker, access.buffer):
            _shrink(users.of(access.buffer), maker, access, repeated)


def _repeated(maker: LoopNest, access: Access) -> list[int]:
    """Return the dimensions along which all elements that a step stores are equal."""
    read = {loop for operand in maker.inputs for loop in operand.loops}
    return [d for d, index in enumerate(access.indices) if index.loops and read.isdisjoint(index.loops)]


def _is_alone(users: Sequence[Step], maker: LoopNest, buffer: Buffer) -> bool:
    """Return whether all other users of the buffer are nests that only read it."""
    if buffer.kind != "temporary" or buffer.fixed or buffer in maker.reads:
        return False
    readers = [step for step in users if step is not maker]
    return all(isinstance(step, LoopNest) and _only_reads(step, buffer) for step in readers)


def _only_reads(step: LoopNest, buffer: Buffer) -> bool:
    return buffer not in step.writes and buffer not in [table.buffer for table in step.tables]


def _shrink(users: Sequence[Step], maker: LoopNest, access: Access, repeated: Collection[int]) -> None:
    loops = {loop for d in repeated for loop in access.indices[d].loops}
    maker.sizes = tuple(1 if loop in loops else size for loop, size in enumerate(maker.sizes))
    old = access.buffer
    new = replace(old, sizes=tuple(1 if d in repeated else size for d, size in enumerate(old.sizes)))
    for step in users:
        if isinstance(step, LoopNest):
            step.map_accesses(partial(_moved, old=old, new=new, repeated=repeated))


def _moved(access: Access, old: Buffer, new: Buffer, repeated: Collection[int]) -> Access:
    if access.buffer is not old:
        return access
    indices = (AffineExpr((0,) * len(i.factors)) if d in repeated else i for d, i in enumerate(access.indices))
    return replace(access, buffer=new, indices=tuple(indices))
