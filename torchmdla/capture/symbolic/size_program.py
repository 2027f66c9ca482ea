"""Program that a call evaluates for conditions on sizes and for sizes that are not polynomials of others.

Expressions are SymPy's, from PyTorch's shape functions. ``SizeProgram`` in ``src/codeimage/size_program.h`` runs the
same nodes. Integers stay integers, of 64 bits there. Results of a quotient are floats.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
from torch.utils._sympy import functions

from torchmdla.errors import CompileError

# The values of all symbols.
Values = tuple[int, ...]

# Symbol of each number of a group's inputs, in order; None where the number does not vary. Numbers are the sizes of a
# tensor, an integer, the elements of a list of integers.
Places = Sequence["int | None"]

# Name of an operation, a number, and the numbers of its operands. Only "constant" and "symbol" use the number.
Number = int | float
Node = tuple[str, Number, int, int]

# In the form of ``_C``: all nodes, the numbers of the nodes that are further symbols, and of those that are conditions.
SizeNodes = tuple[list[Node], list[int], list[int]]


# No integer of a call is larger.
LARGEST = 2**63 - 1

# Operations of the nodes; booleans are 0 and 1.
_OPERATIONS: Mapping[str, Callable[[Any, Any], Number]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floor_div": lambda a, b: a // b if b else math.nan,
    "mod": lambda a, b: a % b if b else math.nan,
    "div": lambda a, b: a / b if b else math.nan,
    "min": min,
    "max": max,
    "floor": lambda a, _: math.floor(a),
    "ceil": lambda a, _: math.ceil(a),
    "trunc": lambda a, _: math.trunc(a),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "not": lambda a, _: int(not a),
}

# SymPy's classes: an operation of two operands, or of any number if it is associative.
_NAMES: Mapping[Any, str] = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    sympy.Max: "max",
    sympy.Min: "min",
    functions.Max: "max",
    functions.Min: "min",
    functions.FloorDiv: "floor_div",
    functions.CleanDiv: "floor_div",
    functions.Mod: "mod",
    functions.PythonMod: "mod",
    functions.IntTrueDiv: "div",
    functions.FloatTrueDiv: "div",
    functions.FloorToInt: "floor",
    sympy.floor: "floor",
    functions.CeilToInt: "ceil",
    sympy.ceiling: "ceil",
    functions.TruncToInt: "trunc",
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.StrictLessThan: "lt",
    sympy.LessThan: "le",
    sympy.And: "and",
    sympy.Or: "or",
    sympy.Not: "not",
}

# Functions that return their operand.
_TRANSPARENT = (functions.ToFloat, functions.Identity)

# Comparisons that are expressed with exchanged operands.
_MIRRORED_COMPARISONS: Mapping[Any, str] = {sympy.StrictGreaterThan: "lt", sympy.GreaterThan: "le"}


class SizeProgram:
    """Nodes that compute expressions of ``symbols``, each once; operands come before their users."""

    def __init__(self, symbols: Sequence[sympy.Symbol]) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._known: dict[sympy.Basic, int] = {}
        for number, symbol in enumerate(symbols):
            self._known[symbol] = self._node("symbol", number)

    def add(self, expression: sympy.Basic) -> int:
        """Return the number of the node that computes ``expression``.

        Raises:
            CompileError: a function in it is not supported.
        """
        if expression not in self._known:
            self._known[expression] = self._add_node(expression)
        return self._known[expression]

    def run(self, values: Sequence[int]) -> list[Number]:
        """Return the values of all nodes where the symbols have ``values``."""
        computed: list[Number] = []
        for name, number, left, right in self.nodes:
            if name == "constant":
                computed.append(number)
            elif name == "symbol":
                computed.append(values[int(number)])
            else:
                computed.append(_OPERATIONS[name](computed[left], computed[right]))
        return computed

    def _node(self, name: str, number: Number = 0, left: int = 0, right: int = 0) -> int:
        node = (name, number, left, right)
        key = (*node, type(number))  # 1 is equal to 1.0
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[key]

    def _add_node(self, expression: Any) -> int:
        if expression in (sympy.true, sympy.false):
            return self._node("constant", int(expression == sympy.true))
        if expression.is_number:
            return self._node("constant", _number(expression))
        if isinstance(expression, _TRANSPARENT):
            return self.add(expression.args[0])
        if isinstance(expression, sympy.Pow | functions.PowByNatural):
            return self._power(*expression.args)
        if expression.func in _MIRRORED_COMPARISONS:
            left, right = expression.args
            return self._node(_MIRRORED_COMPARISONS[expression.func], 0, self.add(right), self.add(left))
        if isinstance(expression, functions.ModularIndexing):
            base, divisor, modulus = map(self.add, expression.args)
            return self._node("mod", 0, self._node("floor_div", 0, base, divisor), modulus)
        if expression.func not in _NAMES:
            raise CompileError(f"a size depends on {expression.func.__name__} of sizes")
        name = _NAMES[expression.func]
        operands = [self.add(operand) for operand in expression.args]
        if len(operands) == 1:
            return self._node(name, 0, operands[0], operands[0])
        return functools.reduce(lambda left, right: self._node(name, 0, left, right), operands)

    def _power(self, base: sympy.Basic, exponent: sympy.Basic) -> int:
        if not (exponent.is_Integer and int(exponent) >= 1):
            raise CompileError("a size depends on a power of sizes")
        factor = self.add(base)
        return functools.reduce(lambda left, right: self._node("mul", 0, left, right), [factor] * int(exponent))


def _number(expression: Any) -> Number:
    if not expression.is_Integer:
        return float(expression)
    if abs(expression) > LARGEST:
        raise CompileError(f"a size depends on {expression}, which has more than 64 bits")
    return int(expression)
