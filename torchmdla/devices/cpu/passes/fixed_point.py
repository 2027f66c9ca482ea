"""Products of floats with integers of few bits, in integers: floats as digits of 8 bits.

A row of floats is ``unit * v``, where ``v`` are integers of four digits (:mod:`~torchmdla.devices.cpu.passes.digits`).
So a sum of products is four sums of products of bytes, of which processors add up four in one instruction::

    sum(x * w) = unit * sum(256**k * sum(digit[k] * w) for k in range(4))

These sums are exact. So Ozaki's scheme multiplies matrices with the units that there are (K. Ozaki, T. Ogita, S. Oishi,
S. M. Rump, Error-free transformations of matrix multiplication by using fast routines of matrix multiplication and its
applications, 2012; H. Ootomo, K. Ozaki, R. Yokota, DGEMM on integer matrix multiplication unit, 2024).

Where few rows walk weights that come from memory, these are read as they are, without an instruction to widen them.
Scales and zeros of the weights may vary along the sum, by groups of terms: each group is a sum of integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchmdla.compiler.sizes import estimate, quotient, static
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import Expression, accumulator, constant, load, operation, reduced
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest, LoopProgram
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dead_code import remove_unread
from torchmdla.devices.cpu.passes.digits import DIGITS, Digits
from torchmdla.devices.cpu.passes.dot_layouts import WORD, WORD_BYTES, word_along
from torchmdla.devices.cpu.passes.integer_sums import MOST_TERMS, ahead, scale_result
from torchmdla.devices.cpu.passes.mixed_products import MixedProduct, mixed_product
from torchmdla.devices.cpu.passes.precompute import known_accesses

_SUM, _WIDE, _NARROW = "i32", "f32", "i8"

# What a byte with a sign becomes without one by: half of its range.
_OFFSET = 128

# Rows for which weights are read as they are: for more of them, sums of floats take no longer, and need no digits.
_MOST_ROWS = 8

# Vectors of columns that lie next to each other in a pack, best first.
_VECTORS = (4, 3, 2, 1)


def use_fixed_point(steps: LoopProgram, machine: Machine) -> None:
    """Sums products of floats with integers that come from memory by digits, in place."""
    if not machine.dots_bytes:
        return
    is_known = known_accesses(steps)
    for step in steps.nests():
        product = mixed_product(step, is_known)
        if product is not None and _is_worth_it(product, machine):
            place = steps.steps.index(step)
            steps.steps[place:place] = _Rewriter(product, machine.vector_bytes // WORD_BYTES).rewrite()
    remove_unread(steps)


def _is_worth_it(product: MixedProduct, machine: Machine) -> bool:
    """Whether few rows of floats walk many weights."""
    sizes = product.step.sizes
    terms = sizes[product.terms]
    count = math.prod(estimate(sizes[d]) for d in product.weights.integer.loops)
    if not isinstance(terms, int) or terms % WORD_BYTES or not machine.streams(count):
        return False
    rows = math.prod(estimate(sizes[d]) for d in product.rows)
    return rows <= _MOST_ROWS and terms <= MOST_TERMS


class _Rewriter:
    """Lets one step sum products by digits. ``lanes``: floats of a vector."""

    def __init__(self, product: MixedProduct, lanes: int) -> None:
        self._product, self._step, self._lanes = product, product.step, lanes
        self._before: list[LoopNest] = []

    def rewrite(self) -> list[LoopNest]:
        """Rewrites the step; returns what has to come before it."""
        product, step = self._product, self._step
        self._split_columns()
        terms = static(step.sizes[product.terms])
        product.split(product.terms, (terms // WORD_BYTES, WORD_BYTES))
        self._words = product.terms, product.terms + 1
        self._digits = Digits(step, product.floats, product.rows, product.groups, self._words, self._before)
        self._buffer = self._digits.buffer()
        if product.groups:
            self._sum_groups()
        else:
            scale_result(step, self._total(), self._digits.unit())
            self._accumulate(step)
        return self._before

    def _split_columns(self) -> None:
        """Splits the largest loop over columns into panels of some vectors, where these divide it."""
        column = self._product.columns()[-1]
        count = self._step.sizes[column]
        widths = [n * self._lanes for n in _VECTORS if quotient(count, n * self._lanes) is not None]
        self._product.split(column, (count // widths[0], widths[0]) if widths else (1, count))

    def _sum_groups(self) -> None:
        """Lets a step before this one sum each group, and this one the groups."""
        step, product = self._step, self._product
        *panels, lane = self._columns()
        order = [*product.rows, *panels, *product.groups, lane]
        sums = Buffer("temporary", _WIDE, tuple(step.sizes[loop] for loop in order))
        by_group = replace(
            step,
            reduction=tuple(loop in self._words for loop in range(len(step.sizes))),
            outputs=(Access.of_loops(sums, order, len(step.sizes)),),
            epilogue=None,
        )
        by_group.epilogue = Epilogue(by_group.outputs, (self._total(),))
        self._accumulate(by_group)
        self._before.append(by_group)
        (group,) = by_group.written_accesses
        step.sizes = tuple(1 if loop in self._words else size for loop, size in enumerate(step.sizes))
        step.values = (operation("arith.addf", [accumulator(0, _WIDE), load(group)], _WIDE),)
        scale_result(step, reduced(0, _WIDE), self._digits.unit())

    def _accumulate(self, step: LoopNest) -> None:
        """Lets a step sum products in integers, those of each digit on their own."""
        (output,) = step.outputs
        word = load(self._packed())
        digits = [load(replace(self._of_row(self._buffer, k, self._words), word=WORD)) for k in range(DIGITS)]
        step.outputs = tuple(replace(output, buffer=Buffer("temporary", _SUM, output.buffer.sizes)) for _ in digits)
        products = [operation("dot", [word, digit], _SUM) for digit in digits]
        step.values = tuple(_op("addi", accumulator(k, _SUM), product) for k, product in enumerate(products))
        step.initial = constant(0, _SUM)
        step.sizes = tuple(1 if loop == self._words[1] else size for loop, size in enumerate(step.sizes))

    def _total(self) -> Expression:
        """What the sums of digits are together, in units: as the weights stand for floats."""
        # What is packed has no sign, so that each digit counts too often.
        excess = self._digits.sums_of_digits(self._buffer, -_OFFSET)
        *lower, total = (
            operation("arith.sitofp", [_op("addi", reduced(k, _SUM), load(self._of_row(excess, k)))], _WIDE)
            for k in range(DIGITS)
        )
        for digit in reversed(lower):
            total = operation("math.fma", [total, constant(256.0, _WIDE), digit], _WIDE)
        weights = self._product.weights
        if weights.zero is not None:
            total = operation("arith.subf", [total, _times(self._in_panels(weights.zero), self._digits.sums())], _WIDE)
        return total if weights.scale is None else _times(total, self._in_panels(weights.scale))

    def _packed(self) -> Access:
        """A word of the weights without a sign, which lie panel by panel."""
        step, (word, element) = self._step, self._words
        *panels, lane = self._columns()
        order = [*panels, *self._product.groups, word, lane, element]
        buffer = Buffer("temporary", _NARROW, tuple(step.sizes[loop] for loop in order))
        read = load(self._product.weights.integer.over(order))
        value = operation("arith.xori", [read, constant(-_OFFSET, _NARROW)], _NARROW)
        self._before.append(replace(LoopNest.elementwise(buffer.sizes, Access.whole(buffer), value), nodes=step.nodes))
        return word_along(Access.of_loops(buffer, order, len(step.sizes)), element)

    def _in_panels(self, number: Expression) -> Expression:
        """A zero or a scale in the order in which packed weights are read."""
        *panels, lane = self._columns()
        return ahead(self._step, number, self._before, [*panels, *self._product.groups, lane])

    def _columns(self) -> list[int]:
        """The loops over columns, the one within panels last."""
        return [d for d in sorted(self._product.weights.integer.loops) if not self._step.reduction[d]]

    def _of_row(self, buffer: Buffer, digit: int, words: Sequence[int] = ()) -> Access:
        """What there is of one digit of a row, or of its group; of a word, if ``words`` are the loops over these."""
        loops = len(self._step.sizes)
        rows, groups = (
            [AffineExpr.of_loop(d, loops) for d in own] for own in (self._product.rows, self._product.groups)
        )
        terms = [AffineExpr.of_loop(words[0], loops), AffineExpr((0,) * loops)] if words else []
        return Access(buffer, (*rows, AffineExpr((0,) * loops, digit), *groups, *terms))


def _op(name: str, left: Expression, right: Expression) -> Expression:
    return operation(f"arith.{name}", [left, right], _SUM)


def _times(left: Expression, right: Expression) -> Expression:
    return operation("arith.mulf", [left, right], _WIDE)
