"""Softmax in front of a product: its epilogue divides the sums of products, instead of each weight before it.

There are more weights than results, and divided ones need not be stored (T. Dao, FlashAttention-2, 2023, section 3.1)::

    nest d0 d1 { weights[d0, d1] = exp[d0, d1] / sum[d0] }
    nest d0 d1 d2+ { … arith.mulf weights[d0, d2], values[d2, d1] … }
                                          →   nest d0 d1 d2+ { … arith.mulf exp[d0, d2], values[d2, d1] … } then {
                                                … arith.mulf o0, 1.0 / sum[d0] … }
"""

from __future__ import annotations

import math
from functools import partial

from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.expressions import Expression, accessing, constant, operation
from torchmdla.devices.cpu.loop_program import (
    LoopNest,
    LoopProgram,
    Users,
    may_move,
    starts_from_zero,
)
from torchmdla.devices.cpu.passes.fold_scales import can_scale_sum, scale_sum
from torchmdla.devices.cpu.passes.makers import elementwise_maker, maker_of, reduces
from torchmdla.devices.cpu.passes.rematerialise import through
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule, anything, op

_DIVIDED = op("arith.divf", op("load", name="term"), anything("divisor"))
_AT_LEAST = op("arith.maximumf", op("load", name="sum"), op("constant", name="least"))
_EXPONENTIAL = op("math.exp", op("arith.subf", op("load", name="term"), op("load", name="largest")))
_LARGEST = op("arith.maximumf", op("accumulator"), op("load", name="term"))
_SUM = op("arith.addf", op("accumulator"), op("load", name="term"))

_SMALLEST_NORMAL = {"f32": 2.0**-126, "f64": 2.0**-1022}


def _defer(steps: LoopProgram, users: Users, step: LoopNest, found: Captured) -> bool:
    read = found["left"].payload
    maker = elementwise_maker(users, read)
    divided = next(_DIVIDED.matches(maker.values[0]), None) if maker else None
    if (
        maker is None
        or divided is None
        or step.epilogue
        or not starts_from_zero(step)
        or users.of(read.buffer) != [maker, step]
    ):
        return False
    if not may_move(steps, maker, step) or not _is_softmax(users, divided["term"].payload, divided["divisor"]):
        return False
    roots = divided["term"], divided["divisor"]
    term, divisor = accessing(roots, lambda access: through(access, maker, read))
    # The square of a weight has two divisors.
    if read == found["right"].payload or not can_scale_sum(step, divisor):
        return False
    step.read_instead(read, term.payload)
    scale_sum(step, operation("arith.divf", [constant(1.0, term.type), divisor], term.type))
    users.take_over(maker, step)
    users.set(read.buffer, [])
    return True


DEFER_SOFTMAX = Rule(SUM_OF_PRODUCTS, lambda steps: partial(_defer, steps, Users(steps.steps)))


def _is_softmax(users: Users, terms: Access, divisor: Expression) -> bool:
    """Whether terms are exponentials and the divisor is their sum, which has a finite reciprocal: 1 is among the terms,
    or it is not less than a normal number."""
    bounded = next(_AT_LEAST.matches(divisor), None)
    total, maker = bounded["sum"] if bounded else divisor, maker_of(users, terms)
    if maker is None or total.op != "load" or not reduces(users, _SUM, 0.0, total.payload, terms):
        return False
    (power,) = maker.values
    if bounded and bounded["least"].payload >= _SMALLEST_NORMAL.get(power.type, math.inf):
        return power.op == "math.exp"
    found = _EXPONENTIAL.matches(power)
    return any(reduces(users, _LARGEST, -math.inf, e["largest"].payload, e["term"].payload) for e in found)
