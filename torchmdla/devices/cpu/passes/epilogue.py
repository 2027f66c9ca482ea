"""Elementwise steps that become part of the contraction whose result they read, while it is in registers.

What an elementwise step does to a reduction's result (bias, batch norm, residual, activation, change of type or of
layout) becomes the reduction's :class:`~torchmdla.devices.cpu.steps.Ending`, and its result is never stored. A start
value that is not a constant (a bias written to the output before a convolution adds to it) becomes an ending, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchmdla.devices.cpu.nests import Instruction, constant, renumbered
from torchmdla.devices.cpu.passes.alignment import Getter, align
from torchmdla.devices.cpu.steps import (
    Access,
    Ending,
    Linear,
    NestStep,
    Steps,
    Users,
    covers,
    is_elementwise,
)

# The start of a sum that gets what it started from at its end: adding to -0.0 changes no value.
_ZERO = {kind: constant("-0.0", kind) for kind in ("f32", "f64")}


def merge_epilogues(steps: Steps) -> None:
    """Merges every elementwise step that can be into the reduction before it, in place."""
    users = Users(steps.steps)
    for step in list(steps.steps):
        if isinstance(step, NestStep) and _reduces(step):
            _merge_start(steps, users, step)
    for step in list(steps.steps):
        if isinstance(step, NestStep) and _reduces(step) and step.initial is not None:
            while _merge_reader(steps, users, step):
                pass


def _reduces(step: NestStep) -> bool:
    """Whether a step reduces into one buffer, each element of which it writes once."""
    return any(step.reduction) and len(step.outputs) == 1 and covers(step, _written(step))


def _written(step: NestStep) -> Access:
    return step.written_accesses[0]


# What follows a reduction.


def _merge_reader(steps: Steps, index: Users, step: NestStep) -> bool:
    """Merges the only reader of the step's result into it, in the reader's place."""
    if len(step.written_accesses) != 1:
        return False
    buffer = _written(step).buffer
    users = index.of(buffer)
    if buffer.kind != "temporary" or buffer.fixed or len(users) != 2 or users[0] is not step:
        return False
    reader = users[1]
    if not isinstance(reader, NestStep) or not is_elementwise(reader) or buffer in reader.writes:
        return False
    own = [k for k, access in enumerate(reader.inputs) if access.buffer is buffer]
    if any(reader.inputs[k].indices != reader.inputs[own[0]].indices for k in own):
        return False
    if not _may_move(steps, step, reader) or not _stays_in_place(step, reader):
        return False
    pairs = align(step, _written, reader, _input(own[0]))
    if pairs is None or not _covers_loops(reader, [loop for _, loop in pairs]):
        return False
    moved = _over_loops_of(step, reader, pairs)
    index.take_over(reader, step)
    step.ending = _composed(step, moved, frozenset(own))
    index.set(buffer, [])
    steps.steps.remove(step)
    steps.steps[steps.steps.index(reader)] = step
    return True


def _input(position: int) -> Getter:
    return lambda step: step.inputs[position]


def _may_move(steps: Steps, step: NestStep, reader: NestStep) -> bool:
    """Whether nothing between the two writes what the first one reads."""
    between = steps.steps[steps.steps.index(step) + 1 : steps.steps.index(reader)]
    written = {buffer for other in between for buffer in other.writes}
    return not written & set(step.reads)


def _stays_in_place(step: NestStep, reader: NestStep) -> bool:
    """Whether what the reader writes is no operand of the reduction, and read by the reader only at the same place:
    tiles of the merged step are stored while others still have to be computed."""
    written = {access.buffer: access.indices for access in reader.outputs}
    if any(buffer in written for buffer in step.reads):
        return False
    return all(written.get(a.buffer, a.indices) == a.indices for a in reader.inputs)


def _covers_loops(step: NestStep, loops: Sequence[int]) -> bool:
    return all(size == 1 or loop in loops for loop, size in enumerate(step.sizes))


def _over_loops_of(step: NestStep, other: NestStep, pairs: Sequence[tuple[int, int]]) -> NestStep:
    """A copy of ``other`` with its accesses over the loops of ``step``; loops that are in no pair have one iteration.
    The copy's sizes mean nothing."""

    def moved_index(index: Linear) -> Linear:
        factors = [0] * len(step.sizes)
        for own, its in pairs:
            factors[own] = index.factors[its]
        return replace(index, factors=tuple(factors))

    def moved(access: Access) -> Access:
        return replace(access, indices=tuple(map(moved_index, access.indices)))

    result = replace(other)
    result.map_accesses(moved)
    return result


def _composed(step: NestStep, reader: NestStep, own: frozenset[int]) -> Ending:
    """The step's ending, followed by the reader's body; the reader's inputs ``own`` are the step's result."""
    before = step.ending or Ending((), step.outputs, (), (), (0,))
    old_outputs = _outputs_read(reader)
    inputs = [a for k, a in enumerate(reader.inputs) if k not in own] + [reader.outputs[k] for k in old_outputs]
    first_input = 1 + len(before.inputs)
    first_scalar = 1 + len(before.inputs) + len(inputs)
    first_body = first_scalar + len(before.scalars) + len(reader.scalars)

    def of_before(value: int) -> int:
        shifts = [(1 + len(before.inputs), 0), (1 + len(before.inputs) + len(before.scalars), len(inputs))]
        for end, shift in shifts:
            if value < end:
                return value + shift
        return value + len(inputs) + len(reader.scalars)

    numbers = {k: of_before(before.yields[0]) for k in own}
    others = [k for k in range(len(reader.inputs)) if k not in own] + [len(reader.inputs) + k for k in old_outputs]
    numbers.update({k: first_input + position for position, k in enumerate(others)})
    start = len(reader.inputs) + len(reader.outputs)
    numbers.update({start + k: first_scalar + len(before.scalars) + k for k in range(len(reader.scalars))})
    start += len(reader.scalars)
    numbers.update({start + k: first_body + len(before.body) + k for k in range(len(reader.body))})
    body = renumbered(before.body, of_before) + renumbered(reader.body, numbers.__getitem__)
    return Ending(
        inputs=before.inputs + tuple(inputs),
        outputs=reader.outputs,
        scalars=before.scalars + reader.scalars,
        body=body,
        yields=tuple(numbers[v] for v in reader.yields),
    )


def _outputs_read(step: NestStep) -> list[int]:
    """The outputs whose old values the body uses."""
    used = {v for i in step.body for v in i.operands} | set(step.yields)
    return [k for k in range(len(step.outputs)) if len(step.inputs) + k in used]


# What a sum starts from.


def _merge_start(steps: Steps, index: Users, step: NestStep) -> None:
    """Adds what the output was set to before a sum at the end of the sum instead."""
    if step.initial is not None or step.ending is not None or not _sums(step):
        return
    buffer = step.outputs[0].buffer
    users = index.of(buffer)
    position = users.index(step)
    if position != 1 or buffer.fixed or buffer in [a.buffer for a in step.inputs]:
        return
    start = users[0]
    if not isinstance(start, NestStep) or not is_elementwise(start) or _outputs_read(start):
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
    moved = _over_loops_of(step, start, pairs)
    step.ending = _adding(step, moved)
    step.initial = _ZERO[step.outputs[0].buffer.element]
    index.take_over(start, step)
    steps.steps.remove(start)


def _sums(step: NestStep) -> bool:
    """Whether the output is a sum in a type for which there is a zero, and its old value is used for nothing else."""
    output = len(step.inputs)
    users = [i for i in step.body if output in i.operands]
    first = output + len(step.outputs) + len(step.scalars)
    number = step.yields[0] - first
    return (
        step.outputs[0].buffer.element in _ZERO
        and len(users) == 1
        and users[0].name == "arith.addf"
        and users[0].operands.count(output) == 1
        and number >= 0
        and step.body[number] is users[0]
    )


def _adding(step: NestStep, start: NestStep) -> Ending:
    """The step's result plus what ``start`` computes."""
    inputs = len(start.inputs)
    scalars = len(start.scalars)

    def number(value: int) -> int:
        # The start's numbers count inputs, its output, scalars and body; the ending's the result, then the same.
        return 1 + value if value < inputs else value

    body = renumbered(start.body, number)
    total = Instruction("arith.addf", (0, number(start.yields[0])), step.outputs[0].buffer.element)
    last = 1 + inputs + scalars + len(body)
    return Ending(start.inputs, step.outputs, start.scalars, (*body, total), (last,))
