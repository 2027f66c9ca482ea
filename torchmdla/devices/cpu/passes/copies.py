"""Fewer copies of elements.

Chains of copies (of a transposed, mirrored or packed weight) are merged into one copy. The first of them may round or
widen the elements, as autocast does to weights. Temporaries computed from
expanded tensors store equal elements once::

    nest d0:32 d1:256 { temporary0[d0, d1] = extf parameter1[d1] }     →     nest d0:1 d1:256 { temporary0[0, d1] = … }
    nest d0:32 d1:8 d2:256+ { … temporary0[d0, d2] … }                       nest d0:32 … { … temporary0[0, d2] … }
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import is_positive
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import map_loads
from torchmdla.devices.cpu.ir.loop_program import (
    LoopNest,
    LoopProgram,
    Step,
    Users,
    is_copy,
    is_elementwise,
    is_permutation,
)
from torchmdla.devices.cpu.passes.rematerialise import operand_access

# Chains of copies.


_CONVERSIONS = frozenset({"load", "arith.extf", "arith.truncf"})


def merge_copies(steps: LoopProgram) -> None:
    """Replace copies of copies and of converted elements by copies of the first source, in place."""
    for producer in steps.nests():
        readers = _copying_readers(steps, producer)
        for reader in readers:
            along = partial(operand_access, producer=producer, read=reader.inputs[0])
            reader.values = map_loads(producer.values, along)
            reader.nodes |= producer.nodes
        if readers:
            steps.steps.remove(producer)
    for step in steps.nests():
        if _is_conversion(step):
            _reverse_falling_loops(step)


def _is_conversion(step: LoopNest) -> bool:
    """Return whether a step copies elements to one place each, maybe rounded or widened."""
    if not is_elementwise(step) or len(step.values) != 1 or len(step.inputs) != 1:
        return False
    return all(expression.op in _CONVERSIONS for expression in step.body.expressions)


def _copying_readers(steps: LoopProgram, producer: LoopNest) -> list[LoopNest]:
    """Return the readers of the destination of a copy, or nothing.

    The list is empty if some reader is not a copy, or if the source may be overwritten before a reader runs. A reader
    of conversions writes rows: elements far apart are stored one by one, which takes longer if they are converted.
    """
    if not _is_conversion(producer) or not is_permutation(producer, producer.outputs[0]):
        return []
    position = steps.steps.index(producer)
    copied, source = producer.outputs[0].buffer, producer.inputs[0].buffer
    if not copied.is_free or source is copied:
        return []
    users = [step for step in steps.users(copied) if step is not producer]
    readers = [step for step in users if isinstance(step, LoopNest) and is_copy(step) and copied not in step.writes]
    if not readers or len(readers) != len(users):
        return []
    if not is_copy(producer) and not all(map(_writes_rows, readers)):
        return []
    until = steps.steps.index(readers[-1])
    # A reader that writes to the source itself would read elements that it has just overwritten.
    overwritten = any(source in step.writes for step in steps.steps[position : until + 1])
    return [] if overwritten or steps.steps.index(readers[0]) < position else readers


def _writes_rows(step: LoopNest) -> bool:
    """Return whether a step with one output walks it element by element along some loop."""
    factors = step.outputs[0].linearise(len(step.sizes)).factors
    return any(factor == 1 and size != 1 for factor, size in zip(factors, step.sizes, strict=True))


def _reverse_falling_loops(step: LoopNest) -> None:
    """Reverse loops of a copy along which the source's stride is negative and smaller than the destination's.

    The code for copies reads along the source's memory.
    """
    loops = len(step.sizes)
    source, destination = step.inputs[0].linearise(loops), step.outputs[0].linearise(loops)
    pairs = enumerate(zip(source.factors, destination.factors, strict=True))
    falling = {d for d, (its, other) in pairs if is_positive(-its) and is_positive(its + other)}

    def reverse(index: AffineExpr) -> AffineExpr:
        factors = tuple(-f if d in falling else f for d, f in enumerate(index.factors))
        return AffineExpr(factors, index.constant + sum(index.factors[d] * (step.sizes[d] - 1) for d in falling))

    step.map_accesses(lambda access: replace(access, indices=tuple(map(reverse, access.indices))))


# Temporaries computed from expanded tensors.


def shrink_broadcasts(steps: LoopProgram) -> None:
    """Shrink temporaries to size 1 along each dimension with equal elements, in place."""
    users = Users(steps.steps)
    for producer in steps.nests():
        if not is_elementwise(producer) or len(producer.outputs) != 1:
            continue
        (access,) = producer.outputs
        repeated = _broadcast_dimensions(producer, access)
        if (
            repeated
            and is_permutation(producer, access)
            and _is_only_read(users.of(access.buffer), producer, access.buffer)
        ):
            _shrink(users.of(access.buffer), producer, access, repeated)


def _broadcast_dimensions(producer: LoopNest, access: Access) -> list[int]:
    """Return the dimensions along which all elements that a step stores are equal."""
    read = {loop for operand in producer.inputs for loop in operand.loops}
    return [d for d, index in enumerate(access.indices) if index.loops and read.isdisjoint(index.loops)]


def _is_only_read(users: Sequence[Step], producer: LoopNest, buffer: Buffer) -> bool:
    """Return whether all other users of the buffer are nests that only read it."""
    if not buffer.is_free or buffer in producer.reads:
        return False
    return all(
        isinstance(step, LoopNest) and buffer not in [*step.writes, *(table.buffer for table in step.tables)]
        for step in users
        if step is not producer
    )


def _shrink(users: Sequence[Step], producer: LoopNest, access: Access, repeated: Collection[int]) -> None:
    loops = {loop for d in repeated for loop in access.indices[d].loops}
    producer.sizes = tuple(1 if loop in loops else size for loop, size in enumerate(producer.sizes))
    old = access.buffer
    new = replace(old, sizes=tuple(1 if d in repeated else size for d, size in enumerate(old.sizes)))

    def shrink_access(access: Access) -> Access:
        if access.buffer is not old:
            return access
        indices = (AffineExpr((0,) * len(i.factors)) if d in repeated else i for d, i in enumerate(access.indices))
        return replace(access, buffer=new, indices=tuple(indices))

    for step in users:
        if isinstance(step, LoopNest):
            step.map_accesses(shrink_access)
