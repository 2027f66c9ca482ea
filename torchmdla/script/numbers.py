"""TorchScript's operators on numbers: 64-bit integers that wrap around, and C's functions of doubles."""

from __future__ import annotations

import cmath
import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Function = Callable[..., Any]

LEAST, GREATEST = -(2**63), 2**63 - 1

# C's own functions give infinities and NaNs where Python's raise.
_LIBM = ctypes.CDLL(None)


def wrap(number: int) -> int:
    """Return the 64-bit integer that is congruent to a number."""
    return number if LEAST <= number <= GREATEST else (number - LEAST) % 2**64 + LEAST


def _wrapping(function: Function) -> Function:
    def apply(a: int, b: int) -> int:
        result = function(a, b)
        return result if LEAST <= result <= GREATEST else wrap(result)

    return apply


def to_int(number: float) -> int:
    """Return a double as an integer, as x86 converts it: numbers that do not fit give the least integer."""
    return int(number) if -(2.0**63) <= number < 2.0**63 else LEAST


def _to_integer(function: Function) -> Function:
    def apply(a: float) -> int:
        if not -(2.0**63) <= a <= 2.0**63:
            raise RuntimeError(f"Cannot convert float {a:f} to integer")
        return to_int(float(function(float(a))))

    return apply


_floor, _ceil = _to_integer(math.floor), _to_integer(math.ceil)


def _from_libm(name: str, operands: int = 1) -> Function:
    function = getattr(_LIBM, name)
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_double] * operands
    return function  # type: ignore[no-any-return]


def _of_double(name: str, libm: str = "") -> Function:
    """Return C's function of a double. Python's is faster and has the same results where it does not raise."""
    python, exact = getattr(math, name, None), _from_libm(libm or name)
    if python is None:
        return exact

    def apply(a: float) -> float:
        try:
            return python(a)  # type: ignore[no-any-return]
        except (ValueError, OverflowError):
            return exact(a)  # type: ignore[no-any-return]

    return apply


_fmod, _pow = (_from_libm(name, 2) for name in ("fmod", "pow"))


class _Complex(ctypes.Structure):
    """C's complex double, as functions take and return it."""

    _fields_ = (("real", ctypes.c_double), ("imag", ctypes.c_double))


def _of_complex(name: str, operands: int = 1) -> Function:
    """Return C's function of complex numbers. Python's round in other ways."""
    function = getattr(_LIBM, name)
    function.restype = _Complex
    function.argtypes = [_Complex] * operands

    def apply(*numbers: complex) -> complex:
        result = function(*(_Complex(number.real, number.imag) for number in numbers))
        return complex(result.real, result.imag)

    return apply


def _divide(a: float, b: float) -> float:
    a, b = float(a), float(b)
    if b:
        return a / b
    return math.nan if not a or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _divide_integers(a: int, b: int) -> int:
    if not b:
        raise RuntimeError("division by 0")
    return wrap(a // b)


def _modulo(a: int, b: int) -> int:
    if not b:
        raise RuntimeError("division by 0")
    if -(2**62) < b < 2**62:
        return a % b
    return _truncated_modulo(wrap(b + _truncated_modulo(a, b)), b)


def _truncated_modulo(a: int, b: int) -> int:
    remainder = abs(a) % abs(b)
    return -remainder if a < 0 else remainder


def _divide_to_zero(a: int, b: int) -> int:
    quotient = abs(_divide_integers(abs(a), abs(b)))
    return wrap(quotient if (a < 0) == (b < 0) else -quotient)


def _floor_divide(a: float, b: float) -> float:
    quotient = _divide(a, b)
    return float(math.floor(quotient)) if math.isfinite(quotient) and quotient else quotient


def _modulo_of_doubles(a: float, b: float) -> float:
    return _fmod(b + _fmod(a, b), b)  # type: ignore[no-any-return]


def _divmod_integers(a: int, b: int) -> tuple[int, int]:
    if not b:
        raise RuntimeError("ZeroDivisionError: integer division or modulo by zero")
    return wrap(a // b), a % b


def _divmod_doubles(a: float, b: float) -> tuple[float, float]:
    if not b:
        raise RuntimeError("ZeroDivisionError: float divmod()")
    remainder = _fmod(a, b)
    if remainder and (remainder < 0) != (b < 0):
        remainder += b
    return (a - remainder) / b, remainder


def _divmod_mixed(a: float, b: float) -> tuple[float, float]:
    # libtorch converts the operands to C's `int` and `float`, of 32 bits.
    a, b = (_NARROW[type(number)](number).value for number in (a, b))
    if not b:
        raise RuntimeError("ZeroDivisionError: float divmod()")
    quotient = float(_floor(ctypes.c_float(_divide(a, b)).value))
    return quotient, a - quotient * b


def _power(a: Any, b: Any) -> Any:
    if a == 0 and b < 0:
        raise RuntimeError("0.0 cannot be raised to a negative power")
    return _pow(a, b)


def _complex_power(a: complex, b: complex) -> complex:
    """Return the power as libstdc++'s ``std::pow`` does, which treats real operands apart."""
    if not isinstance(b, complex):
        if not a.imag and a.real > 0:
            return complex(_pow(a.real, b))
        logarithm = _CLOG(a)
        return _polar(_EXP(b * logarithm.real), b * logarithm.imag)
    if not isinstance(a, complex) and a > 0:
        return _polar(_pow(a, b.real), b.imag * _LOG(a))
    return _CPOW(a, b)  # type: ignore[no-any-return]


def _divide_complex(a: complex, b: complex) -> complex:
    """Return the quotient as ``c10::complex`` does."""
    if not isinstance(b, complex):
        return complex(_divide(a.real, b), _divide(a.imag, b))
    c, d = b.real, b.imag
    if abs(c) >= abs(d):
        if not c and not d:
            return complex(_divide(a.real, abs(c)), _divide(a.imag, abs(d)))
        ratio = d / c
        scale = 1.0 / (c + d * ratio)
        return complex((a.real + a.imag * ratio) * scale, (a.imag - a.real * ratio) * scale)
    ratio = c / d
    scale = 1.0 / (c * ratio + d)
    return complex((a.real * ratio + a.imag) * scale, (a.imag * ratio - a.real) * scale)


def _multiply_complex(a: complex, b: complex) -> complex:
    if not isinstance(b, complex):
        return complex(a.real * b, a.imag * b)
    if not isinstance(a, complex):
        return complex(a * b.real, a * b.imag)
    return a * b


def _add_complex(a: complex, b: complex) -> complex:
    if isinstance(a, complex) and isinstance(b, complex):
        return a + b
    return complex(a.real + b.real, a.imag if isinstance(a, complex) else b.imag)


def _subtract_complex(a: complex, b: complex) -> complex:
    if isinstance(b, complex):
        return complex(a.real - b.real, a.imag - b.imag if isinstance(a, complex) else -b.imag)
    return complex(a.real - b, a.imag)


def _round_to_even(a: float) -> float:
    if not math.isfinite(a):
        return float(a)
    return math.copysign(float(round(a)), a)


def _minimum(a: Any, b: Any) -> Any:
    return a if a < b else b


def _maximum(a: Any, b: Any) -> Any:
    return a if a > b else b


def _shift_left(a: int, b: int) -> int:
    return wrap(a << (b & 63))


def _shift_right(a: int, b: int) -> int:
    return a >> (b & 63)


def _factorial(number: int) -> int:
    if number < 0:
        raise RuntimeError("factorial() not defined for negative values")
    return wrap(math.factorial(number)) if number < 2**16 else 0


def _absolute(a: int) -> int:
    return wrap(abs(a))


def _polar(radius: float, angle: float) -> complex:
    return complex(radius * _COS(angle), radius * _SIN(angle))


_EXP, _LOG, _COS, _SIN = map(_of_double, ("exp", "log", "cos", "sin"))
_CLOG, _CPOW = _of_complex("clog"), _of_complex("cpow", 2)


def _parse_int(text: str) -> int:
    digits = text.strip(" \t\n\r\v\f")
    if not digits.lstrip("+-")[:1].isdigit():
        raise RuntimeError("stoll")
    if not _is_number(int, text):
        raise RuntimeError(f"invalid literal for int() with base 10: '{text}'")
    number = int(digits)
    if not LEAST <= number <= GREATEST:
        raise RuntimeError("stoll")
    return number


def _parse_float(text: str) -> float:
    start = text.lstrip(" \t\n\r\v\f").lstrip("+-")[:3].lower()
    if not (start[:1].isdigit() or (start[:1] == "." and start[1:2].isdigit()) or start in ("inf", "nan")):
        raise RuntimeError("stod")
    if not _is_number(float, text):
        raise RuntimeError(f"could not convert string to float: '{text}'")
    return float(text)


def _is_number(kind: type, text: str) -> bool:
    if text != text.rstrip() or "_" in text:
        return False
    try:
        kind(text)
    except ValueError:
        return False
    return True


# Kinds of numbers, and the overloads of operators on them

_KINDS = ("int", "float", "complex")
_TYPES: Mapping[type, str] = {bool: "int", int: "int", float: "float", complex: "complex"}


def _on_scalars(functions: Mapping[str, Function]) -> Function:
    """Return the operator on numbers of any kind: the wider kind of its operands chooses the function."""

    def apply(*numbers: Any) -> Any:
        kind = max((_TYPES[type(number)] for number in numbers), key=_KINDS.index)
        if kind not in functions:
            raise RuntimeError("the operator does not take complex numbers")
        return functions[kind](*numbers)

    return apply


def _on_kinds(name: str, integers: Function, doubles: Function, complexes: Function | None = None) -> Iterator[Any]:
    """Yield overloads of a binary operator by the kinds of its operands, and of any numbers."""
    functions = {"int": integers, "float": doubles} | ({"complex": complexes} if complexes else {})
    for a in functions:
        for b in functions:
            yield f"{name}.{a if a == b else f'{a}_{b}'}", functions[max(a, b, key=_KINDS.index)]
            yield f"{name}.{a}_{b}", functions[max(a, b, key=_KINDS.index)]
    yield name, _on_scalars(functions)
    yield f"{name}.Scalar_Scalar", _on_scalars(functions)


def _on_doubles(name: str, function: Function) -> Iterator[Any]:
    yield from _on_kinds(name, function, function)


def _unary(name: str, integers: Function, doubles: Function, complexes: Function | None = None) -> Iterator[Any]:
    functions = {"int": integers, "float": doubles} | ({"complex": complexes} if complexes else {})
    for kind, function in functions.items():
        yield f"{name}.{kind}", function
    yield f"{name}.Scalar", _rounded(_on_scalars(functions))


def _rounded(function: Function) -> Function:
    """Return a function of numbers whose result libtorch converts to C's ``int`` or ``float``, of 32 bits."""

    def apply(a: Any) -> Any:
        result = function(a)
        return result if isinstance(result, complex) else _NARROW[type(result)](result).value

    return apply


_NARROW: Mapping[type, Any] = {int: ctypes.c_int, float: ctypes.c_float}


def _compared(function: Function) -> Function:
    return lambda a, b: function(float(a), float(b))


def _comparisons() -> Iterator[Any]:
    for name in ("lt", "gt", "le", "ge"):
        function = getattr(operator, name)
        yield from _on_kinds(f"aten::{name}", function, _compared(function))
        yield f"aten::{name}.str", function  # the order of UTF-8 is that of code points
    for name in ("eq", "ne"):
        function = getattr(operator, name)
        yield from _on_kinds(f"aten::{name}", function, _compared(function), function)
        yield from ((f"aten::{name}.{kind}", function) for kind in ("bool", "str", "device", "enum"))


def _arithmetic() -> Iterator[Any]:
    for name, complexes in (("add", _add_complex), ("sub", _subtract_complex), ("mul", _multiply_complex)):
        function = getattr(operator, name)
        yield from _on_kinds(f"aten::{name}", _wrapping(function), function, complexes)
    yield from _on_kinds("aten::div", _divide, _divide, _divide_complex)
    yield from _on_kinds("aten::floordiv", _divide_integers, _floor_divide)
    yield from _on_kinds("aten::remainder", _modulo, _modulo_of_doubles)
    yield from _on_kinds("aten::divmod", _divmod_integers, _divmod_doubles)
    yield from ((f"aten::divmod.{kinds}", _divmod_mixed) for kinds in ("int_float", "float_int"))
    yield from _on_kinds("aten::pow", _power, _power, _complex_power)
    yield "aten::pow.int_to_int", lambda a, b: to_int(_power(a, b))
    yield from _on_kinds("prim::min", _minimum, lambda a, b: _minimum(float(a), float(b)))
    yield from _on_kinds("prim::max", _maximum, lambda a, b: _maximum(float(a), float(b)))
    yield from _unary("aten::neg", lambda a: wrap(-a), operator.neg, operator.neg)
    yield from _unary("prim::abs", _absolute, abs, abs)
    for name in ("fmod", "mathremainder", "atan2", "copysign"):
        yield from _on_doubles(f"aten::{name}", _from_libm(name.removeprefix("math"), 2))
    yield from _on_kinds("aten::log", _logarithm, _logarithm, _complex_logarithm)
    yield from _on_kinds("aten::polar", _polar, _polar)


def _logarithm(a: float, b: float) -> float:
    return _divide(_LOG(a), _LOG(b))


def _complex_logarithm(a: complex, b: complex) -> complex:
    left, right = (_CLOG(number) if isinstance(number, complex) else _LOG(number) for number in (a, b))
    return _divide_complex(left, right)


def _complex_log10(a: complex) -> complex:
    return _divide_complex(_CLOG(a), _LOG(10.0))


def _functions() -> Iterator[Any]:
    for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log", "sin", "sinh", "sqrt",
                  "tan", "tanh"):  # fmt: skip
        yield from _unary(f"aten::{name}", _of_double(name), _of_double(name), _of_complex(f"c{name}"))
    for name in ("erf", "erfc", "expm1", "fabs", "log1p", "degrees", "radians"):
        function = _of_double(name) if hasattr(_LIBM, name) else getattr(math, name)
        yield from _unary(f"aten::{name}", function, function)
    yield from _unary("aten::log10", _of_double("log10"), _of_double("log10"), _complex_log10)
    # Python has its own approximations of these.
    for name, libm in (("gamma", "tgamma"), ("lgamma", "lgamma")):
        yield from _unary(f"aten::{name}", _from_libm(libm), _from_libm(libm))
    yield from _unary("aten::round", float, _round_to_even)
    yield from _unary("aten::floor", _floor, _floor)
    yield from _unary("aten::ceil", _ceil, _ceil)
    yield from _unary("aten::angle", _angle, _angle, lambda a: math.atan2(a.imag, a.real))
    for name in ("isnan", "isinf", "isfinite"):
        yield f"aten::{name}.float", getattr(math, name)
        yield f"aten::{name}.complex", getattr(cmath, name)


def _angle(a: float) -> float:
    return math.pi if math.copysign(1.0, a) < 0 else 0.0


def _complexes() -> Iterator[Any]:
    for a in ("bool", "int", "float"):
        for b in ("bool", "int", "float"):
            yield f"aten::Complex.{a}_{b}", _complex_of


def _complex_of(real: float, imaginary: float) -> complex:
    # libtorch converts integers to C's `int` here, of 32 bits.
    parts = (ctypes.c_int(part).value if isinstance(part, int) else part for part in (real, imaginary))
    return complex(*parts)


def _scalar_to_int(number: Any) -> int:
    if isinstance(number, int):
        return int(number)
    if number.imag or not -(2**31) <= number.real < 2**31:
        raise RuntimeError("value cannot be converted to type int without overflow")
    return int(number.real)


OPERATORS: Mapping[str, Function] = {
    **dict(_comparisons()),
    **dict(_arithmetic()),
    **dict(_functions()),
    **dict(_complexes()),
    "aten::pow.Scalar_Scalar": _on_scalars({"int": _pow, "float": _pow}),
    "aten::Complex.Scalar": complex,
    "aten::Bool.int": bool,
    "aten::Bool.float": bool,
    "aten::Float.bool": float,
    "aten::Float.int": lambda a: ctypes.c_float(a).value,
    "aten::Float.Scalar": lambda a: a.real if isinstance(a, complex) else float(a),
    "aten::Float.str": _parse_float,
    "aten::Int.bool": int,
    "aten::Int.float": to_int,
    "aten::Int.Scalar": _scalar_to_int,
    "aten::Int.str": _parse_int,
    "aten::__and__.int": operator.and_,
    "aten::__or__.int": operator.or_,
    "aten::__xor__.int": operator.xor,
    "aten::__and__.bool": operator.and_,
    "aten::__or__.bool": operator.or_,
    "aten::__xor__.bool": operator.xor,
    "aten::__lshift__.int": _shift_left,
    "aten::__rshift__.int": _shift_right,
    "aten::__not__": operator.not_,
    "aten::__round_to_zero_floordiv.int": _divide_to_zero,
    "aten::gcd.int": math.gcd,
    "aten::factorial.int": _factorial,
    "aten::frexp": math.frexp,
    "aten::modf": math.modf,
    "aten::ldexp": _from_libm("ldexp"),
    "aten::hash.generic": hash,
}
