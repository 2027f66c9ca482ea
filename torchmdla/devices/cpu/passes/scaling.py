"""Factors of sums of products that become factors of weights: those of a convolution before a batch norm, say.

What a sum of products is multiplied by can multiply one operand of each product instead. Where both come from
parameters alone, this is done once for each version of them (``packing.py``) and not in each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchmdla.devices.cpu.nests import Instruction, constant_number
from torchmdla.devices.cpu.passes.layout import lay_out
from torchmdla.devices.cpu.passes.packing import parameter_values
from torchmdla.devices.cpu.steps import Access, NestStep, Steps

# Weights that a call uses less often than this stay as they are: a scaled copy would take more than it gives. Sizes
# that vary are more at all samples, so that these decide alike.
_LEAST_USES = 8


def scale_weights(steps: Steps) -> None:
    """Multiplies weights by what endings multiply the sums of their products by, in place."""
    made = parameter_values(steps)

    def is_known(access: Access) -> bool:
        return access.buffer.kind == "parameter" or access.buffer in made

    for step in steps.nests():
        product = _product_with_sum(step)
        factor = _factor(step, product) if product is not None else None
        weights = _weights(step, factor, is_known) if factor and is_known(factor) else None
        if product is not None and factor and weights is not None:
            steps.steps.insert(steps.steps.index(step), _scaled(step, weights, factor))
            _drop(step, product)


def _product_with_sum(step: NestStep) -> int | None:
    """The place in the ending of a product that alone reads the step's sum of products."""
    if not _sums_products(step) or not step.ending or 0 in step.ending.yields:
        return None
    readers = [place for place, i in enumerate(step.ending.body) if 0 in i.operands]
    return readers[0] if len(readers) == 1 and step.ending.body[readers[0]].name == "arith.mulf" else None


def _factor(step: NestStep, product: int) -> Access | None:
    """What the ending multiplies the sum by, if it is one of its inputs."""
    assert step.ending
    value = max(step.ending.body[product].operands)
    return step.ending.inputs[value - 1] if 1 <= value <= len(step.ending.inputs) else None


def _sums_products(step: NestStep) -> bool:
    """Whether a step is a sum of products of its two inputs, from a constant zero."""
    if len(step.inputs) != 2 or len(step.outputs) != 1 or step.scalars or step.tables or len(step.body) != 2:
        return False
    product, total = step.body
    return (
        (product.name, sorted(product.operands)) == ("arith.mulf", [0, 1])
        and (total.name, sorted(total.operands)) == ("arith.addf", [2, 3])
        and step.yields == (4,)
        and step.initial is not None
        and constant_number(step.initial.attributes) == 0
    )


def _weights(step: NestStep, factor: Access, is_known: Callable[[Access], bool]) -> int | None:
    """The input that can be scaled by ``factor``."""

    def fits(access: Access) -> bool:
        uses = math.prod(n for loop, n in enumerate(step.sizes) if loop not in access.loops)
        same = access.buffer.element == factor.buffer.element == step.body[0].result
        return is_known(access) and same and access.loops >= factor.loops and uses >= _LEAST_USES

    return next((position for position, access in enumerate(step.inputs) if fits(access)), None)


def _scaled(step: NestStep, position: int, factor: Access) -> NestStep:
    """Lets input ``position`` read a buffer of scaled weights; returns the step that fills it."""
    access = step.inputs[position]
    flat = access.flat(len(step.sizes))
    order = sorted(access.loops, key=lambda loop: -flat.factors[loop])
    maker = lay_out(step, position, order)
    product = Instruction("arith.mulf", (0, 1), access.buffer.element)
    return replace(maker, inputs=(*maker.inputs, factor.over(order)), body=(product,), yields=(3,))


def _drop(step: NestStep, place: int) -> None:
    """Takes a product with the step's sum out of the ending: what read it reads the sum."""
    ending = step.ending
    assert ending
    first_scalar = 1 + len(ending.inputs)
    first_result = first_scalar + len(ending.scalars)
    product = first_result + place

    def without(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(0 if v == product else v for v in values)

    body = [replace(i, operands=without(i.operands)) for k, i in enumerate(ending.body) if k != place]
    yields = without(ending.yields)
    read = {v for i in body for v in i.operands} | set(yields)
    inputs = [v for v in range(1, first_scalar) if v in read]
    rest = [v for v in range(first_scalar, first_result + len(ending.body)) if v != product]
    numbers = {value: number for number, value in enumerate([0, *inputs, *rest])}
    step.ending = replace(
        ending,
        inputs=tuple(ending.inputs[v - 1] for v in inputs),
        body=tuple(replace(i, operands=tuple(numbers[v] for v in i.operands)) for i in body),
        yields=tuple(numbers[v] for v in yields),
    )
