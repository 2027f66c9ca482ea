"""RMS norms before products: the row factor scales the sums, and the norm's weights scale the product's weights.

A sum of the row's products is at most the row's norm times the norm of the weights. Thus no sum overflows that did not
overflow before::

    nest d0 d1 { normed[d0, d1] = x[d0, d1] * rsqrt(squares[d0] …) * scale[d1] }
    nest d0 d1 d2+ { … normed[d0, d2] * weights[d2, d1] … }
                                  →   nest d0 d1 { scaled[d0, d1] = weights[d0, d1] * scale[d0] }
                                      nest d0 d1 d2+ { … x[d0, d2] * scaled[d2, d1] … } then { o0 * rsqrt(squares[d0]) }
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.expressions import Expression, contents, map_loads
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Users, has_zero_initial, may_move
from torchmdla.devices.cpu.passes.fold_scales import can_scale_sum, is_scaling_profitable, scale_sum, scale_weights
from torchmdla.devices.cpu.passes.precompute import IsKnown, parameter_predicate
from torchmdla.devices.cpu.passes.producers import INLINING_REQUIREMENTS, find_writer, is_reduced_from
from torchmdla.devices.cpu.passes.rematerialise import operand_access
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule, op

# Sums of fewer products than this take less time than the row factor, which each tile of results needs once.
_LEAST_PRODUCTS = 64

_TERM = op("load", name="term")
_SQUARES = op("arith.addf", op("accumulator"), op("arith.mulf", _TERM, _TERM))
_NORM = op("arith.mulf", op("arith.mulf", _TERM, op("math.rsqrt", name="row")), op("load", name="scale"))


@dataclass(frozen=True)
class _Norm:
    """Norm that ``producer`` stores, and that ``step`` multiplies by ``weights`` and sums.

    ``step`` reads the norm as ``read``. ``parts`` has the norm's parts over the producer's loops, and ``total`` is the
    sum of their squares. ``term``, ``scale`` and ``row`` are the parts over the step's loops.
    """

    steps: LoopProgram
    users: Users
    step: LoopNest
    read: Access
    weights: Access
    producer: LoopNest
    parts: Captured
    total: Access
    term: Access
    scale: Access
    row: Expression


def _match_norm(steps: LoopProgram, users: Users, is_known: IsKnown, step: LoopNest, match: Captured) -> _Norm | None:
    read, weights = match["left"].payload, match["right"].payload
    producer = find_writer(users, read)
    norm = next(_NORM.matches(producer.values[0]), None) if producer and read.buffer.kind == "temporary" else None
    products = math.prod(size for size, is_summed in zip(step.sizes, step.reduction, strict=True) if is_summed)
    if producer is None or norm is None or estimate(products) < _LEAST_PRODUCTS:
        return None
    totals = contents((norm["row"],)).loads
    roots = norm["term"], norm["scale"], norm["row"]
    term, scale, row = map_loads(roots, lambda access: operand_access(access, producer, read))
    if len(totals) != 1 or not is_known(scale.payload) or not is_scaling_profitable(step, weights, is_known):
        return None
    return _Norm(steps, users, step, read, weights, producer, norm, totals[0], term.payload, scale.payload, row)


def _defer(case: _Norm) -> None:
    scale_weights(case.steps, case.step, case.weights, case.scale)
    case.step.replace_load(case.read, case.term)
    scale_sum(case.step, case.row)


DEFER_NORMS = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, _: partial(_match_norm, steps, Users(steps.steps), parameter_predicate(steps)),
    _defer,
    {
        **INLINING_REQUIREMENTS,
        "nothing between overwrites what the norm is of": lambda case: may_move(case.steps, case.producer, case.step),
        "the sum starts from zero": lambda case: has_zero_initial(case.step),
        "nothing is checked of the norm": lambda case: not case.step.checks,
        "a product has one norm": lambda case: case.read != case.weights,
        "the row's factor is one for all terms of a sum": lambda case: can_scale_sum(case.step, case.row),
        "the row's factor is of the squares of its elements": lambda case: is_reduced_from(
            case.users, _SQUARES, 0.0, case.total, case.parts["term"].payload
        ),
        "a weight has one scale": lambda case: case.weights.loops >= case.scale.loops,
    },
)
