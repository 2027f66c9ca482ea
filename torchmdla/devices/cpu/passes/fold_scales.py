"""Factors of sums of products that become factors of weights: those of a convolution before a batch norm, say.

What a sum of products is multiplied by can multiply one operand of each product instead. Where both come from
parameters alone, this is done once for each version of them (``precompute.py``) and not in each call::

    nest … { arith.mulf i0, i1 … } then {          nest … { temporary1[d0, d1] = parameter1[d0, d1] * parameter2[d1] }
      i0 = parameter2[d1]                      →   nest … { arith.mulf i0, i1 … } then {
      result3[d0, d1] = o0 * i0 … }                  result3[d0, d1] = o0 … }
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.expressions import Expression, contents, load, operation, reduced, substituted
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest, LoopProgram, starts_from_zero
from torchmdla.devices.cpu.passes.layout import in_memory_order, lay_out
from torchmdla.devices.cpu.passes.precompute import IsKnown, known_accesses
from torchmdla.devices.cpu.passes.roundings import HalfBuffers
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule, op, within

# Weights that a call uses less often than this stay as they are: a scaled copy would take more than it gives.
_LEAST_USES = 8

_SCALED_SUM = op("arith.mulf", op("reduced", name="total"), op("load", name="factor"), name="product")


def _fold(steps: LoopProgram, is_known: IsKnown, halves: HalfBuffers, step: LoopNest, found: Captured) -> bool:
    """Multiplies weights by what the epilogue multiplies the sum of their products by. Weights that are bfloat16 would
    not be such any more."""
    if not step.epilogue or not starts_from_zero(step):
        return False
    scaled = next(within(_SCALED_SUM, step.epilogue.values), None)
    if scaled is None or not _is_only_use(step, scaled):
        return False
    factor = scaled["factor"].payload
    weights = next((a for a in step.inputs if can_scale(step, a, factor, is_known)), None)
    if weights is None or not is_known(factor) or weights.buffer in halves:
        return False
    scale_ahead(steps, step, weights, factor)
    step.epilogue = replace(
        step.epilogue, values=substituted(step.epilogue.values, {scaled["product"]: scaled["total"]})
    )
    return True


FOLD_SCALES = Rule(
    SUM_OF_PRODUCTS, lambda steps: partial(_fold, steps, known_accesses(steps), HalfBuffers(steps, "bf16"))
)


def _is_only_use(step: LoopNest, scaled: Captured) -> bool:
    """Whether a product is all that an epilogue makes of the sum."""
    assert step.epilogue is not None
    readers = step.epilogue.body.readers(scaled["total"])
    return readers == [scaled["product"]] and scaled["total"] not in step.epilogue.values


def can_scale_sum(step: LoopNest, factor: Expression) -> bool:
    """Return whether ``factor``, over the step's loops, is the same for all terms of a sum."""
    body = contents((factor,))
    varying = body.loops.union(*(access.loops for access in body.loads))
    return not any(step.reduction[loop] and step.sizes[loop] != 1 for loop in varying)


def scale_sum(step: LoopNest, factor: Expression) -> None:
    """Multiplies the sum of a step by ``factor``, over the step's loops, in its epilogue."""
    total = reduced(0, factor.type)
    plain = step.epilogue or Epilogue(step.outputs, (total,))
    scaled = operation("arith.mulf", [total, factor], factor.type)
    step.epilogue = replace(plain, values=substituted(plain.values, {total: scaled}))


def can_scale(step: LoopNest, weights: Access, factor: Access, is_known: IsKnown) -> bool:
    """Whether an input can be scaled by ``factor``, of the same loops, ahead."""
    uses = math.prod(n for loop, n in enumerate(step.sizes) if loop not in weights.loops)
    same = weights.buffer.element == factor.buffer.element == step.values[0].type
    return is_known(weights) and same and weights.loops >= factor.loops and estimate(uses) >= _LEAST_USES


def scale_ahead(steps: LoopProgram, step: LoopNest, weights: Access, factor: Access) -> None:
    """Lets a step read a buffer of scaled weights, which a step before it fills."""
    order = in_memory_order(step, weights)
    maker = lay_out(step, weights, order)
    maker.values = (operation("arith.mulf", [*maker.values, load(factor.over(order))], weights.buffer.element),)
    steps.steps.insert(steps.steps.index(step), maker)
