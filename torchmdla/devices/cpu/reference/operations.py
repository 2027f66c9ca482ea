"""MLIR's scalar operations on NumPy arrays.

Floats are computed in float64, and 16-bit floats are rounded. Integers are exact. MLIR leaves some results undefined:
the conversion of a float that does not fit the integer, or a shift by too many bits. Then the result is that of x86-64
or NumPy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from torchmdla.devices.cpu.ir.expressions import HALVES, SHORTS

Array = np.ndarray[Any, Any]

# The dtype of values in registers, by type. All floats are computed in float64.
DTYPES: Mapping[str, type[np.generic]] = {
    **{"i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "index": np.int64},
    **dict.fromkeys(("f16", "bf16", "f32", "f64"), np.float64),
}


class UnsupportedOperation(Exception):
    """Operation that the interpreter does not support. The message names it."""


def round_to_type(value: Array, kind: str) -> Array:
    """Return values rounded to type ``kind``. Only 16-bit floats are rounded."""
    value = np.asarray(value, DTYPES[kind])
    if kind in ("f16", "bf16"):
        return from_bits(to_bits(value, kind), kind)
    return value


def to_bits(value: Array, kind: str) -> Array:
    """Return the representation in memory of values of type ``kind``, as unsigned integers."""
    if kind == "bf16":
        single = value.astype(np.float32).view(np.uint32)
        nearest = (single + 0x7FFF + (single >> 16 & 1)) >> 16
        return np.where(np.isnan(value), 0x7FC0, nearest).astype(np.uint16)
    if kind in _FLOATS:
        return value.astype(_FLOATS[kind]).view(f"u{np.dtype(_FLOATS[kind]).itemsize}")
    return _as_unsigned(value)


def from_bits(bits: Array, kind: str) -> Array:
    """Return the values with a given representation: the inverse of :func:`to_bits`."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind in _FLOATS:
        return bits.view(_FLOATS[kind]).astype(np.float64)
    return bits.astype(np.bool_) if kind == "i1" else bits.view(DTYPES[kind])


_FLOATS: Mapping[str, type[np.generic]] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def _as_unsigned(value: Array) -> Array:
    return value.astype(np.uint8) if value.dtype == np.bool_ else value.view(f"u{value.dtype.itemsize}")


def _as_signed(value: Array) -> Array:
    return -value.astype(np.int8) if value.dtype == np.bool_ else value


def apply(op: str, operands: list[Array], type: str, attributes: str, from_type: str) -> Array:
    """Return the result of the operation ``op`` on its operands.

    ``from_type`` is the type of the first operand.

    Raises:
        UnsupportedOperation: the operation is not supported.
    """
    if op in _CASTS:
        return round_to_type(_CASTS[op](operands[0], type, from_type), type)
    if op in _COMPARISONS:
        match = re.search(r"predicate = (\d+)", attributes)
        if match is None:
            raise UnsupportedOperation(f"{op} {attributes}")
        return _COMPARISONS[op][int(match[1])](*operands)
    if op == "dot":
        return _dot(*operands, type=type, parts=_PARTS[type, attributes])
    if op not in _FUNCTIONS:
        raise UnsupportedOperation(op)
    if type == "i1" and op in ("arith.addi", "arith.subi"):
        op = "arith.xori"
    return round_to_type(_FUNCTIONS[op](*operands), type)


def _resize(value: Array, type: str, from_type: str) -> Array:
    """Return an integer converted to another width: its lowest bits are preserved."""
    return (value & 1).astype(np.bool_) if type == "i1" else value.astype(DTYPES[type])


def _truncate(value: Array, type: str, least: float, most: float, otherwise: int) -> Array:
    """Return floats truncated to integers, and ``otherwise`` for those that are out of bounds."""
    whole = np.trunc(value)
    fits = (whole >= least) & (whole < most)
    return np.where(fits, whole, 0).astype(np.int64 if least else np.uint64).astype(DTYPES[type]) + np.where(
        fits, 0, otherwise
    ).astype(DTYPES[type])


def _to_signed(value: Array, type: str, from_type: str) -> Array:
    most = 2.0 ** (int(type[1:]) - 1)
    return _truncate(value, type, -most, most, -(2 ** (int(type[1:]) - 1)))


_CASTS: Mapping[str, Callable[[Array, str, str], Array]] = {
    "arith.extf": lambda value, type, _: value,
    "arith.truncf": lambda value, type, _: value,
    "arith.extsi": lambda value, type, _: _resize(_as_signed(value), type, _),
    "arith.extui": lambda value, type, _: _resize(_as_unsigned(value), type, _),
    "arith.trunci": _resize,
    "arith.index_cast": lambda value, type, _: _resize(_as_signed(value), type, _),
    "arith.index_castui": lambda value, type, _: _resize(_as_unsigned(value), type, _),
    "arith.sitofp": lambda value, type, _: _as_signed(value).astype(np.float64),
    "arith.uitofp": lambda value, type, _: _as_unsigned(value).astype(np.float64),
    "arith.fptosi": _to_signed,
    "arith.fptoui": lambda value, type, _: _truncate(value, type, 0.0, 2.0 ** int(type[1:]), -1),
    "arith.bitcast": lambda value, type, from_type: from_bits(to_bits(value, from_type), type),
}


def _compare_ordered(compare: Callable[[Array, Array], Array], value: bool) -> Callable[[Array, Array], Array]:
    """Return a comparison of floats that is ``value`` if one of them is NaN."""
    return lambda left, right: np.where(np.isnan(left) | np.isnan(right), value, compare(left, right))


def _compare_as(
    convert: Callable[[Array], Array], compare: Callable[[Array, Array], Array]
) -> Callable[[Array, Array], Array]:
    return lambda left, right: compare(convert(left), convert(right))


_Comparisons = tuple[Callable[[Array, Array], Array], ...]
_ORDER: _Comparisons = (np.less, np.less_equal, np.greater, np.greater_equal)
_FLOAT_ORDER: _Comparisons = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)


def _constant_comparison(value: bool) -> Callable[[Array, Array], Array]:
    return lambda left, right: np.full(np.broadcast_shapes(left.shape, right.shape), value)


# Comparisons, in the order of MLIR's predicate numbers.
_COMPARISONS: Mapping[str, _Comparisons] = {
    "arith.cmpi": (
        np.equal,
        np.not_equal,
        *(_compare_as(_as_signed, compare) for compare in _ORDER),
        *(_compare_as(_as_unsigned, compare) for compare in _ORDER),
    ),
    "arith.cmpf": (
        _constant_comparison(False),
        *(_compare_ordered(compare, False) for compare in _FLOAT_ORDER),
        _compare_ordered(_constant_comparison(True), False),
        *(_compare_ordered(compare, True) for compare in _FLOAT_ORDER),
        _compare_ordered(_constant_comparison(False), True),
        _constant_comparison(True),
    ),
}


# The types of the parts of the words of dot products, and the number of their bits, by the type and the attributes.
_PARTS: Mapping[tuple[str, str], tuple[str, str, int]] = {
    ("f32", ""): ("bf16", "bf16", 16),
    ("f32", HALVES): ("f16", "f16", 16),
    ("i32", ""): ("u8", "i8", 8),
    ("i32", SHORTS): ("i16", "i16", 16),
}


def _dot(left: Array, right: Array, *added: Array, type: str, parts: tuple[str, str, int]) -> Array:
    """Return the sum of the products of the parts of words."""
    *kinds, bits = parts
    total = added[0] if added else np.zeros((), DTYPES[type])
    for shift in range(0, 32, bits):
        first, second = (_part(word, kind, shift) for word, kind in zip((left, right), kinds, strict=True))
        total = total + first * second
    return round_to_type(total, type)


def _part(word: Array, kind: str, shift: int) -> Array:
    bits = _as_unsigned(word) >> np.uint32(shift)
    if kind == "bf16":
        return from_bits(bits.astype(np.uint16), kind)
    if kind == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    integer = {"u8": np.uint8, "i8": np.int8, "i16": np.int16}[kind]
    return bits.astype(integer).astype(np.int32)


def _select(condition: Array, left: Array, right: Array) -> Array:
    return np.where(condition, left, right)


def _maximum(left: Array, right: Array) -> Array:
    """Return the maximum of IEEE 754-2019: NaN if either operand is NaN, and 0 rather than -0."""
    either = np.maximum(left, right)
    return np.where((left == 0) & (right == 0), np.where(np.signbit(left), right, left), either)


def _on_unsigned(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def apply_to(left: Array, right: Array) -> Array:
        result: Array = function(_as_unsigned(left), _as_unsigned(right))
        return result.view(left.dtype)

    return apply_to


def _vectorise(function: Callable[..., float]) -> Callable[..., Array]:
    return np.vectorize(function, otypes=[np.float64])


def _count_bits(count: Callable[[int, int], int]) -> Callable[[Array], Array]:
    def count_each(value: Array) -> Array:
        width = 8 * value.itemsize
        result: Array = np.vectorize(lambda v: count(int(v), width), otypes=[value.dtype])(_as_unsigned(value))
        return result

    return count_each


_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    **{
        f"math.{name}": getattr(np, name)
        for name in (
            *("cbrt", "ceil", "copysign", "cos", "cosh", "exp", "exp2", "expm1", "floor", "isfinite", "isinf", "isnan"),
            *("log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
        )
    },
    **{f"math.a{name}": getattr(np, f"arc{name}") for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    "arith.addf": np.add,
    "arith.addi": np.add,
    "arith.andi": np.bitwise_and,
    "arith.ceildivsi": lambda left, right: -(-left // right),
    "arith.divf": np.divide,
    "arith.divsi": lambda left, right: (left - np.fmod(left, right)) // right,
    "arith.divui": _on_unsigned(np.floor_divide),
    "arith.floordivsi": np.floor_divide,
    "arith.maximumf": _maximum,
    "arith.maxnumf": np.fmax,
    "arith.maxsi": lambda left, right: _select(_as_signed(left) >= _as_signed(right), left, right),
    "arith.maxui": lambda left, right: _select(_as_unsigned(left) >= _as_unsigned(right), left, right),
    "arith.minimumf": lambda left, right: -_maximum(-left, -right),
    "arith.minnumf": np.fmin,
    "arith.minsi": lambda left, right: _select(_as_signed(left) <= _as_signed(right), left, right),
    "arith.minui": lambda left, right: _select(_as_unsigned(left) <= _as_unsigned(right), left, right),
    "arith.mulf": np.multiply,
    "arith.muli": np.multiply,
    "arith.negf": np.negative,
    "arith.ori": np.bitwise_or,
    "arith.remf": np.fmod,
    "arith.remsi": np.fmod,
    "arith.remui": _on_unsigned(np.remainder),
    "arith.select": _select,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.shrui": _on_unsigned(np.right_shift),
    "arith.subf": np.subtract,
    "arith.subi": np.subtract,
    "arith.xori": np.bitwise_xor,
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.ctlz": _count_bits(lambda value, width: width - value.bit_length()),
    "math.ctpop": _count_bits(lambda value, width: value.bit_count()),
    "math.cttz": _count_bits(lambda value, width: (value & -value).bit_length() - 1 if value else width),
    "math.erf": _vectorise(math.erf),
    "math.erfc": _vectorise(math.erfc),
    "math.fma": lambda left, right, added: left * right + added,
    "math.fpowi": lambda base, power: np.power(base, power.astype(np.float64)),
    "math.powf": np.power,
    "math.round": lambda value: np.copysign(np.floor(np.abs(value) + 0.5), value),
    "math.roundeven": np.rint,
    "math.rsqrt": lambda value: 1 / np.sqrt(value),
}

# Operations that may combine the terms of a reduction in any order.
ASSOCIATIVE: Mapping[str, Callable[[Array, Array], Array]] = {
    f"arith.{name}": _FUNCTIONS[f"arith.{name}"]
    for name in (
        *("addf", "addi", "mulf", "muli", "andi", "ori", "xori"),
        *("maximumf", "maxnumf", "maxsi", "maxui", "minimumf", "minnumf", "minsi", "minui"),
    )
}
