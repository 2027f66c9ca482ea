"""Integers that remember the sizes of a call from which they were computed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch


class SizeInt(int):
    """Integer that depends on the sizes of a call: its value in one call, and an expression of symbols.

    It is used like any integer. Sums, products and quotients are also expressions. Every decision on one (a comparison,
    a truth value) is recorded as a guard by the ``ShapeEnv`` of its symbols. So the code that one call runs is known to
    be correct at all sizes where the guards hold. True division and conversion to a float give plain floats. For the
    symbols in a decomposition, see :func:`to_size_int`. Its text is its expression in ``⟦⟧``, which the environment
    remembers (``written``), so that a text with sizes is a template for other sizes.

    An integer that is used as a value is symbol number ``symbol`` of the program, and the program gets it as an
    argument.
    """

    symbolic: torch.SymInt
    symbol: int | None = None

    def __new__(cls, symbolic: torch.SymInt) -> SizeInt:
        number = super().__new__(cls, symbolic.node.hint)
        number.symbolic = symbolic
        return number

    def __str__(self) -> str:
        text = f"⟦{self.symbolic.node.expr}⟧"
        self.symbolic.node.shape_env.written[text] = self
        return text

    def __format__(self, specification: str) -> str:
        return str(self)

    def __bool__(self) -> bool:
        return bool(self.symbolic != 0)

    def __neg__(self) -> int:
        return to_size_int(-self.symbolic)  # type: ignore[no-any-return]

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, other % self

    __hash__ = int.__hash__


class SizeValue(int):
    """Value of a :class:`SizeInt` at given sizes, where it is used as a value."""

    symbol: int

    def __new__(cls, value: int, symbol: int) -> SizeValue:
        number = super().__new__(cls, value)
        number.symbol = symbol
        return number


def value_symbol(number: object) -> int | None:
    """Return the symbol of a number that is used as a value, or None for other numbers."""
    return number.symbol if isinstance(number, SizeInt | SizeValue) else None


def to_size_int(number: Any) -> Any:
    """Return ``number``, with a :class:`SizeInt` in place of a symbolic integer.

    A quotient of symbolic integers becomes its value in this call. The environment of its symbols records it
    (``quotients``): where a program contains that number, it is the quotient. Any other float of sizes is fixed.
    """
    if isinstance(number, torch.SymFloat):
        return _to_float(number)
    if not isinstance(number, torch.SymInt):
        return number
    expression = number.node.expr
    return int(expression) if expression.is_number else SizeInt(number)


def _to_float(number: Any) -> float:
    from torch.utils._sympy.functions import IntTrueDiv  # loaded already, with the symbols

    expression = number.node.expr
    if expression.is_number:
        return float(expression)
    if not isinstance(expression, IntTrueDiv):
        return float(number)
    number.node.shape_env.quotients[expression.args] = None
    return float(number.node.hint)


def to_symbolic(number: Any) -> Any:
    """Return the symbolic integer of a number, as the inverse of :func:`to_size_int`."""
    return number.symbolic if isinstance(number, SizeInt) else number


def _method(
    name: str, function: Callable[[Any, Any], Any], convert: Callable[[Any], Any], swapped: bool = False
) -> Callable[[SizeInt, Any], Any]:
    """Return the method ``name``, which applies ``function`` to expressions and converts the result."""
    plain = getattr(int, name)

    def method(self: SizeInt, other: Any) -> Any:
        if not isinstance(other, int):
            return plain(self, other)
        operands = (to_symbolic(other), self.symbolic) if swapped else (self.symbolic, to_symbolic(other))
        return convert(function(*operands))

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _function = getattr(operator, _name)
    setattr(SizeInt, f"__{_name}__", _method(f"__{_name}__", _function, to_size_int))
    setattr(SizeInt, f"__r{_name}__", _method(f"__r{_name}__", _function, to_size_int, swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(SizeInt, f"__{_name}__", _method(f"__{_name}__", getattr(operator, _name), bool))
