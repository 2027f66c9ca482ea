"""Factors of a row that are applied after a product, to its sums, instead of before it, to its operand.

Softmax before a product: the product's epilogue divides the sums, instead of each weight.

There are more weights than results, and divided weights need not be stored (T. Dao, FlashAttention-2, 2023, section
3.1)::

    nest d0 d1 { weights[d0, d1] = exp[d0, d1] / sum[d0] }
    nest d0 d1 d2+ { … arith.mulf weights[d0, d2], values[d2, d1] … }
                                          →   nest d0 d1 d2+ { … arith.mulf exp[d0, d2], values[d2, d1] … } then {
                                                … arith.mulf o0, 1.0 / sum[d0] … }

Softmax before other nests: one division per row, and a product per element. Eager's results differ by one rounding::

    nest d0 d1 { weights[d0, d1] = exp[d0, d1] / sum[d0] }
                                          →   nest d0 d1 { weights[d0, d1] = exp[d0, d1] * (1.0 / sum[d0]) }

RMS norms before products: the row factor scales the sums, and the norm's weights scale the product's weights.

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
from functools import cached_property, partial

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.expressions import Expression, constant, contents, map_loads, operation, substitute
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Users, has_zero_initial, may_move
from torchmdla.devices.cpu.ir.patterns import SUM_OF_PRODUCTS, Captured, Rule, any_expression, find_matches, op
from torchmdla.devices.cpu.passes.fold_scales import can_scale_sum, is_scaling_profitable, scale_sum, scale_weights
from torchmdla.devices.cpu.passes.precompute import IsKnown, parameter_predicate
from torchmdla.devices.cpu.passes.producers import INLINING_REQUIREMENTS, find_producer, find_writer, is_reduced_from
from torchmdla.devices.cpu.passes.rematerialise import operand_access

_TERM, _ROW_LARGEST = op("load", name="term"), op("load", name="largest")
_DIVIDED = op("arith.divf", _TERM, any_expression("divisor"))
_DIVIDED_BY_LOAD = op("arith.divf", _TERM, op("load", name="total"), name="quotient")
_AT_LEAST = op("arith.maximumf", op("load", name="sum"), op("constant", name="least"))
_LARGEST = op("arith.maximumf", op("accumulator"), _TERM)
_SUM = op("arith.addf", op("accumulator"), _TERM)

# Exponentials that are at most 1. With the first pattern, one of them is 1.
_WITH_1 = op("math.exp", op("arith.subf", _TERM, _ROW_LARGEST))
_UP_TO_1 = op("math.exp", op("arith.subf", _TERM, op("arith.maximumf", _ROW_LARGEST, op("constant"))))

_SMALLEST_NORMAL = {"f32": 2.0**-126, "f64": 2.0**-1022}


@dataclass(frozen=True)
class _Division:
    """Quotients ``term / divisor`` that ``producer`` stores, and that ``step`` multiplies by ``factor`` and sums.

    ``step`` reads them as ``read``. The divisor is ``total``, but at least ``least``.
    """

    users: Users
    step: LoopNest
    read: Access
    factor: Access
    producer: LoopNest
    term: Expression
    divisor: Expression
    total: Access
    least: float

    @cached_property
    def divisor_of_step(self) -> Expression:
        """Return the divisor over the loops of the step."""
        return map_loads((self.divisor,), lambda access: operand_access(access, self.producer, self.read))[0]


def _match_division(users: Users, step: LoopNest, match: Captured) -> _Division | None:
    read, factor = match["left"].payload, match["right"].payload
    producer = find_writer(users, read)
    divided = next(_DIVIDED.matches(producer.values[0]), None) if producer else None
    # If other steps read the quotients, too, they are computed anyway.
    readers = [user for user in users.of(read.buffer) if read.buffer in user.reads]
    if producer is None or divided is None or readers != [step] or read.buffer.kind != "temporary":
        return None
    term, divisor = divided["term"], divided["divisor"]
    bounded = next(_AT_LEAST.matches(divisor), None)
    total, least = (bounded["sum"], bounded["least"].payload) if bounded else (divisor, 0.0)
    if total.op != "load":
        return None
    return _Division(users, step, read, factor, producer, term, divisor, total.payload, least)


def _defer_division(case: _Division) -> None:
    case.step.replace_load(case.read, operand_access(case.term.payload, case.producer, case.read))
    unit = constant(1.0, case.term.type)
    scale_sum(case.step, operation("arith.divf", [unit, case.divisor_of_step], case.term.type))
    case.users.replace_step(case.producer, case.step)
    case.users.set(case.read.buffer, [])


def _is_sum_with_1(users: Users, term: Access, least: float) -> bool:
    """Return whether terms are exponentials up to 1, with 1 among them or a divisor that is at least a normal number.

    Their sum is then finite, too. ``least`` is the least divisor.
    """
    producer = find_producer(users, term)
    if producer is None:
        return False
    (power,) = producer.values
    is_normal = least >= _SMALLEST_NORMAL.get(power.type, math.inf)
    exponentials = [*_WITH_1.matches(power), *(_UP_TO_1.matches(power) if is_normal else ())]
    return any(
        is_reduced_from(users, _LARGEST, -math.inf, e["largest"].payload, e["term"].payload) for e in exponentials
    )


DEFER_SOFTMAX = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, _: partial(_match_division, Users(steps.steps)),
    _defer_division,
    {
        **INLINING_REQUIREMENTS,
        "the sum starts from zero": lambda case: has_zero_initial(case.step),
        "nothing is checked of the quotients": lambda case: not case.step.checks,
        "a product has one quotient": lambda case: case.read != case.factor,
        "the divisor is one for all terms of a sum": lambda case: can_scale_sum(case.step, case.divisor_of_step),
        "the divisor is the sum of the terms": lambda case: is_reduced_from(
            case.users, _SUM, 0.0, case.total, case.term.payload
        ),
        "the divisor has a finite reciprocal": lambda case: _is_sum_with_1(case.users, case.term.payload, case.least),
    },
)


@dataclass(frozen=True)
class _RowDivision:
    """Quotients of the loads ``term`` and ``total`` in a nest ``step``."""

    users: Users
    step: LoopNest
    quotient: Expression
    term: Expression
    total: Access


def _match_row_division(users: Users, step: LoopNest, _: Captured) -> _RowDivision | None:
    for match in find_matches(_DIVIDED_BY_LOAD, step.values):
        term, total = match["term"], match["total"].payload
        inner = _innermost_loops(step, term.payload)
        # The reciprocal is computed outside of the innermost loop.
        if inner and inner.isdisjoint(total.loops) and match["quotient"].type == "f32":
            return _RowDivision(users, step, match["quotient"], term, total)
    return None


def _innermost_loops(step: LoopNest, access: Access) -> frozenset[int]:
    """Return the loop that walks an access element by element, in a set, which is empty for other accesses."""
    factors = access.linearise(len(step.sizes)).factors
    return frozenset(loop for loop, factor in enumerate(factors) if factor == 1 and step.sizes[loop] != 1)


def _multiply_by_reciprocal(case: _RowDivision) -> None:
    unit = constant(1.0, case.quotient.type)
    reciprocal = operation("arith.divf", [unit, case.quotient.operands[1]], case.quotient.type)
    product = operation("arith.mulf", [case.term, reciprocal], case.quotient.type)
    case.step.map_body(lambda roots: substitute(roots, {case.quotient: product}))


MULTIPLY_SOFTMAX = Rule(
    None,
    lambda steps, _: partial(_match_row_division, Users(steps.steps)),
    _multiply_by_reciprocal,
    {
        "the divisor is the sum of 1 and exponentials up to 1": lambda case: (
            is_reduced_from(case.users, _SUM, 0.0, case.total, case.term.payload)
            and _is_sum_with_1(case.users, case.term.payload, 0.0)
        ),
    },
)


# RMS norms.

# Sums of fewer products than this take less time than the row factor, which each tile of results needs once.
_LEAST_PRODUCTS = 64

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


def _defer_norm(case: _Norm) -> None:
    scale_weights(case.steps, case.step, case.weights, case.scale)
    case.step.replace_load(case.read, case.term)
    scale_sum(case.step, case.row)


DEFER_NORMS = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, _: partial(_match_norm, steps, Users(steps.steps), parameter_predicate(steps)),
    _defer_norm,
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
