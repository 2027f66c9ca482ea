"""Products with a constant matrix: the constant is moved to a buffer in memory.

Upstream's fusion folds a constant matrix, such as the initial state of a recurrent network, into the body of its
product. The product then has one input, and the passes for products skip it. With a filled buffer, it is the same nest
as for any other state. It is still computed, as the other factor may hold NaN::

    nest d0:4 d1:8 d2:6+ { … arith.mulf i0, 0.0 … }   →   nest d0:4 d1:6 { temporary1[d0, d1] = 0.0 }
                                                          nest d0:4 d1:8 d2:6+ { … arith.mulf i0, i1 … }
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import load, substitute
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.ir.patterns import Captured, Rule, op

# A filled buffer larger than this (in elements) costs more than it gains.
_MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class _ConstantFactor:
    """Constant factor in the product of ``match`` in ``step``, which will read it at ``element`` of a buffer."""

    steps: LoopProgram
    step: LoopNest
    match: Captured
    element: Access


def _match_constant(steps: LoopProgram, step: LoopNest, match: Captured) -> _ConstantFactor | None:
    input_loops = match["input"].payload.loops
    if all(reduced or step.sizes[d] == 1 or d in input_loops for d, reduced in enumerate(step.reduction)):
        return None
    # The rows of the constant, which the input does not vary with, and the reduced loops.
    loops = [d for d, reduced in enumerate(step.reduction) if reduced or d not in input_loops]
    buffer = Buffer("temporary", match["factor"].type, tuple(step.sizes[loop] for loop in loops))
    case = _ConstantFactor(steps, step, match, Access.of_loops(buffer, loops, len(step.sizes)))
    return case if estimate(buffer.count) <= _MOST_ELEMENTS else None


def _store_constant(case: _ConstantFactor) -> None:
    buffer, factor, product = case.element.buffer, case.match["factor"], case.match["product"]
    fill = LoopNest.elementwise(buffer.sizes, Access.identity(buffer), factor)
    case.steps.replace_step(case.step, [fill, case.step])
    operands = tuple(load(case.element) if operand is factor else operand for operand in product.operands)
    case.step.values = substitute(case.step.values, {product: product.with_operands(operands)})


STORE_CONSTANT_FACTORS = Rule(
    op(
        "arith.addf",
        op("accumulator"),
        op("arith.mulf", op("load", name="input"), op("constant", name="factor"), name="product"),
    ),
    lambda steps, _: partial(_match_constant, steps),
    _store_constant,
)
