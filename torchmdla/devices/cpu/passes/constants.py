"""Products with a constant matrix: the constant goes back to memory.

Upstream's fusion puts a matrix that holds one constant throughout (the state that a recurrent network starts from)
into the body of the product with it. That has one input then, so nothing that is done for products is done for it.
From a filled buffer it is the nest of any other state. It is still computed: the other factor may hold NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchmdla.devices.cpu.nests import Instruction
from torchmdla.devices.cpu.steps import Access, Buffer, Linear, NestStep, Steps

# A filled buffer larger than this (in elements) costs more than it gains.
_MOST_ELEMENTS = 1 << 20


def store_constant_factors(steps: Steps) -> None:
    """Gives every sum of products of one input with a constant a second input, filled with that constant."""
    for step in steps.nests():
        position = _constant_factor(step)
        if position is None:
            continue
        loops = _missing_loops(step)
        sizes = tuple(step.sizes[d] for d in loops)
        varies = any(a.buffer.varies for a in step.accesses)
        buffer = Buffer("temporary", step.body[position].result, sizes, varies=varies)
        if buffer.count <= _MOST_ELEMENTS:
            steps.steps.insert(steps.steps.index(step), _fill(buffer, step.body[position]))
            _read(step, position, Access(buffer, tuple(_unit(d, len(step.sizes)) for d in loops)))


def _constant_factor(step: NestStep) -> int | None:
    """The place in the body of a constant that the only input is multiplied by before it is summed up."""
    first = len(step.inputs) + len(step.outputs) + len(step.scalars)
    if len(step.inputs) != 1 or not any(step.reduction) or step.tables or step.ending or len(step.body) != 3:
        return None
    names = [i.name for i in step.body]
    if names != ["arith.constant", "arith.mulf", "arith.addf"] or set(step.body[1].operands) != {0, first}:
        return None
    rows = [d for d, r in enumerate(step.reduction) if not r and step.sizes[d] > 1 and d not in _loops(step.inputs[0])]
    return 0 if rows and step.body[2].operands.count(first + 1) == 1 else None


def _missing_loops(step: NestStep) -> list[int]:
    """The loops of the constant matrix: its rows, which the input does not vary with, and what is summed over."""
    own = _loops(step.inputs[0])
    return [d for d, reduced in enumerate(step.reduction) if reduced or d not in own]


def _loops(access: Access) -> set[int]:
    return {loop for index in access.indices for loop in index.loops}


def _fill(buffer: Buffer, constant: Instruction) -> NestStep:
    loops = len(buffer.sizes)
    output = Access(buffer, tuple(_unit(d, loops) for d in range(loops)))
    return NestStep(buffer.sizes, (False,) * loops, (), (output,), (), (), (constant,), (1,))


def _read(step: NestStep, position: int, access: Access) -> None:
    """Replaces the constant of the body by a first input."""
    constant = len(step.inputs) + len(step.outputs) + len(step.scalars) + position

    def moved(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(0 if v == constant else v + 1 if v < constant else v for v in values)

    body = step.body[:position] + step.body[position + 1 :]
    step.inputs = (access, *step.inputs)
    step.body = tuple(Instruction(i.name, moved(i.operands), i.result, i.attributes, i.payload) for i in body)
    step.yields = moved(step.yields)


def _unit(loop: int, loops: int) -> Linear:
    return Linear(tuple(int(d == loop) for d in range(loops)))
