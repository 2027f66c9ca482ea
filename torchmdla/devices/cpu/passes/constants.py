"""Products with a constant matrix: the constant goes back to memory.

Upstream's fusion puts a matrix that holds one constant throughout (the state that a recurrent network starts from)
into the body of the product with it. That has one input then, so nothing that is done for products is done for it.
From a filled buffer it is the nest of any other state. It is still computed: the other factor may hold NaN::

    nest d0:4 d1:8 d2:6+ { … arith.mulf i0, 0.0 … }   →   nest d0:4 d1:6 { temporary1[d0, d1] = 0.0 }
                                                          nest d0:4 d1:8 d2:6+ { … arith.mulf i0, i1 … }
"""

from __future__ import annotations

from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import load, substituted
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.patterns import Captured, Rule, op

# A filled buffer larger than this (in elements) costs more than it gains.
_MOST_ELEMENTS = 1 << 20


def _store(steps: LoopProgram, step: LoopNest, found: Captured) -> bool:
    """Gives a sum of products of one input with a constant a second input, filled with that constant."""
    own, factor = found["input"].payload.loops, found["factor"]
    rows = [d for d, reduced in enumerate(step.reduction) if not reduced and step.sizes[d] != 1 and d not in own]
    if not rows or not any(step.reduction) or step.checks or step.epilogue:
        return False
    # Its rows, which the input does not vary with, and what is summed over.
    loops = [d for d, reduced in enumerate(step.reduction) if reduced or d not in own]
    sizes = tuple(step.sizes[d] for d in loops)
    buffer = Buffer("temporary", factor.type, sizes)
    if estimate(buffer.count) > _MOST_ELEMENTS:
        return False
    fill = LoopNest.elementwise(buffer.sizes, Access.whole(buffer), factor)
    steps.steps.insert(steps.steps.index(step), fill)
    product = found["product"]
    element = load(Access.of_loops(buffer, loops, len(step.sizes)))
    operands = tuple(element if operand is factor else operand for operand in product.operands)
    step.values = substituted(step.values, {product: product.with_operands(operands)})
    return True


STORE_CONSTANT_FACTORS = Rule(
    op(
        "arith.addf",
        op("accumulator"),
        op("arith.mulf", op("load", name="input"), op("constant", name="factor"), name="product"),
    ),
    lambda steps: partial(_store, steps),
)
