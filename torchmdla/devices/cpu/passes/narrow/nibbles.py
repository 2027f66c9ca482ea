"""Weights of 4 bits, two in a byte, for products of few rows that are bound by memory bandwidth.

Half of the bytes take half of the time. Products have the form::

    sum(x[row, t] * (w[column, t] - zero[column, group]) * scale[column, group])

A group is one or more of the reduced loops, those that zeros and scales vary with. A word of 32 bits holds eight
weights of a column, in the order of the terms, the first in the lowest bits. Columns are adjacent, so a vector of words
is eight vectors of weights::

    nest rows, columns, groups+, words+ {
      sum = -zero * sum(x[row, 8 * word + k] for k in range(8))
      for k in range(8): sum += x[row, 8 * word + k] * weight(packed >> 4 * k)
      result += sum * scale
    }

A weight is shifted to the highest bits and back, and converted. If the processor can look up floats by the lowest bits
of a word, the weight is shifted and looked up. Zeros and scales may vary along a sum by groups of terms. The sums of
words are independent of each other, so the processor overlaps them, and their rounding errors are those of short sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from torchmdla.compiler.sizes import AnySize, estimate, static
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.expressions import (
    Expression,
    constant,
    contents,
    load,
    map_loads,
    operation,
)
from torchmdla.devices.cpu.ir.loop_program import (
    LoopNest,
    LoopProgram,
    Users,
    is_copy,
    split_loop,
)
from torchmdla.devices.cpu.ir.patterns import Captured, Rule, any_expression, any_of, op
from torchmdla.devices.cpu.passes.narrow.formats import BYTE, WIDE
from torchmdla.devices.cpu.passes.narrow.layouts import shift, word_access
from torchmdla.devices.cpu.passes.narrow.sums import add_to_sum, compute_ahead, hoist
from torchmdla.devices.cpu.passes.packing import panel_width
from torchmdla.devices.cpu.passes.precompute import IsKnown, parameter_predicate
from torchmdla.devices.cpu.passes.producers import find_elementwise_producer
from torchmdla.devices.cpu.passes.rematerialise import operand_access
from torchmdla.devices.cpu.target.machine import Machine

# The bits of a weight, the number of weights in a byte, and the bytes of a word.
_BITS, _IN_BYTE, _BYTES = 4, 2, 4
_IN_WORD = _IN_BYTE * _BYTES

# The largest number of rows: with more, computing takes longer than reading weights of 8 bits.
_MOST_ROWS = 2

# Vectors of adjacent columns in a panel, best first, and the registers that each needs: for its sum, word, zero, scale
# and intermediate values.
_VECTORS = (4, 3, 2, 1)
_REGISTERS = 8


_INTEGER = op("load", name="integer", type=BYTE)
_FLOAT = op("arith.sitofp", any_of(_INTEGER, op("arith.extsi", _INTEGER)), type=WIDE)
_DIFFERENCE = any_of(op("arith.subf", _FLOAT, any_expression("zero")), _FLOAT)
_WEIGHTS = any_of(op("arith.mulf", _DIFFERENCE, any_expression("scale")), _DIFFERENCE)
_SUM_OF_PRODUCTS = op(
    "arith.addf", op("accumulator"), op("arith.mulf", any_expression("floats"), any_expression("weights"))
)


@dataclass
class _MixedProduct:
    """Sum of products in ``step`` of floats of the call and weights, signed integers that are known ahead.

    Attributes:
        factors: The parts of a product: ``floats``, which are read as floats and at most widened, the ``integer`` of a
            weight, and its ``zero`` and ``scale`` if it has any.
        rows: The loops that the floats alone vary with.
        groups: The loops over groups of terms of a sum; zeros and scales vary with them.
        terms: The loop over the terms of a group.
        before: The steps that have to run before the rewritten step.
    """

    steps: LoopProgram
    machine: Machine
    users: Users
    step: LoopNest
    factors: Captured
    rows: list[int]
    groups: list[int]
    terms: int
    before: list[LoopNest] = field(default_factory=list)

    @property
    def weights(self) -> Access:
        access: Access = self.factors["integer"].payload
        return access

    @property
    def columns(self) -> list[int]:
        """Return the loops that the weights alone vary with, ordered by falling stride of the result."""
        loops = [d for d in sorted(self.weights.loops) if not self.step.reduction[d] and self.step.sizes[d] != 1]
        distances = self.step.written_accesses[0].linearise(len(self.step.sizes)).factors
        return sorted(loops, key=lambda loop: -estimate(distances[loop]))

    def rewrite(self) -> None:
        """Rewrite the step for weights of 4 bits, and insert the steps that have to run before it."""
        step = self.step
        self._split_columns()
        self._split(self.terms, (static(step.sizes[self.terms]) // _IN_WORD, _BYTES, _IN_BYTE))
        self._in_word = [self.terms, self.terms + 1, self.terms + 2]
        value = add_to_sum(self._sum_word(self._pack_weights()))
        self.steps.replace_step(step, [*self.before, step])
        step.sizes = tuple(1 if loop in self._in_word[1:] else size for loop, size in enumerate(step.sizes))
        step.values = (value,)

    def _split_columns(self) -> None:
        """Split the innermost loop over columns into panels of several vectors, if these divide it."""
        column = self.columns[-1]
        count, machine = self.step.sizes[column], self.machine
        vectors = [n for n in _VECTORS if n * _REGISTERS <= machine.registers]
        width = panel_width(count, machine.vector_bytes // 4, vectors, machine.threads)
        self._split(column, (count // width, width) if width else (1, count))

    def _split(self, loop: int, sizes: Sequence[AnySize]) -> None:
        split_loop(self.step, loop, sizes)
        (self.factors,) = _match_factors(self.step)
        self.rows, self.groups, (self.terms,) = (
            [each + (len(sizes) - 1) * (each > loop) for each in loops]
            for loops in (self.rows, self.groups, [self.terms])
        )

    def _sum_word(self, word: Expression) -> Expression:
        """Return the sum of the products of a word's weights, with their zero and scale applied."""
        factors, (_, *within) = self.factors, self._in_word
        total = None
        if "zero" in factors:
            negative = operation("arith.negf", [factors["floats"]], WIDE)
            loops = [*self.rows, *self.groups, *self._in_word]
            sum_of_floats = compute_ahead(self.step, negative, loops, self.before, within)
            total = operation("arith.mulf", [self._read_in_panels(factors["zero"]), sum_of_floats], WIDE)
        for number in range(_IN_WORD):
            (floats,) = map_loads((factors["floats"],), partial(self._term_access, number=number))
            pair = [floats, _weight(word, number)]
            total = operation("math.fma", [*pair, total], WIDE) if total else operation("arith.mulf", pair, WIDE)
        assert total is not None
        if "scale" in factors:
            total = operation("arith.mulf", [total, self._read_in_panels(factors["scale"])], WIDE)
        return total

    def _term_access(self, access: Access, number: int) -> Access:
        """Return an access at term ``number`` of a word."""
        _, byte, half = self._in_word
        return access.at_iteration(byte, number // _IN_BYTE).at_iteration(half, number % _IN_BYTE)

    def _pack_weights(self) -> Expression:
        """Return a word of the weights, which are stored panel by panel.

        A weight of more than 4 bits fails the call.
        """
        word, byte, half = self._in_word
        *panels, lane = self.columns
        order = [*panels, *self.groups, word, lane, byte]
        low, high = (load(self.weights.at_iteration(half, k)) for k in range(_IN_BYTE))
        lower = operation("arith.andi", [low, constant((1 << _BITS) - 1, BYTE)], BYTE)
        upper = operation("arith.shli", [high, constant(_BITS, BYTE)], BYTE)
        packed, checks = operation("arith.ori", [lower, upper], BYTE), [_has_few_bits(low), _has_few_bits(high)]
        return load(word_access(compute_ahead(self.step, packed, order, self.before, checks=checks).payload, byte))

    def _read_in_panels(self, number: Expression) -> Expression:
        """Return a zero or a scale in the order in which packed weights are read, if possible as an 8-bit integer."""
        *panels, lane = self.columns
        integer = self._integer(number)
        hoisted = hoist(self.step, integer or number, self.before, [*panels, *self.groups, lane])
        return operation("arith.sitofp", [hoisted], WIDE) if integer else hoisted

    def _integer(self, number: Expression) -> Expression | None:
        """Return the integer of 8 bits that a number was converted from, or None."""
        if number.op == "load" and (producer := find_elementwise_producer(self.users, number.payload)) is not None:
            (number,) = map_loads(producer.values, partial(operand_access, producer=producer, read=number.payload))
        while number.op in ("arith.sitofp", "arith.extsi"):
            (number,) = number.operands
        return number if number.op == "load" and number.type == BYTE else None


def _match_factors(step: LoopNest) -> list[Captured]:
    """Return the factors whose products a step sums, in each order in which they match."""
    matches = _SUM_OF_PRODUCTS.matches(step.values[0])
    products = [(match, next(_WEIGHTS.matches(match["weights"]), {})) for match in matches]
    return [{**match, **weights} for match, weights in products if weights]


def _match_product(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, users: Users, step: LoopNest
) -> _MixedProduct | None:
    """Return the sum of products of a step, if it multiplies floats of the call with integers that are known."""
    matches = _match_factors(step)
    if step.tables or step.indexed_loops or len(matches) != 1:
        return None
    (factors,) = matches
    weights, body = factors["integer"].payload, contents((factors["floats"],))
    if len(body.loads) != 1 or len(body.expressions) > 2 or not is_known(weights) or is_known(body.loads[0]):
        return None
    (read,) = body.loads
    numbers = contents(tuple(factors[name] for name in ("zero", "scale") if name in factors))
    groups = numbers.loops.union(*(access.loops for access in numbers.loads))
    loops = [d for d, size in enumerate(step.sizes) if size != 1]
    rows = [d for d in loops if d in read.loops and not step.reduction[d]]
    terms = [d for d in loops if step.reduction[d] and d not in groups]
    if len(terms) != 1 or terms[0] not in read.loops & weights.loops or (groups | weights.loops).intersection(rows):
        return None
    others = [d for d in loops if step.reduction[d] and d not in terms]
    return _MixedProduct(steps, machine, users, step, factors, rows, others, terms[0])


def _match_nibbles(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, users: Users, step: LoopNest, _: Captured
) -> _MixedProduct | None:
    product = _match_product(steps, machine, is_known, users, step) if machine.fused else None
    is_narrow = product is not None and _bits(product.weights, users) == _BITS
    return product if product is not None and is_narrow and _is_profitable(product, machine) else None


def _bits(access: Access, users: Users) -> int:
    """Return the number of bits that the values read at ``access`` need; 0 if that is unknown."""
    while (producer := find_elementwise_producer(users, access)) is not None and is_copy(producer):
        (access,) = producer.inputs
    return access.buffer.bits


def _is_profitable(product: _MixedProduct, machine: Machine) -> bool:
    """Return whether few rows walk many weights, whose terms fill words."""
    sizes = product.step.sizes
    count = math.prod(estimate(sizes[d]) for d in product.weights.loops)
    rows = math.prod(estimate(sizes[d]) for d in product.rows)
    terms = sizes[product.terms]
    in_words = isinstance(terms, int) and terms % _IN_WORD == 0
    return in_words and bool(product.columns) and rows <= _MOST_ROWS and count >= machine.second_level // 4


USE_NIBBLES = Rule(
    _SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_match_nibbles, steps, machine, parameter_predicate(steps), Users(steps.steps)),
    _MixedProduct.rewrite,
    {
        "nothing is checked of the products": lambda case: not case.step.checks,
    },
)


def _weight(word: Expression, number: int) -> Expression:
    """Return the weight ``number`` of a word as a float."""
    highest = 32 - _BITS
    integer = shift("arith.shrsi", shift("arith.shli", word, highest - _BITS * number), highest)
    return operation("arith.sitofp", [integer], WIDE)


def _has_few_bits(value: Expression) -> Expression:
    """Return an expression for whether an integer of 8 bits fits into the bits of a weight."""
    without_sign = operation("arith.addi", [value, constant(1 << (_BITS - 1), BYTE)], BYTE)
    return operation("arith.cmpi", [without_sign, constant(1 << _BITS, BYTE)], "i1", "{predicate = 6 : i64}")
