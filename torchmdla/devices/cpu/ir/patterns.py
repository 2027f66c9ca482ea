"""Patterns of expressions, and rules that rewrite nests whose values match them.

A pattern has the structure of the expressions that it matches. Named subexpressions are passed to the rewrite::

    op("arith.addf", op("accumulator"), op("arith.mulf", op("load", name="left"), op("load", name="right")))

matches the value of a nest that sums products of its inputs. Operands of a commutative op may be in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torchmdla.devices.cpu.ir.expressions import Expression, contents
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.target.machine import Machine

_COMMUTATIVE = frozenset(
    f"arith.{name}" for name in ("addf", "addi", "andi", "maximumf", "minimumf", "mulf", "muli", "ori", "xori")
)

Captured = Mapping[str, Expression]


@dataclass(frozen=True)
class Pattern:
    """Pattern of an expression.

    Attributes:
        op: the op of matching expressions; empty for any op.
        operands: the patterns of the operands; None for any operands.
        name: the name of the matched expression. Equal names in a pattern must match the same expression.
        type: the type of matching expressions; empty for any type.
        payload: the payload of matching expressions; None for any payload.
    """

    op: str
    operands: tuple[AnyPattern, ...] | None = None
    name: str = ""
    type: str = ""
    payload: Any = None

    def matches(self, expression: Expression) -> Iterator[dict[str, Expression]]:
        """Yield the named expressions of each match."""
        captures = {self.name: expression} if self.name else {}
        if (self.op and expression.op != self.op) or (self.type and expression.type != self.type):
            return
        if self.payload is not None and expression.payload != self.payload:
            return
        if self.operands is None:
            yield captures
        elif len(self.operands) == len(expression.operands):
            is_commutative = expression.op in _COMMUTATIVE
            for order in itertools.permutations(expression.operands) if is_commutative else [expression.operands]:
                pairs = zip(self.operands, order, strict=True)
                for inner in itertools.product(*(pattern.matches(operand) for pattern, operand in pairs)):
                    named = [captures, *inner]
                    merged = {name: each for part in named for name, each in part.items()}
                    if all(merged[name] is each for part in named for name, each in part.items()):
                        yield merged


@dataclass(frozen=True)
class Alternatives:
    """Pattern of the expressions that any of ``patterns`` matches. Matches of earlier patterns come first."""

    patterns: tuple[AnyPattern, ...]

    def matches(self, expression: Expression) -> Iterator[dict[str, Expression]]:
        return itertools.chain.from_iterable(pattern.matches(expression) for pattern in self.patterns)


AnyPattern = Pattern | Alternatives


def op(kind: str, *operands: AnyPattern, name: str = "", type: str = "", payload: Any = None) -> Pattern:
    """Return the pattern of an op. Without ``operands``, its operands may be any expressions."""
    return Pattern(kind, operands or None, name, type, payload)


def any_expression(name: str, type: str = "") -> Pattern:
    return Pattern("", None, name, type)


def any_of(*patterns: AnyPattern) -> Alternatives:
    return Alternatives(patterns)


def find_matches(pattern: Pattern, roots: Iterable[Expression]) -> Iterator[dict[str, Expression]]:
    """Yield the matches of ``pattern`` among all subexpressions of ``roots``."""
    for expression in contents(tuple(roots)).expressions:
        yield from pattern.matches(expression)


# The data that a rule has about the nest that it is about to rewrite.
Case = TypeVar("Case")


@dataclass(frozen=True, eq=False)
class Rule(Generic[Case]):
    """Rewrite of nests that preserves the values of programs.

    Attributes:
        value: the pattern of the value of a nest with one output; None for a rule that applies to all nests.
        reader: a function that is called once for the program and the machine. It returns a function of a nest and the
            pattern's named expressions. That function returns the data for ``requires`` and ``rewrite``, or None if the
            rewrite does not pay or does not apply.
        rewrite: a function that changes the nest in place, and may insert steps before it.
        requires: preconditions, by a description in words. If one of them were dropped, the rewrite would change the
            values of some program.
    """

    value: Pattern | None
    reader: Callable[[LoopProgram, Machine], Callable[[LoopNest, Captured], Case | None]]
    rewrite: Callable[[Case], None]
    requires: Mapping[str, Callable[[Case], bool]] = field(default_factory=dict)

    def case(self, read: Callable[[LoopNest, Captured], Case | None], step: LoopNest) -> Case | None:
        """Return the data of a possible rewrite of a nest, or None.

        The nest's value must match, and all requirements must hold.

        Args:
            read: the function that ``reader`` returned for the program.
            step: the nest.
        """
        if self.value is None:
            matches: Iterable[Captured] = [{}]
        else:
            matches = self.value.matches(step.values[0]) if len(step.values) == 1 else ()
        for match in matches:
            case = read(step, match)
            if case is not None and all(holds(case) for holds in self.requires.values()):
                return case
        return None


def apply(rules: Iterable[Rule[Any]], steps: LoopProgram, machine: Machine) -> None:
    """Rewrite every nest by each of the rules, in order. After each rule, steps with unused results are removed."""
    for rule in rules:
        read = rule.reader(steps, machine)
        for step in steps.nests():
            case = rule.case(read, step)
            if case is not None:
                rule.rewrite(case)
        steps.remove_unread()


# Patterns that many rules use.
SUM_OF_PRODUCTS = op(
    "arith.addf", op("accumulator"), op("arith.mulf", op("load", name="left"), op("load", name="right"))
)
# Products of quantised integers, those of a word at a time.
SUM_OF_WORDS = op(
    "arith.addi", op("accumulator"), op("dot", op("load", name="left"), op("load", name="right"), type="i32")
)
# Products of 32-bit integers in 64 bits, as in the Torch dialect.
SUM_OF_INTEGER_PRODUCTS = op(
    "arith.addi",
    op("accumulator"),
    op("arith.muli", op("arith.extsi", op("load", name="left")), op("arith.extsi", op("load", name="right"))),
)
