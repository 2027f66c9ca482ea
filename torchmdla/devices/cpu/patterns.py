"""Patterns of expressions, and rules that rewrite the nests whose values match them.

A pattern is written as what it matches looks like; what has a name is given to the rewrite::

    op("arith.addf", op("accumulator"), op("arith.mulf", op("load", name="left"), op("load", name="right")))

matches the value of a nest that sums products of its inputs, in any order of the operands of a commutative op.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torchmdla.devices.cpu.expressions import Expression, contents
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dead_code import remove_unread

_COMMUTATIVE = frozenset(
    f"arith.{name}" for name in ("addf", "addi", "andi", "maximumf", "minimumf", "mulf", "muli", "ori", "xori")
)

Captured = Mapping[str, Expression]


@dataclass(frozen=True)
class Pattern:
    """Expressions of an op, any if it is empty, whose operands match ``operands``, any if these are None. What has one
    name is one expression."""

    op: str
    operands: tuple[Pattern, ...] | None = None
    name: str = ""

    def matches(self, expression: Expression) -> Iterator[dict[str, Expression]]:
        """The expressions with names, for each way in which the pattern matches."""
        own = {self.name: expression} if self.name else {}
        if self.op and expression.op != self.op:
            return
        if self.operands is None:
            yield own
        elif len(self.operands) == len(expression.operands):
            is_commutative = expression.op in _COMMUTATIVE
            for order in itertools.permutations(expression.operands) if is_commutative else [expression.operands]:
                pairs = zip(self.operands, order, strict=True)
                for found in itertools.product(*(pattern.matches(operand) for pattern, operand in pairs)):
                    named = [own, *found]
                    merged = {name: each for part in named for name, each in part.items()}
                    if all(merged[name] is each for part in named for name, each in part.items()):
                        yield merged


def op(kind: str, *operands: Pattern, name: str = "") -> Pattern:
    """An op of these operands; without any, of whatever operands."""
    return Pattern(kind, operands or None, name)


def anything(name: str) -> Pattern:
    return Pattern("", None, name)


def within(pattern: Pattern, roots: Iterable[Expression]) -> Iterator[dict[str, Expression]]:
    """The matches of ``pattern`` among everything that ``roots`` are built of."""
    for expression in contents(tuple(roots)).expressions:
        yield from pattern.matches(expression)


# What a rule knows of the nest that it is about to rewrite.
Case = TypeVar("Case")


@dataclass(frozen=True, eq=False)
class Rule(Generic[Case]):
    """A rewrite of nests that keeps the values of programs.

    Attributes:
        value: the pattern of the value of a nest of one output; None for a rule of all nests.
        reader: is called once for the program and the machine. It returns a function of a nest and of what has names in
            the pattern. That one returns what ``requires`` and ``rewrite`` need to know, or None: then the rewrite does
            not pay, or there is nothing that it could rewrite.
        rewrite: changes the nest in place, and may put steps before it.
        requires: preconditions, by what they say in words. Without any one of them the rewrite would change what some
            program computes.
    """

    value: Pattern | None
    reader: Callable[[LoopProgram, Machine], Callable[[LoopNest, Captured], Case | None]]
    rewrite: Callable[[Case], None]
    requires: Mapping[str, Callable[[Case], bool]] = field(default_factory=dict)

    def case(self, read: Callable[[LoopNest, Captured], Case | None], step: LoopNest) -> Case | None:
        """Return what may be rewritten of a nest, where its value matches and all requirements hold.

        Args:
            read: what ``reader`` has returned for the program.
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
    """Rewrites every nest by each of the rules, in order. What nobody reads after one of them goes."""
    for rule in rules:
        read = rule.reader(steps, machine)
        for step in steps.nests():
            case = rule.case(read, step)
            if case is not None:
                rule.rewrite(case)
        remove_unread(steps)


# What many rules are about.
SUM_OF_PRODUCTS = op(
    "arith.addf", op("accumulator"), op("arith.mulf", op("load", name="left"), op("load", name="right"))
)
# Of integers of 32 bits in 64, as the Torch dialect's products have them.
SUM_OF_INTEGER_PRODUCTS = op(
    "arith.addi",
    op("accumulator"),
    op("arith.muli", op("arith.extsi", op("load", name="left")), op("arith.extsi", op("load", name="right"))),
)
