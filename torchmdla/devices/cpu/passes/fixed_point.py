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
from functools import partial

from torchmdla.compiler.sizes import estimate, quotient, static
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import Expression, accessing, accumulator, constant, load, operation, reduced
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest, LoopProgram, Users, is_copy
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dead_code import remove_unread
from torchmdla.devices.cpu.passes.digits import DIGITS, Digits
from torchmdla.devices.cpu.passes.dot_layouts import WORD, WORD_BYTES, without, word_along
from torchmdla.devices.cpu.passes.integer_sums import MOST_TERMS, ahead, scale_result
from torchmdla.devices.cpu.passes.makers import elementwise_maker
from torchmdla.devices.cpu.passes.mixed_products import MixedProduct, mixed_product
from torchmdla.devices.cpu.passes.precompute import known_accesses
from torchmdla.devices.cpu.passes.rematerialise import through

_SUM, _WIDE, _NARROW = "i32", "f32", "i8"

# The bits of a nibble: two of them lie in a byte.
_FEW = 4

# Rows for which weights are read as they are: for more of them, sums of floats take no longer, and need no digits. What
# becomes of each group's sums takes its time as well.
_MOST_ROWS, _MOST_ROWS_OF_GROUPS = 8, 2

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
            rewriter = _Rewriter(product, Users(steps.steps), machine.vector_bytes // WORD_BYTES)
            steps.steps[place:place] = rewriter.rewrite()
    remove_unread(steps)


def _is_worth_it(product: MixedProduct, machine: Machine) -> bool:
    """Whether few rows of floats walk many weights."""
    sizes = product.step.sizes
    terms = sizes[product.terms]
    count = math.prod(estimate(sizes[d]) for d in product.weights.integer.loops)
    if not isinstance(terms, int) or terms % WORD_BYTES or count < machine.second_level // 4:
        return False
    rows = math.prod(estimate(sizes[d]) for d in product.rows)
    return rows <= (_MOST_ROWS_OF_GROUPS if product.groups else _MOST_ROWS) and terms <= MOST_TERMS


class _Rewriter:
    """Lets one step sum products by digits. ``lanes``: floats of a vector."""

    def __init__(self, product: MixedProduct, users: Users, lanes: int) -> None:
        self._product, self._step, self._users, self._lanes = product, product.step, users, lanes
        self._before: list[LoopNest] = []
        terms = static(self._step.sizes[product.terms])
        are_few = self._bits(product.weights.integer) == _FEW and terms % (2 * WORD_BYTES) == 0
        # How many weights lie in a byte, and what they are larger by than with a sign.
        self._shared, self._offset = (2, 8) if are_few else (1, 128)

    def rewrite(self) -> list[LoopNest]:
        """Rewrites the step; returns what has to come before it."""
        product, step = self._product, self._step
        self._split_columns()
        count = static(step.sizes[product.terms]) // (self._shared * WORD_BYTES)
        product.split(product.terms, (count, self._shared, WORD_BYTES))
        self._words = product.terms, product.terms + 1, product.terms + 2
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
        packed = load(self._packed())
        totals = [accumulator(k, _SUM) for k in range(DIGITS)]
        for part in range(self._shared):
            words = _nibbles(packed, part) if self._shared > 1 else packed
            digits = [load(self._digit(k, part)) for k in range(DIGITS)]
            totals = [_op("addi", t, operation("dot", [words, d], _SUM)) for t, d in zip(totals, digits, strict=True)]
        step.outputs = tuple(replace(output, buffer=Buffer("temporary", _SUM, output.buffer.sizes)) for _ in totals)
        step.values, step.initial = tuple(totals), constant(0, _SUM)
        step.sizes = tuple(1 if loop in self._words[1:] else size for loop, size in enumerate(step.sizes))

    def _total(self) -> Expression:
        """What the sums of digits are together, in units: as the weights stand for floats."""
        # What is packed has no sign, so that each digit counts too often.
        excess = self._digits.sums_of_digits(self._buffer, -self._offset)
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
        """A word of the weights without a sign, which lie panel by panel; of two, one lies in the upper bits."""
        word, part, element = self._words
        *panels, lane = self._columns()
        order = [*panels, *self._product.groups, word, lane, element]
        buffer = Buffer("temporary", _NARROW, tuple(self._step.sizes[loop] for loop in order))
        parts = [load(_at(self._product.weights.integer, part, number).over(order)) for number in range(self._shared)]
        nest = LoopNest.elementwise(buffer.sizes, Access.whole(buffer), self._without_sign(parts[0]))
        if self._shared > 1:
            low, high = map(self._without_sign, parts)
            high_bits = operation("arith.shli", [high, constant(_FEW, _NARROW)], _NARROW)
            nest.values = (operation("arith.ori", [low, high_bits], _NARROW),)
            nest.checks = tuple(_is_few(value) for value in (low, high))
        self._before.append(replace(nest, nodes=self._step.nodes))
        return word_along(Access.of_loops(buffer, order, len(self._step.sizes)), element)

    def _without_sign(self, weight: Expression) -> Expression:
        # As a byte: 128 and -128 are the same bits.
        offset = self._offset - 256 * (self._offset > 127)
        return operation("arith.addi", [weight, constant(offset, _NARROW)], _NARROW)

    def _in_panels(self, number: Expression) -> Expression:
        """A zero or a scale in the order in which packed weights are read; of an integer of 8 bits as that."""
        *panels, lane = self._columns()
        order = [*panels, *self._product.groups, lane]
        integer = self._integer(number)
        if integer is None:
            return ahead(self._step, number, self._before, order)
        return operation("arith.sitofp", [ahead(self._step, integer, self._before, order)], _WIDE)

    def _integer(self, number: Expression) -> Expression | None:
        """The integer of 8 bits that a number is a float of."""
        if number.op == "load" and (maker := elementwise_maker(self._users, number.payload)) is not None:
            (number,) = accessing(maker.values, partial(through, maker=maker, read=number.payload))
        while number.op in ("arith.sitofp", "arith.extsi"):
            (number,) = number.operands
        return number if number.op == "load" and number.type == _NARROW else None

    def _columns(self) -> list[int]:
        """The loops over columns, the one within panels last."""
        return [d for d in sorted(self._product.weights.integer.loops) if not self._step.reduction[d]]

    def _of_row(self, buffer: Buffer, digit: int, terms: Sequence[AffineExpr] = ()) -> Access:
        """What there is of one digit of a row, or of its group; of one of its ``terms``."""
        loops = len(self._step.sizes)
        rows, groups = (
            [AffineExpr.of_loop(d, loops) for d in own] for own in (self._product.rows, self._product.groups)
        )
        return Access(buffer, (*rows, AffineExpr((0,) * loops, digit), *groups, *terms))

    def _digit(self, digit: int, part: int) -> Access:
        """One digit of the numbers that a part of a packed word is multiplied by."""
        loops = len(self._step.sizes)
        zero = AffineExpr((0,) * loops)
        terms = AffineExpr.of_loop(self._words[0], loops), replace(zero, constant=part), zero
        return replace(self._of_row(self._buffer, digit, terms), word=WORD)

    def _bits(self, access: Access) -> int:
        """How many bits are enough for integers of 8 bits."""
        while (maker := elementwise_maker(self._users, access)) is not None and is_copy(maker):
            (access,) = maker.inputs
        return access.buffer.bits


def _at(access: Access, loop: int, number: int) -> Access:
    """An access at one iteration of a loop."""
    moved = (replace(i, constant=i.constant + number * i.factors[loop]) for i in access.indices)
    return replace(access, indices=tuple(replace(i, factors=without(i.factors, loop)) for i in moved))


def _nibbles(word: Expression, part: int) -> Expression:
    """The lower or the upper bits of each byte of a word."""
    shifted = _op("shrui", word, constant(_FEW * part, _SUM)) if part else word
    return _op("andi", shifted, constant(0x0F0F0F0F, _SUM))


def _is_few(nibble: Expression) -> Expression:
    """Whether an integer of 8 bits is one of 4 without a sign."""
    most = constant(1 << _FEW, _NARROW)
    return operation("arith.cmpi", [nibble, most], "i1", "{predicate = 6 : i64}")


def _op(name: str, left: Expression, right: Expression) -> Expression:
    return operation(f"arith.{name}", [left, right], _SUM)


def _times(left: Expression, right: Expression) -> Expression:
    return operation("arith.mulf", [left, right], _WIDE)
