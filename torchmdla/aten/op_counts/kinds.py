"""Kinds of operations that are counted, and arithmetic on counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchmdla.aten.calls import Call


def words(text: str) -> list[str]:
    """Return the words of ``text``."""
    return text.split()


# Meaning of each kind. Comparisons, minimum, maximum, and tests for special values are one kind.
KINDS: Mapping[str, str] = {
    "MAC": "multiplication and addition of the product",
    "+": "addition",
    "-": "subtraction, negation",
    "*": "multiplication",
    "/": "division",
    "%": "remainder",
    ">": "comparison, minimum, maximum",
    "?": "selection by a condition",
    "&": "logical and bitwise operation, shift",
    "abs": "absolute value",
    "round": "rounding to an integer",
    "sqrt": "square root",
    "pow": "power",
    "exp": "exponential, to any base",
    "log": "logarithm, to any base",
    **dict.fromkeys(words("sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh erf"), "function"),
}

# Operations by kind.
Counts = dict[str, int]
Rule = Callable[[Call], Counts]


def total(*parts: Mapping[str, int]) -> Counts:
    """Return the sum of counts; kinds with a sum of zero are left out."""
    result: Counts = {}
    for part in parts:
        for kind, number in part.items():
            result[kind] = result.get(kind, 0) + number
    return {kind: number for kind, number in result.items() if number}


def times(number: int, each: Mapping[str, int]) -> Counts:
    """Return ``each`` multiplied by ``number``."""
    return {kind: number * count for kind, count in each.items()}
