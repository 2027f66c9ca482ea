"""Weights of 4 bits, two in a byte, for products of few rows that are bound by memory bandwidth.

Half of the bytes take half of the time. A word of 32 bits holds eight weights of a column, in the order of the terms,
the first in the lowest bits. Columns are adjacent, so a vector of words is eight vectors of weights::

    nest rows, columns, groups, words+ { for k in range(8): sum += x[row, 8 * word + k] * weight(packed >> 4 * k) }
                              then { sums[row, column, group] = (sum - zero * sum(x)) * scale }
    nest rows, columns, groups+ { result += sums[row, column, group] }

A weight is shifted to the highest bits and back, and converted. If the processor can look up floats by the lowest bits
of a word, the weight is shifted and looked up. Zeros and scales may vary along a sum by groups of terms. Long sums
without groups are split into groups as well, as the rounding error of a sum grows with the number of additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, estimate, quotient, static
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import (
    Expression,
    accumulator,
    constant,
    load,
    map_loads,
    operation,
    reduced,
)
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest, LoopProgram, Users, has_zero_initial, is_copy
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dot_layouts import WORD, word_access
from torchmdla.devices.cpu.passes.integer_sums import hoist
from torchmdla.devices.cpu.passes.mixed_products import SUM_OF_MIXED_PRODUCTS, MixedProduct, mixed_product
from torchmdla.devices.cpu.passes.precompute import parameter_predicate
from torchmdla.devices.cpu.passes.producers import find_elementwise_producer
from torchmdla.devices.cpu.passes.rematerialise import operand_access
from torchmdla.devices.cpu.patterns import Captured, Rule

_WIDE, _NARROW = "f32", "i8"

# The bits of a weight, the number of weights in a byte, and the bytes of a word.
_BITS, _IN_BYTE, _BYTES = 4, 2, 4
_IN_WORD = _IN_BYTE * _BYTES

# The largest number of rows: with more, computing takes longer than reading weights of 8 bits.
_MOST_ROWS = 2

# The shortest sum without groups that is split, and the longest part that it is split into.
_LONGEST, _PART = 512, 256

# Vectors of adjacent columns in a panel, best first.
_VECTORS = (4, 3, 2, 1)


@dataclass(frozen=True)
class _Candidate:
    """Product that reads weights of 4 bits; ``lanes`` is the number of floats in a vector."""

    steps: LoopProgram
    users: Users
    product: MixedProduct
    lanes: int


def _match_product(steps: LoopProgram, machine: Machine) -> Callable[[LoopNest, Captured], _Candidate | None]:
    is_known, users = parameter_predicate(steps), Users(steps.steps)

    def candidate(step: LoopNest, _: Captured) -> _Candidate | None:
        product = mixed_product(step, is_known) if machine.fused else None
        if product is None or _bits(product.weights.integer, users) != _BITS or not _is_profitable(product, machine):
            return None
        return _Candidate(steps, users, product, machine.vector_bytes // 4)

    return candidate


def _use_nibbles(case: _Candidate) -> None:
    before = _Rewriter(case.product, case.users, case.lanes).rewrite()
    case.steps.replace_step(case.product.step, [*before, case.product.step])


USE_NIBBLES = Rule(
    SUM_OF_MIXED_PRODUCTS,
    _match_product,
    _use_nibbles,
    {
        "the sum starts from zero": lambda case: has_zero_initial(case.product.step),
        "nothing is checked of the products": lambda case: not case.product.step.checks,
    },
)


def _bits(access: Access, users: Users) -> int:
    """Return the number of bits that the values read at ``access`` need; 0 if that is unknown."""
    while (producer := find_elementwise_producer(users, access)) is not None and is_copy(producer):
        (access,) = producer.inputs
    return access.buffer.bits


def _is_profitable(product: MixedProduct, machine: Machine) -> bool:
    """Return whether few rows walk many weights, whose terms fill words."""
    sizes = product.step.sizes
    count = math.prod(estimate(sizes[d]) for d in product.weights.integer.loops)
    rows = math.prod(estimate(sizes[d]) for d in product.rows)
    terms = sizes[product.terms]
    in_words = isinstance(terms, int) and terms % _IN_WORD == 0
    return in_words and bool(product.columns()) and rows <= _MOST_ROWS and count >= machine.second_level // 4


class _Rewriter:
    """Rewriter of one step that sums products with packed weights; ``lanes`` is the number of floats in a vector."""

    def __init__(self, product: MixedProduct, users: Users, lanes: int) -> None:
        self._product, self._step, self._users, self._lanes = product, product.step, users, lanes
        self._before: list[LoopNest] = []

    def rewrite(self) -> list[LoopNest]:
        """Rewrite the step and return the steps that have to run before it."""
        product, step = self._product, self._step
        self._split_columns()
        self._split_sum()
        product.split(product.terms, (static(step.sizes[product.terms]) // _IN_WORD, _BYTES, _IN_BYTE))
        self._terms = [product.terms, product.terms + 1, product.terms + 2]
        *panels, lane = self._product.columns()
        order = [*product.rows, *panels, *product.groups, lane]
        sums = Buffer("temporary", _WIDE, self._sizes(order))
        by_group = replace(
            step,
            sizes=tuple(1 if loop in self._terms[1:] else size for loop, size in enumerate(step.sizes)),
            reduction=tuple(loop in self._terms for loop in range(len(step.sizes))),
            outputs=(Access.of_loops(replace(sums), order, len(step.sizes)),),
            values=(self._accumulate(load(self._pack_weights())),),
            epilogue=Epilogue((Access.of_loops(sums, order, len(step.sizes)),), (self._scale_sum(),)),
        )
        self._before.append(by_group)
        step.sizes = tuple(1 if loop in self._terms else size for loop, size in enumerate(step.sizes))
        group = load(by_group.written_accesses[0])
        step.values = (operation("arith.addf", [accumulator(0, _WIDE), group], _WIDE),)
        return self._before

    def _split_columns(self) -> None:
        """Split the innermost loop over columns into panels of several vectors, if these divide it."""
        column = self._product.columns()[-1]
        count = self._step.sizes[column]
        widths = [n * self._lanes for n in _VECTORS if quotient(count, n * self._lanes) is not None]
        self._product.split(column, (count // widths[0], widths[0]) if widths else (1, count))

    def _split_sum(self) -> None:
        product = self._product
        terms = static(self._step.sizes[product.terms])
        parts = [part for part in range(_PART, 0, -_IN_WORD) if terms % part == 0]
        if product.groups or terms < _LONGEST or not parts:
            return
        product.split(product.terms, (terms // parts[0], parts[0]))
        product.groups, product.terms = [product.terms], product.terms + 1

    def _accumulate(self, word: Expression) -> Expression:
        """Return the accumulator after the products of a word's weights were added."""
        value = accumulator(0, _WIDE)
        for number in range(_IN_WORD):
            (floats,) = map_loads((self._product.floats,), partial(self._term_access, number=number))
            value = operation("math.fma", [floats, _weight(word, number), value], _WIDE)
        return value

    def _term_access(self, access: Access, number: int) -> Access:
        """Return an access at term ``number`` of a word."""
        _, byte, half = self._terms
        return access.at_iteration(byte, number // _IN_BYTE).at_iteration(half, number % _IN_BYTE)

    def _scale_sum(self) -> Expression:
        """Return the sum of a group with the zeros and scales of the weights applied."""
        weights, total = self._product.weights, reduced(0, _WIDE)
        if weights.zero is not None:
            excess = operation("arith.mulf", [self._read_in_panels(weights.zero), self._sum_of_floats()], _WIDE)
            total = operation("arith.subf", [total, excess], _WIDE)
        if weights.scale is not None:
            total = operation("arith.mulf", [total, self._read_in_panels(weights.scale)], _WIDE)
        return total

    def _sum_of_floats(self) -> Expression:
        """Return the sum of a group's floats."""
        outer = [*self._product.rows, *self._product.groups]
        loops = [*outer, *self._terms]
        (floats,) = map_loads((self._product.floats,), lambda access: access.restrict(loops))
        sums = Buffer("temporary", _WIDE, self._sizes(outer))
        self._before.append(
            LoopNest(
                self._sizes(loops),
                tuple(loop in self._terms for loop in loops),
                (Access.of_loops(sums, range(len(outer)), len(loops)),),
                (operation("arith.addf", [accumulator(0, _WIDE), floats], _WIDE),),
                constant(0.0, _WIDE),
                nodes=self._step.nodes,
            )
        )
        return load(Access.of_loops(sums, outer, len(self._step.sizes)))

    def _pack_weights(self) -> Access:
        """Return the access to a word of the weights, which are stored panel by panel.

        A weight of more than 4 bits fails the call.
        """
        word, byte, half = self._terms
        *panels, lane = self._product.columns()
        order = [*panels, *self._product.groups, word, lane, byte]
        buffer = Buffer("temporary", _NARROW, self._sizes(order))
        low, high = (load(self._product.weights.integer.at_iteration(half, k).restrict(order)) for k in range(_IN_BYTE))
        lower = operation("arith.andi", [low, constant((1 << _BITS) - 1, _NARROW)], _NARROW)
        upper = operation("arith.shli", [high, constant(_BITS, _NARROW)], _NARROW)
        nest = LoopNest.elementwise(
            buffer.sizes, Access.identity(buffer), operation("arith.ori", [lower, upper], _NARROW)
        )
        self._before.append(replace(nest, checks=(_has_few_bits(low), _has_few_bits(high)), nodes=self._step.nodes))
        return word_access(Access.of_loops(buffer, order, len(self._step.sizes)), byte)

    def _read_in_panels(self, number: Expression) -> Expression:
        """Return a zero or a scale in the order in which packed weights are read, if possible as an 8-bit integer."""
        *panels, lane = self._product.columns()
        order = [*panels, *self._product.groups, lane]
        integer = self._integer(number)
        if integer is None:
            return hoist(self._step, number, self._before, order)
        return operation("arith.sitofp", [hoist(self._step, integer, self._before, order)], _WIDE)

    def _integer(self, number: Expression) -> Expression | None:
        """Return the integer of 8 bits that a number was converted from, or None."""
        if number.op == "load" and (producer := find_elementwise_producer(self._users, number.payload)) is not None:
            (number,) = map_loads(producer.values, partial(operand_access, producer=producer, read=number.payload))
        while number.op in ("arith.sitofp", "arith.extsi"):
            (number,) = number.operands
        return number if number.op == "load" and number.type == _NARROW else None

    def _sizes(self, loops: Sequence[int]) -> tuple[AnySize, ...]:
        return tuple(self._step.sizes[loop] for loop in loops)


def _weight(word: Expression, number: int) -> Expression:
    """Return the weight ``number`` of a word as a float."""
    highest = 32 - _BITS
    integer = _op("shrsi", _op("shli", word, highest - _BITS * number), highest)
    return operation("arith.sitofp", [integer], _WIDE)


def _has_few_bits(value: Expression) -> Expression:
    """Return an expression for whether an integer of 8 bits fits into the bits of a weight."""
    without_sign = operation("arith.addi", [value, constant(1 << (_BITS - 1), _NARROW)], _NARROW)
    return operation("arith.cmpi", [without_sign, constant(1 << _BITS, _NARROW)], "i1", "{predicate = 6 : i64}")


def _op(name: str, word: Expression, bits: int) -> Expression:
    return operation(f"arith.{name}", [word, constant(bits, WORD)], WORD) if bits else word
