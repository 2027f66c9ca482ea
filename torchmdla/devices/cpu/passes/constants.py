"""Products with a constant matrix: the constant goes back to memory.

Upstream's fusion puts a matrix that holds one constant throughout (the state that a recurrent network starts from)
into the body of the product with it. That has one input then, so nothing that is done for products is done for it.
From a filled buffer it is the nest of any other state. It is still computed: the other factor may hold NaN.
"""

from __future__ import annotations

from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import Expression, load, substituted
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, summand

# A filled buffer larger than this (in elements) costs more than it gains.
_MOST_ELEMENTS = 1 << 20


def store_constant_factors(steps: LoopProgram) -> None:
    """Gives every sum of products of one input with a constant a second input, filled with that constant."""
    for step in steps.nests():
        product = _constant_product(step)
        if product is None:
            continue
        factor = next(operand for operand in product.operands if operand.op == "constant")
        loops = _missing_loops(step)
        sizes = tuple(step.sizes[d] for d in loops)
        varies = any(a.buffer.varies for a in step.accesses)
        buffer = Buffer("temporary", factor.type, sizes, varies=varies)
        if buffer.count <= _MOST_ELEMENTS:
            fill = LoopNest.elementwise(buffer.sizes, Access.whole(buffer), factor)
            steps.steps.insert(steps.steps.index(step), fill)
            element = load(Access.of_loops(buffer, loops, len(step.sizes)))
            operands = tuple(element if operand is factor else operand for operand in product.operands)
            step.values = substituted(step.values, {product: product.with_operands(operands)})


def _constant_product(step: LoopNest) -> Expression | None:
    """The product of the only input with a constant that a step sums up, over rows that the input does not have."""
    product = summand(step)
    if product is None or product.op != "arith.mulf" or not any(step.reduction) or step.checks or step.epilogue:
        return None
    if sorted(operand.op for operand in product.operands) != ["constant", "load"]:
        return None
    own = step.inputs[0].loops
    rows = [d for d, reduced in enumerate(step.reduction) if not reduced and step.sizes[d] > 1 and d not in own]
    return product if rows else None


def _missing_loops(step: LoopNest) -> list[int]:
    """The loops of the constant matrix: its rows, which the input does not vary with, and what is summed over."""
    own = step.inputs[0].loops
    return [d for d, reduced in enumerate(step.reduction) if reduced or d not in own]
