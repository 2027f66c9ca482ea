"""Rows of floats as numbers with one fixed point, in four digits of 8 bits each.

``x = unit * v`` and ``v = sum(256**k * digit[k] for k in range(4))``, where ``unit`` is ``2**-29`` times the power of
two that the row's largest number is rounded down to. What is cut off of ``x`` is less than ``unit``.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchmdla.compiler.sizes import AnySize
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import (
    Expression,
    accessing,
    accumulator,
    constant,
    load,
    operation,
    reduced,
)
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest

DIGITS = 4

_SUM, _WIDE, _NARROW = "i32", "f32", "i8"

# A number of a row is less than 2**30 units, so that a carry from digit to digit fits.
_BITS = 29
_LARGEST = 2.0**30

# The bits of a float32: those of the exponent, and how far from the lowest, and what they are of 1.
_EXPONENT, _MANTISSA_BITS, _BIAS = 0x7F800000, 23, 127
# Rows whose largest number is smaller have the unit of this one: no exponent is out of range then.
_SMALLEST = 2.0**-90

# What the three lower digits borrow from those above them, so that all have a sign.
_BORROWED = 0x00808080


class Digits:
    """The digits of what a step reads, in buffers that nests compute which are put into ``before``.

    Args:
        step: sums products of the floats.
        floats: what it reads of them.
        rows: the loops over rows.
        groups: the loops over groups of a row.
        terms: the loops over the terms of a group.
        before: gets the nests.
    """

    def __init__(
        self,
        step: LoopNest,
        floats: Expression,
        rows: Sequence[int],
        groups: Sequence[int],
        terms: Sequence[int],
        before: list[LoopNest],
    ) -> None:
        self._step, self._rows, self._before = step, rows, before
        self._loops, self._kept = [*rows, *groups, *terms], len(rows) + len(groups)
        (self._floats,) = accessing((floats,), lambda access: access.over(self._loops))
        self._sizes: tuple[AnySize, ...] = tuple(step.sizes[loop] for loop in self._loops)
        self._largest = self._row_maxima()

    def unit(self) -> Expression:
        """That of a row, as the step reads it. A row with a NaN has that, one with an infinity an infinite one."""
        largest = load(Access.of_loops(self._largest, self._rows, len(self._step.sizes)))
        power = operation("arith.bitcast", [_exponent(largest)], _WIDE)
        unit = operation("arith.mulf", [power, constant(2.0**-_BITS, _WIDE)], _WIDE)
        # Less than the unit of a finite row.
        return operation("arith.maximumf", [unit, _times(largest, 2.0 ** -(_BITS + 1))], _WIDE)

    def buffer(self) -> Buffer:
        """The digits, lowest first, as bytes with a sign: dimensions are those of rows, the digit, and those of groups
        and terms."""
        loops = len(self._loops)
        sizes = (*self._sizes[: len(self._rows)], DIGITS, *self._sizes[len(self._rows) :])
        made = Buffer("temporary", _NARROW, sizes)
        value = operation("arith.fptosi", [_bounded(self._scaled())], _SUM)
        borrowed = constant(_BORROWED, _SUM)
        value = operation("arith.xori", [operation("arith.addi", [value, borrowed], _SUM), borrowed], _SUM)
        shifted = [
            operation("arith.shrui", [value, constant(8 * k, _SUM)], _SUM) if k else value for k in range(DIGITS)
        ]
        indices = [AffineExpr.of_loop(loop, loops) for loop in range(loops)]
        outputs = tuple(
            Access(made, (*indices[: len(self._rows)], AffineExpr((0,) * loops, k), *indices[len(self._rows) :]))
            for k in range(DIGITS)
        )
        values = tuple(operation("arith.trunci", [digit], _NARROW) for digit in shifted)
        self._before.append(LoopNest(self._sizes, (False,) * loops, outputs, values, nodes=self._step.nodes))
        return made

    def sums_of_digits(self, digits: Buffer, factor: int) -> Buffer:
        """``factor`` times the sum of each digit over a group: dimensions are those of rows, the digit, and those of
        groups."""
        term = operation("arith.extsi", [load(Access.whole(digits))], _SUM)
        value = operation("arith.addi", [accumulator(0, _SUM), term], _SUM)
        total = operation("arith.muli", [reduced(0, _SUM), constant(factor, _SUM)], _SUM)
        return self._reduced(digits.sizes, self._kept + 1, value, total)

    def sums(self) -> Expression:
        """The sum of a group's floats in units, as the step reads it."""
        value = operation("arith.addf", [accumulator(0, _WIDE), self._scaled()], _WIDE)
        made = self._reduced(self._sizes, self._kept, value, reduced(0, _WIDE))
        return load(Access.of_loops(made, self._loops[: self._kept], len(self._step.sizes)))

    def _row_maxima(self) -> Buffer:
        """The largest number of each row, without its sign."""
        value = operation(
            "arith.maximumf", [accumulator(0, _WIDE), operation("math.absf", [self._floats], _WIDE)], _WIDE
        )
        return self._reduced(self._sizes, len(self._rows), value, reduced(0, _WIDE))

    def _reduced(self, sizes: tuple[AnySize, ...], kept: int, value: Expression, result: Expression) -> Buffer:
        """What ``value`` makes of all loops but the first ``kept``, from 0 on, and ``result`` of that."""
        made, inside = (Buffer("temporary", value.type, sizes[:kept]) for _ in range(2))
        output, sums = (Access.of_loops(buffer, range(kept), len(sizes)) for buffer in (made, inside))
        reduction = tuple(loop >= kept for loop in range(len(sizes)))
        nest = LoopNest(sizes, reduction, (output,), (value,), constant(0, value.type), nodes=self._step.nodes)
        if result.op != "reduced":
            nest.outputs, nest.epilogue = (sums,), Epilogue((output,), (result,))
        self._before.append(nest)
        return made

    def _scaled(self) -> Expression:
        """The floats in units."""
        largest = load(Access.of_loops(self._largest, range(len(self._rows)), len(self._loops)))
        # The power of two whose product with that of the largest is that of so many bits.
        bits = (2 * _BIAS + _BITS << _MANTISSA_BITS) - 2**32
        inverse = operation("arith.subi", [constant(bits, _SUM), _exponent(largest)], _SUM)
        return operation("arith.mulf", [self._floats, operation("arith.bitcast", [inverse], _WIDE)], _WIDE)


def _exponent(value: Expression) -> Expression:
    """The bits of the power of two that a number is rounded down to."""
    bounded = operation("arith.maximumf", [value, constant(_SMALLEST, _WIDE)], _WIDE)
    bits = operation("arith.bitcast", [bounded], _SUM)
    return operation("arith.andi", [bits, constant(_EXPONENT, _SUM)], _SUM)


def _times(value: Expression, number: float) -> Expression:
    return operation("arith.mulf", [value, constant(number, _WIDE)], _WIDE)


def _bounded(value: Expression) -> Expression:
    """An infinity as the largest number: its unit is infinite."""
    for name, bound in (("arith.minnumf", _LARGEST), ("arith.maxnumf", -_LARGEST)):
        value = operation(name, [value, constant(bound, _WIDE)], _WIDE)
    return value
