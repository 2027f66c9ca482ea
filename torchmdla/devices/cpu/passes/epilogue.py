"""Elementwise steps that are fused into the contraction whose result they read, while it is in registers.

A reduction's elementwise reader (bias, batch norm, residual, activation, change of type or of layout) becomes its
:class:`~torchmdla.devices.cpu.loop_program.Epilogue`. The reduction's own result is then never stored. A start value
that is not a constant becomes an epilogue, too. An example is a bias that is written to the output before a convolution
adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import AnySize
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import constant, contents, load, operation, reduced, substituted
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest, LoopProgram, Users, covers, is_elementwise, may_move
from torchmdla.devices.cpu.passes.alignment import align

# The start of a sum whose original start value is added at the end: adding to -0.0 changes no value.
_ZERO = {kind: constant(-0.0, kind) for kind in ("f32", "f64")}


def merge_epilogues(steps: LoopProgram) -> None:
    """Merge every elementwise step that can be fused into the reduction before it, in place."""
    users = Users(steps.steps)
    for step in list(steps.steps):
        if isinstance(step, LoopNest) and _reduces(step):
            _merge_start(steps, users, step)
    for step in list(steps.steps):
        if isinstance(step, LoopNest) and _reduces(step) and step.initial is not None:
            while _merge_reader(steps, users, step):
                pass


def _reduces(step: LoopNest) -> bool:
    """Return whether a step reduces into one buffer and writes each of its elements once."""
    return any(step.reduction) and len(step.outputs) == 1 and covers(step, _written(step))


def _written(step: LoopNest) -> Access:
    return step.written_accesses[0]


# Readers of a reduction.


def _merge_reader(steps: LoopProgram, index: Users, step: LoopNest) -> bool:
    """Merge the only reader of the step's result into the step, and move the step to the reader's place."""
    if len(step.written_accesses) != 1:
        return False
    buffer = _written(step).buffer
    users = index.of(buffer)
    if buffer.kind != "temporary" or buffer.fixed or len(users) != 2 or users[0] is not step:
        return False
    reader = users[1]
    if not isinstance(reader, LoopNest) or not is_elementwise(reader) or buffer in reader.writes:
        return False
    if sum(access.buffer is buffer for access in reader.inputs) != 1:
        return False
    if not may_move(steps, step, reader) or not _stays_in_place(step, reader):
        return False
    pairs = align(step, _written, reader, partial(_of_buffer, buffer))
    if pairs is None or not _covers_loops(reader, [loop for _, loop in pairs]):
        return False
    moved = _over_loops_of(step, reader, pairs)
    index.take_over(reader, step)
    result = load(_of_buffer(buffer, moved))
    value = step.epilogue.values[0] if step.epilogue else reduced(0, result.type)
    step.epilogue = Epilogue(moved.outputs, substituted(moved.values, {result: value}))
    step.nodes |= reader.nodes
    index.set(buffer, [])
    steps.steps.remove(step)
    steps.steps[steps.steps.index(reader)] = step
    return True


def _of_buffer(buffer: Buffer, step: LoopNest) -> Access:
    return next(access for access in step.inputs if access.buffer is buffer)


def _stays_in_place(step: LoopNest, reader: LoopNest) -> bool:
    """Return whether the reader's outputs are not operands of the reduction, and are read only at the same indices.

    Tiles of the merged step are stored before others are computed.
    """
    written = {access.buffer: access.indices for access in reader.outputs}
    if any(buffer in written for buffer in step.reads):
        return False
    return all(written.get(a.buffer, a.indices) == a.indices for a in reader.inputs)


def _covers_loops(step: LoopNest, loops: Sequence[int]) -> bool:
    return all(size == 1 or loop in loops for loop, size in enumerate(step.sizes))


def _over_loops_of(step: LoopNest, other: LoopNest, pairs: Sequence[tuple[int, int]]) -> LoopNest:
    """Return a copy of ``other`` with its accesses over the loops of ``step``.

    Loops that are in no pair have one iteration. The copy's sizes are meaningless.
    """

    def moved_index(index: AffineExpr) -> AffineExpr:
        factors: list[AnySize] = [0] * len(step.sizes)
        for loop, other_loop in pairs:
            factors[loop] = index.factors[other_loop]
        return replace(index, factors=tuple(factors))

    def moved(access: Access) -> Access:
        return replace(access, indices=tuple(map(moved_index, access.indices)))

    result = replace(other)
    result.map_accesses(moved)
    return result


# Start values of sums.


def _merge_start(steps: LoopProgram, index: Users, step: LoopNest) -> None:
    """Move the addition of a sum's start value to the end of the sum."""
    if step.initial is not None or step.epilogue is not None or not _sums(step) or step.values[0].type not in _ZERO:
        return
    buffer = step.outputs[0].buffer
    users = index.of(buffer)
    position = users.index(step)
    if position != 1 or buffer.fixed or buffer in [a.buffer for a in step.inputs]:
        return
    start = users[0]
    if not isinstance(start, LoopNest) or not is_elementwise(start):
        return
    if len(start.outputs) != 1 or not covers(start, start.outputs[0]):
        return
    between = steps.steps[steps.steps.index(start) + 1 : steps.steps.index(step)]
    written = {b for other in between for b in other.writes}
    if written & set(start.reads) or buffer in start.reads:
        return
    pairs = align(step, _written, start, _written)
    if pairs is None or not _covers_loops(start, [loop for _, loop in pairs]):
        return
    (added,), kind = _over_loops_of(step, start, pairs).values, step.values[0].type
    step.epilogue = Epilogue(step.outputs, (operation("arith.addf", [reduced(0, kind), added], kind),))
    step.initial = _ZERO[kind]
    step.nodes |= start.nodes
    index.take_over(start, step)
    steps.steps.remove(start)


def _sums(step: LoopNest) -> bool:
    """Return whether a step of one output adds a value to it that does not depend on the accumulator."""
    value = step.values[0]
    added = [operand for operand in value.operands if operand.op != "accumulator"]
    depends = any(e.op == "accumulator" for e in contents(tuple(added)).expressions)
    return value.op == "arith.addf" and len(added) == 1 and not depends
