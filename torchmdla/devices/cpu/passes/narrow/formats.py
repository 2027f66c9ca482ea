"""Narrow values in computations of 32 bits, and the removal of redundant conversions.

Floats of 16 bits are computed in 32 bits, and PyTorch rounds the result of each operator. An operator that only selects
among rounded values does not need its own rounding::

    v0 : bf16 = arith.truncf i0                 v0 : bf16 = arith.truncf i0
    v1 : f32 = arith.extf v0                    v1 : f32 = arith.extf v0
    v2 : f32 = arith.maximumf v1, 0.0     →     v2 : f32 = arith.maximumf v1, 0.0
    v3 : bf16 = arith.truncf v2                 v3 : f32 = math.exp v2
    v4 : f32 = arith.extf v3
    v5 : f32 = math.exp v4

Floats that represent integers of 8 bits have the form ``(integer - zero) * scale``, where uint8 is int8 of the same
bits. A value that is quantised and read as a float at once stays a float. Rounded and within bounds, it equals the
integer. An addition of 0 removes -0.0, which integers do not have::

    v0 : f32 = arith.minimumf (arith.maximumf x, -58.0), 197.0
    v1 : f32 = math.roundeven v0                                     v1 : f32 = math.roundeven v0
    v2 : i8 = arith.trunci (arith.addi (arith.fptosi v1), 58)
    v3 : i32 = arith.andi (arith.extsi v2), 255               →
    v4 : f32 = arith.subf (arith.sitofp v3), 58.0                    v4 : f32 = arith.addf v1, 0.0
    v5 : f32 = arith.mulf v4, 0.0577                                 v5 : f32 = arith.mulf v4, 0.0577
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial

from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import Expression, constant, map_loads, operation, rewrite
from torchmdla.devices.cpu.ir.loop_program import LoopProgram
from torchmdla.devices.cpu.ir.patterns import AnyPattern, Pattern, any_expression, any_of, op

WIDE, SUM, BYTE = "f32", "i32", "i8"

# Floats of 16 bits.

# Ops whose value is, up to its sign, one of their operands from this position on.
_SELECTING: Mapping[str, int] = {"arith.select": 1} | dict.fromkeys(
    ("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "arith.negf", "math.absf"), 0
)


def drop_roundings(steps: LoopProgram) -> None:
    """Remove roundings of values that are already rounded, in place."""
    for step in steps.nests():
        step.map_expressions(lambda roots: rewrite(roots, _drop_rounding))


def _drop_rounding(expression: Expression) -> Expression | None:
    if expression.op != "arith.extf" or expression.operands[0].op != "arith.truncf":
        return None
    (rounded,) = expression.operands
    (value,) = rounded.operands
    return value if value.type == expression.type and is_half(value, rounded.type) else None


def is_half(value: Expression, kind: str, halves: Container[Buffer] = ()) -> bool:
    """Return whether a float32 is a widened float of 16 bits, of type ``kind``, as all elements of ``halves`` are."""
    if value.op in _SELECTING:
        return all(is_half(operand, kind, halves) for operand in value.operands[_SELECTING[value.op] :])
    if value.op == "constant":
        return value.type == WIDE and _is_representable(value.payload, kind)
    widens = value.op == "arith.extf" and value.type == WIDE and value.operands[0].type == kind
    return widens or (value.op == "load" and value.payload.buffer in halves)


def _is_representable(number: float, kind: str) -> bool:
    if kind == "bf16":
        return not struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF
    try:
        return number != number or struct.unpack("<e", struct.pack("<e", number))[0] == number
    except OverflowError:
        return False


def truncate(value: Expression, kind: str) -> Expression:
    """Return a float32 as a float of 16 bits."""
    if value.op == "arith.extf" and value.operands[0].type == kind:
        return value.operands[0]
    return constant(value.payload, kind) if value.op == "constant" else operation("arith.truncf", [value], kind)


# Quantised integers.

_INTEGER = any_expression("integer", BYTE)
_EXTENDED = any_of(
    _INTEGER,
    op("arith.extsi", _INTEGER),
    op("arith.extui", _INTEGER, name="unsigned"),
    op(
        "arith.andi",
        any_of(op("arith.extsi", _INTEGER), op("arith.extui", _INTEGER)),
        op("constant", payload=0xFF),
        name="unsigned",
    ),
)
_DIFFERENCE = any_of(
    op(
        "arith.subf",
        op("arith.sitofp", _EXTENDED, type=WIDE),
        any_of(op("constant", name="zero"), op("arith.sitofp", any_expression("zero"))),
    ),
    op("arith.sitofp", op("arith.subi", _EXTENDED, any_expression("zero")), type=WIDE),
    op("arith.sitofp", _EXTENDED, type=WIDE),
)
_SCALED = any_of(op("arith.mulf", _DIFFERENCE, any_expression("scale")), _DIFFERENCE)


@dataclass(frozen=True)
class Quantisation:
    """Form ``(integer - zero) * scale``, with an ``i8`` as integer, ``zero`` an ``i32`` and ``scale`` an ``f32``."""

    is_signed: bool
    zero: Expression
    scale: Expression

    @property
    def lowest(self) -> int:
        """Return the least integer."""
        return -128 if self.is_signed else 0

    @property
    def has_zero(self) -> bool:
        """Return whether an integer of 8 bits represents 0, the border of an image."""
        return self.zero.op == "constant" and self.lowest <= self.zero.payload <= self.lowest + 255

    def substitute(self, indices: Mapping[int, AffineExpr], loops: int) -> Quantisation:
        """Return the form in a nest of ``loops`` loops, where ``indices`` has the indices of the current loops."""
        along = partial(Access.substitute, indices=indices, loops=loops)
        return Quantisation(self.is_signed, *map_loads((self.zero, self.scale), along))

    def with_sign(self, is_signed: bool) -> Quantisation:
        """Return the form with signed or unsigned integers, each as far from the least one as now."""
        shift = constant((-128 if is_signed else 0) - self.lowest, SUM)
        return Quantisation(is_signed, integer_op("arith.addi", self.zero, shift), self.scale)

    @property
    def float_zero(self) -> Expression:
        is_constant = self.zero.op == "constant"
        return constant(self.zero.payload, WIDE) if is_constant else operation("arith.sitofp", [self.zero], WIDE)

    def widen(self, integer: Expression, type: str) -> Expression:
        """Return the value of an ``i8`` as a float32, or as an ``i32`` without a scale."""
        value = operation("arith.extsi" if self.is_signed else "arith.extui", [integer], SUM)
        if type == SUM:
            return integer_op("arith.addi", value, constant(-self.zero.payload, SUM))
        value = operation("arith.sitofp", [value], WIDE)
        if not is_zero(self.zero):
            value = operation("arith.subf", [value, self.float_zero], WIDE)
        return value if self.scale is constant(1.0, WIDE) else operation("arith.mulf", [value, self.scale], WIDE)


def match_quantised(value: Expression) -> tuple[Expression, Quantisation] | None:
    """Return the integer and the form of a quantised float32, or of an ``i32`` that is of 8 bits, else None."""
    for match in (_EXTENDED if value.type == SUM else _SCALED).matches(value):
        zero = _to_i32(match["zero"]) if "zero" in match else constant(0, SUM)
        if zero is not None:
            scale = match.get("scale", constant(1.0, WIDE))
            return match["integer"], Quantisation("unsigned" not in match, zero, scale)
    return None


def _to_i32(number: Expression) -> Expression | None:
    """Return an integer, or a float that is a constant integer, as an ``i32``; None for any other constant."""
    if number.op == "constant":
        return constant(int(number.payload), SUM) if float(number.payload).is_integer() else None
    if number.type == SUM:
        return number
    return operation("arith.extsi" if number.type in ("i8", "i16") else "arith.trunci", [number], SUM)


def is_zero(value: Expression) -> bool:
    return value.op == "constant" and value.payload == 0


_INTEGER_OPS = {"arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul}


def integer_op(name: str, left: Expression, right: Expression) -> Expression:
    """Return the result of an op of two ``i32``, without an operation if it is a constant or one of the operands."""
    if left.op == right.op == "constant":
        return constant(_INTEGER_OPS[name](left.payload, right.payload), SUM)
    if is_zero(right):
        return right if name == "arith.muli" else left
    return left if name == "arith.muli" and is_zero(left) else operation(name, [left, right], SUM)


# Values that are quantised and read as floats at once.


def _at_least(value: Pattern) -> AnyPattern:
    """Return the pattern of a maximum of a value and a constant, with either result for NaN."""
    least = op("constant", name="least")
    chosen = op("arith.select", op("arith.cmpf", value, least, name="comparison"), value, least)
    return any_of(op("arith.maximumf", value, least), chosen)


_MOST = op("constant", name="most")
_BOUNDED = any_of(
    op("arith.minimumf", _at_least(any_expression("value")), _MOST),
    _at_least(op("arith.minimumf", any_expression("value"), _MOST, name="upper")),
)
_CONVERTED = op("arith.fptosi", op("math.roundeven", _BOUNDED, name="rounded", type=WIDE), type=SUM)
_REQUANTISED = op(
    "arith.trunci", any_of(op("arith.addi", _CONVERTED, op("constant", name="moved")), _CONVERTED), type=BYTE
)

# MLIR's comparisons ogt and uge; rectifiers use the second one.
_GREATER = ("{predicate = 2 : i64}", "{predicate = 10 : i64}")


def keep_floats(steps: LoopProgram) -> None:
    """Replace conversions to integers and back by the rounded floats, in place."""
    for step in steps.nests():
        step.map_expressions(lambda roots: rewrite(roots, _match_float))


def _match_float(value: Expression) -> Expression | None:
    integer, form = (value.op in ("arith.subf", "arith.sitofp") and match_quantised(value)) or (None, None)
    if integer is None or form is None or form.zero.op != "constant":
        return None
    zero, lowest = form.zero.payload, form.lowest
    for match in _REQUANTISED.matches(integer):
        is_moved_back = zero == (match["moved"].payload if "moved" in match else 0)
        is_maximum = "comparison" not in match or match["comparison"].attributes in _GREATER
        is_in_range = lowest - zero <= match["least"].payload <= match["most"].payload <= lowest + 255 - zero
        if is_moved_back and is_maximum and is_in_range:
            return operation("arith.addf", [match["rounded"], constant(0.0, WIDE)], WIDE)
    return None
