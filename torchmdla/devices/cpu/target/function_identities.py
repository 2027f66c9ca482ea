"""Identities of composed functions: a composition becomes another one with fewer functions.

tanh(log(1 + e)) = n / (n + 2) with n = e·(e + 2). With e = exp(x), this is the factor of ``mish``. It has one
exponential and one division instead of two exponentials, a logarithm and two divisions.

1 + tanh(x) = 2 / (1 + exp(-2·x)) is more exact near 0 than a sum. It is a factor of ``gelu``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchmdla.devices.cpu.ir.expressions import Expression, constant, contents, operation, rewrite
from torchmdla.devices.cpu.ir.patterns import AnyPattern, any_expression, any_of, op

# From here on, tanh(x) is 1 in single precision.
_LEAST_ONE = 9.02

# exp(x) is far above 2 from here on, and its square is finite.
_LARGE = 20.0

# Sums with a constant are scaled if they overflow neither before nor after that.
_MEDIUM = 2.0**100

_X = any_expression("x", "f32")
_ZERO = op("constant", payload=0.0)
_RECTIFIED = any_of(
    op("arith.select", op("arith.cmpf", _X, _ZERO, name="condition"), _X, _ZERO),
    op("arith.maximumf", _X, _ZERO),
)
_NEGATIVE_SIZE = op("arith.negf", op("math.absf", _X))
_SOFTPLUS: AnyPattern = any_of(
    op("math.log1p", op("math.exp", _X)),
    op("arith.addf", _RECTIFIED, op("math.log1p", op("math.exp", _NEGATIVE_SIZE))),
)
_BOUNDED_SOFTPLUS = op("arith.select", op("arith.cmpf", _X, op("constant", name="limit"), name="above"), _X, _SOFTPLUS)
_TANH_OF_SOFTPLUS = op("math.tanh", any_of(_BOUNDED_SOFTPLUS, _SOFTPLUS))

_ONE_PLUS_TANH = op("arith.addf", op("math.tanh", _X), op("constant", payload=1.0))

_SCALED_SUM = op(
    "arith.mulf", op("arith.addf", _X, op("constant", name="added"), type="f32"), op("constant", name="factor")
)

# The predicates of x > limit, and of x > 0 or x ≥ 0, with any result for NaN.
_IS_GREATER = tuple(f"{{predicate = {number} : i64}}" for number in (2, 3, 9, 10))


def _number(value: float) -> Expression:
    return constant(value, "f32")


def _op(name: str, *operands: Expression, type: str = "f32", attributes: str = "") -> Expression:
    return operation(name, operands, type, attributes)


def _fold_tanh_of_softplus(expression: Expression) -> Expression | None:
    for match in _TANH_OF_SOFTPLUS.matches(expression):
        conditions = [match[name] for name in ("above", "condition") if name in match]
        is_one_above = "limit" not in match or match["limit"].payload >= _LEAST_ONE
        if is_one_above and all(condition.attributes in _IS_GREATER for condition in conditions):
            return _mish_factor(match["x"])
    return None


def _mish_factor(x: Expression) -> Expression:
    # NaN stays NaN.
    is_large = _op("arith.cmpf", _number(_LARGE), x, type="i1", attributes="{predicate = 4 : i64}")
    e = _op("math.exp", _op("arith.select", is_large, _number(_LARGE), x))
    n = _op("arith.mulf", e, _op("arith.addf", e, _number(2.0)))
    return _op("arith.divf", n, _op("arith.addf", n, _number(2.0)))


def _fold_one_plus_tanh(expression: Expression) -> Expression | None:
    for match in _ONE_PLUS_TANH.matches(expression):
        e = _op("math.exp", _op("arith.mulf", match["x"], _number(-2.0)))
        return _op("arith.divf", _number(2.0), _op("arith.addf", e, _number(1.0)))
    return None


def _scale_sum(expression: Expression) -> Expression | None:
    """Return a sum with a constant, times a power of two, as one multiply-add with the same value."""
    for match in _SCALED_SUM.matches(expression):
        added, factor = float(match["added"].payload), float(match["factor"].payload)
        sizes = abs(added), abs(factor), abs(added * factor)
        if all(1 / _MEDIUM <= size <= _MEDIUM for size in sizes) and abs(math.frexp(factor)[0]) == 1 / 2:
            return _op("math.fma", match["x"], _number(factor), _number(added * factor))
    return None


# The rules. The first that applies to an expression is used.
_RULES: Sequence[Callable[[Expression], Expression | None]] = (
    _fold_tanh_of_softplus,
    _fold_one_plus_tanh,
    _scale_sum,
)


def apply_identities(roots: Sequence[Expression]) -> tuple[Expression, ...]:
    """Return ``roots`` with shorter compositions of the same value."""
    body = contents(tuple(roots))
    # Another user of tanh needs its exponential, too.
    shared = {e for e in body.expressions if e.op == "math.tanh" and len(body.users(e)) > 1}

    def fold(expression: Expression) -> Expression | None:
        if not shared.isdisjoint(expression.operands):
            return None
        return next((folded for rule in _RULES if (folded := rule(expression)) is not None), None)

    return rewrite(roots, fold)
