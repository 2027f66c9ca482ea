"""Kinds of operations that are counted, and their notation in the tables of rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from torchmdla.aten.calls import Call

_FUNCTIONS = "sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh erf"

# Meaning of each kind, which has the name of its op if it is a word. Comparisons, minimum, maximum, and tests for
# special values are one kind.
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
    **dict.fromkeys(_FUNCTIONS.split(), "function"),
}

Counts = Counter[str]
# A rule is the kinds for each element of the result, or a function.
Rule = str | Callable[[Call], Counts]


def each(number: int, kinds: str) -> Counts:
    """Return the counts of ``number`` times all ``kinds``, such as ``"- exp + /"``; a kind may be repeated."""
    return Counter({kind: number * count for kind, count in Counter(kinds.split()).items()})
