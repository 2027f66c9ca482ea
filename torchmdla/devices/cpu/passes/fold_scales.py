"""Factors of sums of products become factors of weights, such as those of a batch norm after a convolution.

A factor of a sum of products can multiply one operand of each product instead. If both come from parameters alone, this
is computed once for each version of them (``precompute.py``), and not in each call::

    nest … { arith.mulf i0, i1 … } then {          nest … { temporary1[d0, d1] = parameter1[d0, d1] * parameter2[d1] }
      i0 = parameter2[d1]                      →   nest … { arith.mulf i0, i1 … } then {
      result3[d0, d1] = o0 * i0 … }                  result3[d0, d1] = o0 … }
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.expressions import Expression, contents, load, operation, reduced, substitute
from torchmdla.devices.cpu.ir.loop_program import Epilogue, LoopNest, LoopProgram, has_zero_initial
from torchmdla.devices.cpu.ir.patterns import SUM_OF_PRODUCTS, Captured, Rule, find_matches, op
from torchmdla.devices.cpu.passes.layout import in_memory_order, lay_out
from torchmdla.devices.cpu.passes.narrow.buffers import HalfBuffers
from torchmdla.devices.cpu.passes.narrow.sums import replace_in_epilogue
from torchmdla.devices.cpu.passes.precompute import IsKnown

# Weights that a call uses less often than this stay unchanged: a scaled copy would cost more than it gains.
_LEAST_USES = 8

_SCALED_SUM = op("arith.mulf", op("reduced", name="total"), op("load", name="factor"), name="product")


@dataclass(frozen=True)
class _Scale:
    """Sum of products of ``weights`` and ``other`` in ``step``, which its epilogue multiplies by ``factor``.

    Both operands are read over the step's loops. ``scaled`` has the scaled product and its operands.
    """

    steps: LoopProgram
    step: LoopNest
    epilogue: Epilogue
    scaled: Captured
    weights: Access
    other: Access

    @property
    def factor(self) -> Access:
        factor: Access = self.scaled["factor"].payload
        return factor


def _match_scale(steps: LoopProgram, halves: HalfBuffers, step: LoopNest, match: Captured) -> _Scale | None:
    weights, other = match["left"].payload, match["right"].payload
    scaled = next(find_matches(_SCALED_SUM, step.epilogue.values), None) if step.epilogue else None
    if step.epilogue is None or scaled is None or not halves.is_known(scaled["factor"].payload):
        return None
    # Scaled weights would no longer be bfloat16.
    if not is_scaling_profitable(step, weights, halves.is_known) or weights.buffer in halves:
        return None
    return _Scale(steps, step, step.epilogue, scaled, weights, other)


def _fold(case: _Scale) -> None:
    scale_weights(case.steps, case.step, case.weights, case.factor)
    values = substitute(case.epilogue.values, {case.scaled["product"]: case.scaled["total"]})
    case.step.epilogue = replace(case.epilogue, values=values)


def _is_only_use(case: _Scale) -> bool:
    """Return whether an epilogue uses the sum in one product alone."""
    total = case.scaled["total"]
    is_read_once = case.epilogue.body.users(total) == [case.scaled["product"]]
    return is_read_once and total not in case.epilogue.values


FOLD_SCALES = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_match_scale, steps, HalfBuffers(steps, machine, "bf16")),
    _fold,
    {
        "the sum starts from zero": lambda case: has_zero_initial(case.step),
        "nothing is checked of the weights": lambda case: not case.step.checks,
        "the sum is used in the scaled one alone": _is_only_use,
        "a weight has one factor": lambda case: case.weights.loops >= case.factor.loops,
        "a product has one weight": lambda case: case.weights != case.other,
    },
)


def can_scale_sum(step: LoopNest, factor: Expression) -> bool:
    """Return whether ``factor``, over the step's loops, is the same for all terms of a sum."""
    body = contents((factor,))
    varying = body.loops.union(*(access.loops for access in body.loads))
    return not any(step.reduction[loop] and step.sizes[loop] != 1 for loop in varying)


def scale_sum(step: LoopNest, factor: Expression) -> None:
    """Multiply the sum of a step by ``factor``, over the step's loops, in its epilogue."""
    total = reduced(0, factor.type)
    replace_in_epilogue(step, total, operation("arith.mulf", [total, factor], factor.type))


def is_scaling_profitable(step: LoopNest, weights: Access, is_known: IsKnown) -> bool:
    """Return whether an input can be scaled once for many calls, each of which uses a scaled element often."""
    uses = math.prod(n for loop, n in enumerate(step.sizes) if loop not in weights.loops)
    return is_known(weights) and estimate(uses) >= _LEAST_USES


def scale_weights(steps: LoopProgram, step: LoopNest, weights: Access, factor: Access) -> None:
    """Replace an input of a step by a buffer of scaled weights, which a new step before it fills."""
    order = in_memory_order(step, weights)
    producer = lay_out(step, weights, order)
    producer.values = (
        operation("arith.mulf", [*producer.values, load(factor.restrict(order))], weights.buffer.element),
    )
    steps.steps.insert(steps.steps.index(step), producer)
