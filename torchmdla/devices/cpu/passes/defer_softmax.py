"""Softmax before a product: the product's epilogue divides the sums, instead of each weight.

There are more weights than results, and divided weights need not be stored (T. Dao, FlashAttention-2, 2023, section
3.1)::

    nest d0 d1 { weights[d0, d1] = exp[d0, d1] / sum[d0] }
    nest d0 d1 d2+ { … arith.mulf weights[d0, d2], values[d2, d1] … }
                                          →   nest d0 d1 d2+ { … arith.mulf exp[d0, d2], values[d2, d1] … } then {
                                                … arith.mulf o0, 1.0 / sum[d0] … }
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.expressions import Expression, constant, map_loads, operation
from torchmdla.devices.cpu.loop_program import LoopNest, Users, has_zero_initial
from torchmdla.devices.cpu.passes.fold_scales import can_scale_sum, scale_sum
from torchmdla.devices.cpu.passes.producers import INLINING_REQUIREMENTS, find_producer, find_writer, is_reduced_from
from torchmdla.devices.cpu.passes.rematerialise import operand_access
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule, any_expression, op

_TERM, _ROW_LARGEST = op("load", name="term"), op("load", name="largest")
_DIVIDED = op("arith.divf", _TERM, any_expression("divisor"))
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


def _defer(case: _Division) -> None:
    case.step.replace_load(case.read, operand_access(case.term.payload, case.producer, case.read))
    unit = constant(1.0, case.term.type)
    scale_sum(case.step, operation("arith.divf", [unit, case.divisor_of_step], case.term.type))
    case.users.replace_step(case.producer, case.step)
    case.users.set(case.read.buffer, [])


def _has_finite_reciprocal(case: _Division) -> bool:
    """Return whether terms are exponentials up to 1, with 1 among them or a divisor that is at least a normal number.

    Their sum is then finite, too.
    """
    producer = find_producer(case.users, case.term.payload)
    if producer is None:
        return False
    (power,) = producer.values
    is_normal = case.least >= _SMALLEST_NORMAL.get(power.type, math.inf)
    exponentials = [*_WITH_1.matches(power), *(_UP_TO_1.matches(power) if is_normal else ())]
    return any(
        is_reduced_from(case.users, _LARGEST, -math.inf, e["largest"].payload, e["term"].payload) for e in exponentials
    )


DEFER_SOFTMAX = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, _: partial(_match_division, Users(steps.steps)),
    _defer,
    {
        **INLINING_REQUIREMENTS,
        "the sum starts from zero": lambda case: has_zero_initial(case.step),
        "nothing is checked of the quotients": lambda case: not case.step.checks,
        "a product has one quotient": lambda case: case.read != case.factor,
        "the divisor is one for all terms of a sum": lambda case: can_scale_sum(case.step, case.divisor_of_step),
        "the divisor is the sum of the terms": lambda case: is_reduced_from(
            case.users, _SUM, 0.0, case.total, case.term.payload
        ),
        "the divisor has a finite reciprocal": _has_finite_reciprocal,
    },
)
