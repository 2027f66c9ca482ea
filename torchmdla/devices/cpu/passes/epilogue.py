"""Elementwise steps that are fused into the contraction whose result they read, while it is in registers.

A reduction's elementwise reader (bias, batch norm, residual, activation, change of type or of layout) becomes its
:class:`~torchmdla.devices.cpu.ir.loop_program.Epilogue`. The reduction's own result is then never stored. A start value
that is not a constant becomes an epilogue, too. An example is a bias that is written to the output before a convolution
adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from torchmdla.compiler.sizes import AnySize, estimate, quotient
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import constant, contents, load, operation, reduced, substitute
from torchmdla.devices.cpu.ir.loop_program import (
    Epilogue,
    LoopNest,
    LoopProgram,
    Users,
    is_bijective,
    is_elementwise,
    may_move,
    split_loop,
)
from torchmdla.devices.cpu.target.machine import Machine

# The start of a sum whose original start value is added at the end: adding to -0.0 changes no value.
_ZERO = {kind: constant(-0.0, kind) for kind in ("f32", "f64")}


# The most operands as large as the result that an epilogue reads, if the result exceeds the second-level cache. A
# register tile reads a piece of a few rows of each. More such streams come faster by whole rows.
_MOST_STREAMS = 1


def merge_epilogues(steps: LoopProgram, machine: Machine) -> None:
    """Merge every elementwise step that can be fused into the reduction before it, in place."""
    users = Users(steps.steps)
    for step in list(steps.steps):
        if isinstance(step, LoopNest) and _is_reduction(step):
            _merge_start(steps, users, step)
    for step in list(steps.steps):
        if isinstance(step, LoopNest) and _is_reduction(step) and step.initial is not None:
            while _merge_reader(steps, users, step, machine):
                pass


def _is_reduction(step: LoopNest) -> bool:
    """Return whether a step reduces into one buffer and writes each of its elements once."""
    return any(step.reduction) and len(step.outputs) == 1 and is_bijective(step, _result_access(step))


def _result_access(step: LoopNest) -> Access:
    return step.written_accesses[0]


# Readers of a reduction.


def _merge_reader(steps: LoopProgram, index: Users, step: LoopNest, machine: Machine) -> bool:
    """Merge the only reader of the step's result into the step, and move the step to the reader's place."""
    if len(step.written_accesses) != 1:
        return False
    buffer = _result_access(step).buffer
    users = index.of(buffer)
    if not buffer.is_free or len(users) != 2 or users[0] is not step:
        return False
    reader = users[1]
    if not isinstance(reader, LoopNest) or not is_elementwise(reader) or buffer in reader.writes:
        return False
    if sum(access.buffer is buffer for access in reader.inputs) != 1:
        return False
    if not may_move(steps, step, reader) or not _stays_in_place(step, reader):
        return False
    if estimate(buffer.bytes) > machine.second_level and _count_streams(step, reader) > _MOST_STREAMS:
        return False
    pairs = _align_loops(step, _result_access, reader, partial(_input_access, buffer))
    if pairs is None or not _covers_loops(reader, [loop for _, loop in pairs]):
        return False
    moved = _map_to_loops(step, reader, pairs)
    index.replace_step(reader, step)
    result = load(_input_access(buffer, moved))
    value = step.epilogue.values[0] if step.epilogue else reduced(0, result.type)
    step.epilogue = Epilogue(moved.outputs, substitute(moved.values, {result: value}))
    step.nodes |= reader.nodes
    index.set(buffer, [])
    steps.steps.remove(step)
    steps.steps[steps.steps.index(reader)] = step
    return True


def _count_streams(step: LoopNest, reader: LoopNest) -> int:
    """Return the operands as large as the result that the step would read with the reader's, apart from the result."""
    count = estimate(_result_access(step).buffer.count)
    loads = (*reader.inputs, *(step.epilogue.body.loads if step.epilogue else ()))
    return sum(estimate(access.buffer.count) >= count for access in loads) - 1


def _input_access(buffer: Buffer, step: LoopNest) -> Access:
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


def _map_to_loops(step: LoopNest, other: LoopNest, pairs: Sequence[tuple[int, int]]) -> LoopNest:
    """Return a copy of ``other`` with its accesses over the loops of ``step``.

    Loops that are in no pair have one iteration. The copy's sizes are meaningless.
    """
    loops = len(step.sizes)
    indices = {other_loop: AffineExpr.of_loop(loop, loops) for loop, other_loop in pairs}
    result = replace(other)
    result.map_accesses(lambda access: access.substitute(indices, loops))
    return result


# Start values of sums.


def _merge_start(steps: LoopProgram, index: Users, step: LoopNest) -> None:
    if step.initial is not None or step.epilogue is not None or not _is_sum(step) or step.values[0].type not in _ZERO:
        return
    buffer = step.outputs[0].buffer
    users = index.of(buffer)
    position = users.index(step)
    if position != 1 or buffer.fixed or buffer in [a.buffer for a in step.inputs]:
        return
    start = users[0]
    if not isinstance(start, LoopNest) or not is_elementwise(start):
        return
    if len(start.outputs) != 1 or not is_bijective(start, start.outputs[0]):
        return
    if buffer in start.reads or not may_move(steps, start, step):
        return
    pairs = _align_loops(step, _result_access, start, _result_access)
    if pairs is None or not _covers_loops(start, [loop for _, loop in pairs]):
        return
    (added,), kind = _map_to_loops(step, start, pairs).values, step.values[0].type
    step.epilogue = Epilogue(step.outputs, (operation("arith.addf", [reduced(0, kind), added], kind),))
    step.initial = _ZERO[kind]
    step.nodes |= start.nodes
    index.replace_step(start, step)
    steps.steps.remove(start)


def _is_sum(step: LoopNest) -> bool:
    """Return whether a step of one output adds a value to it that does not depend on the accumulator."""
    value = step.values[0]
    added = [operand for operand in value.operands if operand.op != "accumulator"]
    depends = any(e.op == "accumulator" for e in contents(tuple(added)).expressions)
    return value.op == "arith.addf" and len(added) == 1 and not depends


# Alignment of the loops of two steps that walk the same buffer.

# A function that returns the same access again after a step's loops were split.
_Getter = Callable[[LoopNest], Access]


def _loops_by_place_value(step: LoopNest, access: Access) -> dict[AnySize, int] | None:
    """Return the loop of each place value of the access, where element numbers of the buffer are in mixed radix.

    Loops that the access does not vary with have no place value. Return None if some element is touched by no iteration
    of these loops, or by several.
    """
    flat = access.linearise(len(step.sizes))
    loops = [(factor, loop) for loop, factor in enumerate(flat.factors) if factor and step.sizes[loop] != 1]
    expected: AnySize = 1
    for factor, loop in sorted(loops, key=lambda pair: estimate(pair[0])):
        if factor != expected:
            return None
        expected *= step.sizes[loop]
    return dict(loops) if not flat.constant and expected == access.buffer.count else None


def _align_loops(
    first: LoopNest, of_first: _Getter, second: LoopNest, of_second: _Getter
) -> list[tuple[int, int]] | None:
    """Return pairs of loops, outermost first, that walk the accessed buffer alike.

    Loops are split where necessary.

    Returns:
        None if the accesses do not each touch the whole buffer once (over the loops that they vary with). None also if
            their loops cannot be split to agree, or if a body uses the index of a loop that needs a split.
    """
    sides = [(first, of_first), (second, of_second)]
    loops_by_value = [_loops_by_place_value(step, get(step)) for step, get in sides]
    if loops_by_value[0] is None or loops_by_value[1] is None:
        return None
    values = sorted(loops_by_value[0].keys() | loops_by_value[1].keys(), key=estimate)
    if any(quotient(outer, inner) is None for inner, outer in pairwise(values)):
        return None
    splits = [
        _find_splits(step, known, values)
        for (step, _), known in zip(sides, loops_by_value, strict=True)
        if known is not None
    ]
    for (step, _), splits_of_step in zip(sides, splits, strict=True):
        if step.indexed_loops & splits_of_step.keys():
            return None
    for (step, _), splits_of_step in zip(sides, splits, strict=True):
        for loop in sorted(splits_of_step, reverse=True):
            split_loop(step, loop, splits_of_step[loop])
    aligned = [_loops_by_place_value(step, get(step)) for step, get in sides]
    assert aligned[0] is not None and aligned[1] is not None and aligned[0].keys() == aligned[1].keys()
    return [(aligned[0][value], aligned[1][value]) for value in reversed(values)]


def _find_splits(step: LoopNest, known: dict[AnySize, int], values: list[AnySize]) -> dict[int, list[AnySize]]:
    """Return the sizes that each loop has to be split into, outermost first."""
    splits_of_step = {}
    for start, loop in known.items():
        end = start * step.sizes[loop]
        cuts = [value for value in values if estimate(start) <= estimate(value) < estimate(end)] + [end]
        if len(cuts) > 2:
            splits_of_step[loop] = [outer // inner for inner, outer in reversed(list(pairwise(cuts)))]
    return splits_of_step
