"""Factors of sums of products that become factors of weights: those of a convolution before a batch norm, say.

What a sum of products is multiplied by can multiply one operand of each product instead. Where both come from
parameters alone, this is done once for each version of them (``precompute.py``) and not in each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.expressions import Expression, load, operation, substituted
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, summand
from torchmdla.devices.cpu.passes.layout import lay_out
from torchmdla.devices.cpu.passes.precompute import parameter_values

# Weights that a call uses less often than this stay as they are: a scaled copy would take more than it gives. Sizes
# that vary are more at all samples, so that these decide alike.
_LEAST_USES = 8


def fold_scales(steps: LoopProgram) -> None:
    """Multiplies weights by what epilogues multiply the sums of their products by, in place."""
    made = parameter_values(steps)

    def is_known(access: Access) -> bool:
        return access.buffer.kind == "parameter" or access.buffer in made

    for step in steps.nests():
        product = _product_with_sum(step)
        factor = _factor(product) if product else None
        weights = _weights(step, factor, is_known) if factor and is_known(factor) else None
        if step.epilogue and product and factor and weights:
            steps.steps.insert(steps.steps.index(step), _scaled(step, weights, factor))
            total = next(operand for operand in product.operands if operand.op == "reduced")
            step.epilogue = replace(step.epilogue, values=substituted(step.epilogue.values, {product: total}))


def _product_with_sum(step: LoopNest) -> Expression | None:
    """The product in the epilogue that alone reads the step's sum of products."""
    if not _sums_products(step) or not step.epilogue:
        return None
    totals = [e for e in step.epilogue.body.expressions if e.op == "reduced"]
    readers = [reader for total in totals for reader in step.epilogue.body.readers(total)]
    is_stored = any(value.op == "reduced" for value in step.epilogue.values)
    return readers[0] if len(readers) == 1 and readers[0].op == "arith.mulf" and not is_stored else None


def _factor(product: Expression) -> Access | None:
    """What the epilogue multiplies the sum by, if it is one of its inputs."""
    return next((operand.payload for operand in product.operands if isinstance(operand.payload, Access)), None)


def _sums_products(step: LoopNest) -> bool:
    """Whether a step is a sum of products of its two inputs, from a constant zero."""
    product = summand(step)
    return (
        product is not None
        and product.op == "arith.mulf"
        and [operand.op for operand in product.operands] == ["load", "load"]
        and len(step.inputs) == 2
        and not step.checks
        and step.initial is not None
        and step.initial.payload == 0
    )


def _weights(step: LoopNest, factor: Access, is_known: Callable[[Access], bool]) -> Access | None:
    """The input that can be scaled by ``factor``."""

    def fits(access: Access) -> bool:
        uses = math.prod(n for loop, n in enumerate(step.sizes) if loop not in access.loops)
        same = access.buffer.element == factor.buffer.element == step.values[0].type
        return is_known(access) and same and access.loops >= factor.loops and uses >= _LEAST_USES

    return next((access for access in step.inputs if fits(access)), None)


def _scaled(step: LoopNest, weights: Access, factor: Access) -> LoopNest:
    """Lets a step read a buffer of scaled weights; returns the step that fills it."""
    flat = weights.flat(len(step.sizes))
    order = sorted(weights.loops, key=lambda loop: -flat.factors[loop])
    maker = lay_out(step, weights, order)
    maker.values = (operation("arith.mulf", [*maker.values, load(factor.over(order))], weights.buffer.element),)
    return maker
