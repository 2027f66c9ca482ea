"""RMS norm in front of products: its factor of each row multiplies the sums, its weights those of the products.

A sum of the row's products is at most the row's norm times that of the weights, so none overflows that did not before::

    nest d0 d1 { normed[d0, d1] = x[d0, d1] * rsqrt(squares[d0] …) * scale[d1] }
    nest d0 d1 d2+ { … normed[d0, d2] * weights[d2, d1] … }
                                  →   nest d0 d1 { scaled[d0, d1] = weights[d0, d1] * scale[d0] }
                                      nest d0 d1 d2+ { … x[d0, d2] * scaled[d2, d1] … } then { o0 * rsqrt(squares[d0]) }
"""

from __future__ import annotations

import math
from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.expressions import accessing, contents
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Users, may_move, starts_from_zero
from torchmdla.devices.cpu.passes.fold_scales import can_scale, can_scale_sum, scale_ahead, scale_sum
from torchmdla.devices.cpu.passes.makers import elementwise_maker, reduces
from torchmdla.devices.cpu.passes.precompute import IsKnown, known_accesses
from torchmdla.devices.cpu.passes.rematerialise import through
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule, op

# Sums of fewer products than this take less time than the row factor, once for each tile of results.
_LEAST_PRODUCTS = 64

_TERM = op("load", name="term")
_SQUARES = op("arith.addf", op("accumulator"), op("arith.mulf", _TERM, _TERM))
_NORM = op("arith.mulf", op("arith.mulf", _TERM, op("math.rsqrt", name="row")), op("load", name="scale"))


def _defer(steps: LoopProgram, users: Users, is_known: IsKnown, step: LoopNest, found: Captured) -> bool:
    read, weights = found["left"].payload, found["right"].payload
    maker = elementwise_maker(users, read)
    norm = next(_NORM.matches(maker.values[0]), None) if maker else None
    if maker is None or norm is None or not starts_from_zero(step) or not may_move(steps, maker, step):
        return False
    totals = contents((norm["row"],)).loads
    if len(totals) != 1 or not reduces(users, _SQUARES, 0.0, totals[0], norm["term"].payload):
        return False
    roots = norm["term"], norm["scale"], norm["row"]
    term, scale, row = accessing(roots, lambda access: through(access, maker, read))
    products = math.prod(size for size, is_summed in zip(step.sizes, step.reduction, strict=True) if is_summed)
    if estimate(products) < _LEAST_PRODUCTS or not can_scale_sum(step, row):
        return False
    if not is_known(scale.payload) or not can_scale(step, weights, scale.payload, is_known):
        return False
    scale_ahead(steps, step, weights, scale.payload)
    step.read_instead(read, term.payload)
    scale_sum(step, row)
    return True


DEFER_NORMS = Rule(SUM_OF_PRODUCTS, lambda steps: partial(_defer, steps, Users(steps.steps), known_accesses(steps)))
