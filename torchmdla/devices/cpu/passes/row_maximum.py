"""Maximum of a softmax row by one instruction: it ignores NaN, which the row's sum still has.

A maximum that keeps NaN takes four instructions. In a softmax, the exponential of NaN is NaN, and so are the row's sum
and all quotients by it, whatever the maximum is::

    nest d0 d1+ { largest[d0] = arith.maximumf x[d0, d1], o0 }  →  nest d0 d1+ { … arith.maxnumf x[d0, d1], o0 }
    nest d0 d1 { exp[d0, d1] = exp(x[d0, d1] - largest[d0]) }
    nest d0 d1+ { sum[d0] += exp[d0, d1] }
    nest d0 d1 { … exp[d0, d1] / sum[d0] … }
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.expressions import Expression, contents, operation
from torchmdla.devices.cpu.ir.loop_program import LoopNest, Step, Users
from torchmdla.devices.cpu.ir.patterns import Captured, Rule, any_of, op
from torchmdla.devices.cpu.passes.producers import find_producer, is_reduced_from

_TERM = op("load", name="term")
_LARGEST = op("arith.maximumf", op("accumulator"), _TERM, type="f32")
_EXPONENTIAL = op("math.exp", op("arith.subf", _TERM, op("load", name="largest")))
_SUM = op("arith.addf", op("accumulator"), _TERM)
_TOTAL = op("load", name="total")
_QUOTIENT = any_of(
    op("arith.divf", _TERM, _TOTAL),
    op("arith.mulf", _TERM, op("arith.divf", op("constant", payload=1.0), _TOTAL)),
)


@dataclass(frozen=True)
class _Maximum:
    """Nest that computes the largest elements of rows."""

    users: Users
    step: LoopNest


def _ignore_nan(case: _Maximum) -> None:
    (value,) = case.step.values
    # The accumulator, which is never NaN, comes last.
    operands = sorted(value.operands, key=lambda operand: operand.op == "accumulator")
    case.step.values = (operation("arith.maxnumf", operands, value.type),)


def _is_of_softmax(case: _Maximum) -> bool:
    """Return whether the maximum is only read for exponentials, and these only to be divided by their sum."""
    buffer = case.step.outputs[0].buffer
    readers = [step for step in case.users.of(buffer) if step is not case.step]
    reader = readers[0] if len(readers) == 1 else None
    if buffer.kind != "temporary" or not isinstance(reader, LoopNest) or len(reader.outputs) != 1:
        return False
    powers = reader.outputs[0].buffer
    match = next(_EXPONENTIAL.matches(reader.values[0]), None)
    if match is None or powers.kind != "temporary" or find_producer(case.users, reader.outputs[0]) is not reader:
        return False
    is_row = is_reduced_from(case.users, _LARGEST, -math.inf, match["largest"].payload, match["term"].payload)
    return is_row and all(
        step is reader or _only_divides(case.users, step, reader.outputs[0]) for step in case.users.of(powers)
    )


def _only_divides(users: Users, step: Step, powers: Access) -> bool:
    """Return whether a step reads exponentials for their sum, or as a quotient by it."""
    if not isinstance(step, LoopNest) or step.epilogue or step.checks:
        return False
    if any(step.reduction):
        return len(step.values) == 1 and any(
            is_reduced_from(users, _SUM, 0.0, step.outputs[0], match["term"].payload)
            for match in _SUM.matches(step.values[0])
        )
    body = contents(step.values)
    reads = [e for e in body.expressions if e.op == "load" and e.payload.buffer is powers.buffer]
    return all(_is_quotient(users, user) for read in reads for user in body.users(read)) and not any(
        value in reads for value in step.values
    )


def _is_quotient(users: Users, expression: Expression) -> bool:
    return any(
        is_reduced_from(users, _SUM, 0.0, match["total"].payload, match["term"].payload)
        for match in _QUOTIENT.matches(expression)
    )


def _match(users: Users, step: LoopNest, _: Captured) -> _Maximum | None:
    starts_below = step.initial is not None and step.initial.payload == -math.inf
    return _Maximum(users, step) if starts_below and len(step.outputs) == 1 and not step.epilogue else None


IGNORE_NAN = Rule(
    _LARGEST,
    lambda steps, _: partial(_match, Users(steps.steps)),
    _ignore_nan,
    {"a row with NaN has NaN in all its results": _is_of_softmax},
)
