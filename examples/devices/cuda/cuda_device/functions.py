"""Mathematical functions for kernels, which MLIR calls by the names of NVIDIA's library libdevice.

LLVM has no code for them on these devices, and libdevice is a part of NVIDIA's toolkit, which is not needed. The
functions take and return float32, and compute in float64: reduction of the argument, then a Taylor series. Results
differ from exact ones by little more than the last rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, func
from torch_mlir.dialects import llvm as llvm_dialect
from torch_mlir.dialects import math as math_dialect

from torchmdla.compiler.mlir import new_context, run

_LN2 = math.log(2)
# A sum with this number has the nearest integer in the lowest bits of its mantissa.
_ROUNDER = 1.5 * 2.0**52
# π/2 as a sum of two numbers, and the bits of 2/π after the point.
_HALF_PI, _HALF_PI_REST = math.pi / 2, 6.123233995736766e-17
_BITS = 190
_TWO_OVER_PI = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E410

# From here on, float32 has only integers, which a float64 does not multiply by 2/π with enough bits.
_LARGE = 2.0**24

# erf is 1 from here on in float32.
_ERF_END = 3.93


class Real:
    """Number of type f64 in a function that is being written."""

    def __init__(self, value: Any) -> None:
        self.value = value if isinstance(value, ir.Value) else arith.constant(ir.F64Type.get(), float(value))

    def __add__(self, other: Real | float) -> Real:
        return Real(arith.addf(self.value, _real(other).value))

    def __sub__(self, other: Real | float) -> Real:
        return Real(arith.subf(self.value, _real(other).value))

    def __mul__(self, other: Real | float) -> Real:
        return Real(arith.mulf(self.value, _real(other).value))

    def __truediv__(self, other: Real | float) -> Real:
        return Real(arith.divf(self.value, _real(other).value))

    def __lt__(self, other: Real | float) -> Any:
        return arith.cmpf(arith.CmpFPredicate.OLT, self.value, _real(other).value)

    def __gt__(self, other: Real | float) -> Any:
        return arith.cmpf(arith.CmpFPredicate.OGT, self.value, _real(other).value)

    def equals(self, other: Real | float) -> Any:
        return arith.cmpf(arith.CmpFPredicate.OEQ, self.value, _real(other).value)

    def __abs__(self) -> Real:
        return Real(math_dialect.absf(self.value))

    def with_sign_of(self, other: Real) -> Real:
        return Real(math_dialect.copysign(self.value, other.value))

    def times_plus(self, factor: Real | float, term: Real | float) -> Real:
        """Return ``self * factor + term``, rounded once."""
        return Real(math_dialect.fma(self.value, _real(factor).value, _real(term).value))

    @property
    def bits(self) -> Any:
        return arith.bitcast(_integer(64), self.value)


def _real(number: Real | float) -> Real:
    return number if isinstance(number, Real) else Real(number)


def _choose(condition: Any, then: Real | float, otherwise: Real | float) -> Real:
    return Real(arith.select(condition, _real(then).value, _real(otherwise).value))


def _integer(width: int) -> Any:
    return ir.IntegerType.get_signless(width)


def _constant(number: int, width: int = 64) -> Any:
    return arith.constant(_integer(width), number)


def _of_bits(bits: Any) -> Real:
    return Real(arith.bitcast(ir.F64Type.get(), bits))


def _series(x: Real, coefficients: Sequence[float]) -> Real:
    """Return the value of a polynomial by Horner's rule. The lowest coefficient is first."""
    result = Real(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.times_plus(x, coefficient)
    return result


# Exponential functions: x = n·ln(2) + r, and the series of exp(r) - 1.


def _reduced_exponential(x: Real) -> tuple[Real, Real]:
    """Return 2ⁿ and exp(r) - 1, of numbers that are limited to those with results in float64."""
    x = _choose(x > 700, 700, _choose(x < -700, -700, x))
    shifted = x.times_plus(1 / _LN2, _ROUNDER)
    r = (shifted - _ROUNDER).times_plus(-_LN2, x)
    power = _of_bits(arith.addi(arith.shli(shifted.bits, _constant(52)), _constant(1023 << 52)))
    return power, r * _series(r, [1 / math.factorial(k) for k in range(1, 13)])


def _exp(x: Real) -> Real:
    power, rest = _reduced_exponential(x)
    return power * rest + power


def _expm1(x: Real) -> Real:
    power, rest = _reduced_exponential(x)
    return (power * rest + (power - 1)).with_sign_of(x)


def _exp2(x: Real) -> Real:
    return _exp(x * _LN2)


def _tanh(x: Real) -> Real:
    t = _expm1(abs(x) * 2)
    return _choose(abs(x) > 20, 1, t / (t + 2)).with_sign_of(x)


# Logarithms: x = 2ᵉ·m with m near 1, and the series of log(m) in (m - 1) / (m + 1).


def _log(x: Real) -> Real:
    exponent = arith.shrsi(arith.subi(x.bits, Real(math.sqrt(0.5)).bits), _constant(52))
    m = _of_bits(arith.subi(x.bits, arith.shli(exponent, _constant(52))))
    s = (m - 1) / (m + 1)
    result = Real(arith.sitofp(ir.F64Type.get(), exponent)) * _LN2
    result = result + s * _series(s * s, [2 / k for k in range(1, 21, 2)])
    at_zero = _choose(x.equals(0), -math.inf, math.nan)
    return _choose(x > 0, _choose(x < math.inf, result, x), at_zero)


def _log1p(x: Real) -> Real:
    near_zero = x * _series(x, [(-1) ** k / (k + 1) for k in range(6)])
    return _choose(abs(x) < 1e-3, near_zero, _log(x + 1))


def _pow(x: Real, y: Real) -> Real:
    size = _exp(_log(abs(x)) * y)
    half = y * 0.5
    is_integer = Real(math_dialect.floor(y.value)).equals(y)
    is_even = Real(math_dialect.floor(half.value)).equals(half)
    is_negative = arith.cmpi(arith.CmpIPredicate.slt, x.bits, _constant(0))
    signed = _choose(arith.andi(is_negative, is_integer), _choose(is_even, size, size.with_sign_of(Real(-1.0))), size)
    is_undefined = arith.andi(arith.andi(x < 0, abs(x) < math.inf), arith.xori(is_integer, _constant(1, 1)))
    result = _choose(is_undefined, math.nan, signed)
    is_one = arith.ori(x.equals(1), arith.ori(y.equals(0), arith.andi(x.equals(-1), abs(y).equals(math.inf))))
    return _choose(is_one, 1, result)


# Trigonometric functions: |x| = n·π/2 + r, and the series of the sine and cosine of r.


def _reduced_angle(x: Real) -> tuple[Any, Real]:
    """Return an integer with the two lowest bits of n, and r, for x ≥ 0."""
    n = x.times_plus(2 / math.pi, _ROUNDER)
    turns = n - _ROUNDER
    near = turns.times_plus(-_HALF_PI_REST, turns.times_plus(-_HALF_PI, x))
    large = _quarter_turns(x)
    n_of_large = large + _ROUNDER
    far = (large - (n_of_large - _ROUNDER)) * (math.pi / 2)
    is_near = x < _LARGE
    return arith.select(is_near, n.bits, n_of_large.bits), _choose(is_near, near, far)


def _quarter_turns(x: Real) -> Real:
    """Return x·2/π modulo 4, from -2 to 2, for integers from ``_LARGE`` on (M. H. Payne and R. N. Hanek, 1983).

    x = m·2ᵉ with m of 24 bits. Multiples of 4 are the bits that do not fit in an integer of 192 bits.
    """
    wide = _integer(_BITS + 2)
    mantissa = arith.andi(arith.shrui(x.bits, _constant(29)), _constant(0x7FFFFF))
    mantissa = arith.extui(wide, arith.ori(mantissa, _constant(0x800000)))
    exponent = arith.subi(arith.shrui(x.bits, _constant(52)), _constant(1023 + 23))
    exponent = arith.extui(wide, arith.andi(exponent, _constant(127)))
    product = arith.muli(mantissa, arith.shli(arith.constant(wide, _TWO_OVER_PI), exponent))
    top = arith.trunci(_integer(64), arith.shrui(product, arith.constant(wide, _BITS + 2 - 64)))
    return Real(arith.sitofp(ir.F64Type.get(), top)) * 2.0**-62


def _sine(x: Real, quarter: int) -> Real:
    """Return the sine of ``x ≥ 0`` plus a number of quarter turns; NaN for an infinity."""
    n, r = _reduced_angle(x)
    n = arith.addi(n, _constant(quarter))
    sine = r * _series(r * r, [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)])
    cosine = _series(r * r, [(-1) ** k / math.factorial(2 * k) for k in range(10)])
    is_odd, is_negative = (
        arith.cmpi(arith.CmpIPredicate.ne, arith.andi(n, _constant(bit)), _constant(0)) for bit in (1, 2)
    )
    size = _choose(is_odd, cosine, sine)
    return _choose(x < math.inf, _choose(is_negative, size * -1, size), math.nan)


def _sin(x: Real) -> Real:
    size = _sine(abs(x), 0)
    return size * Real(1.0).with_sign_of(x)


def _cos(x: Real) -> Real:
    return _sine(abs(x), 1)


def _erf(x: Real) -> Real:
    """Return erf(x) = 2/√π·exp(-x²)·Σ 2ᵏ·x²ᵏ⁺¹ / (1·3·…·(2k+1)), whose terms are positive."""
    t = _choose(abs(x) > _ERF_END, _ERF_END, x)
    terms = [2.0**k / math.prod(range(1, 2 * k + 2, 2)) for k in range(48)]
    result = t * _series(t * t, terms) * _exp(t * t * -1) * (2 / math.sqrt(math.pi))
    return _choose(abs(x) > _ERF_END, Real(1.0).with_sign_of(x), result)


_FUNCTIONS: Mapping[str, Callable[..., Real]] = {
    "cos": _cos,
    "erf": _erf,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log10": lambda x: _log(x) * (1 / math.log(10)),
    "log1p": _log1p,
    "log2": lambda x: _log(x) * (1 / _LN2),
    "pow": _pow,
    "sin": _sin,
    "tan": lambda x: _sin(x) / _cos(x),
    "tanh": _tanh,
}

# Functions that LLVM has code for, by the ops of the math dialect.
_INSTRUCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil": math_dialect.ceil,
    "copysign": math_dialect.copysign,
    "fabs": math_dialect.absf,
    "floor": math_dialect.floor,
    "fma": math_dialect.fma,
    "rint": math_dialect.roundeven,
    "round": math_dialect.round,
    "rsqrt": lambda x: arith.divf(arith.constant(x.type, 1.0), math_dialect.sqrt(x)),
    "sqrt": math_dialect.sqrt,
    "trunc": math_dialect.trunc,
}

_OPERANDS: Mapping[str, int] = {"pow": 2, "copysign": 2, "fma": 3}

# Ops of the math dialect with another name than their function.
_NAMES: Mapping[str, str] = {"absf": "fabs", "fpowi": "pow", "powf": "pow", "roundeven": "rint"}

# Ops of the math dialect that are instructions of integers.
_OF_INTEGERS = frozenset({"absi", "ctlz", "ctpop", "cttz"})


def has_function(op: Any) -> bool:
    """Return whether kernels have a function for an op of the math dialect and its type."""
    name = op.name.removeprefix("math.")
    function = _NAMES.get(name, name)
    is_wide = op.results[0].type == ir.F64Type.get()
    return name in _OF_INTEGERS or function in _INSTRUCTIONS or (function in _FUNCTIONS and not is_wide)


@cache
def library() -> str:
    """Return the functions as LLVM IR."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        single, double = ir.F32Type.get(), ir.F64Type.get()
        with ir.InsertionPoint(module.body):
            for name, function in _FUNCTIONS.items():
                _define(f"__nv_{name}f", [single] * _OPERANDS.get(name, 1), _in_double(function))
            _define("__nv_powif", [single, _integer(32)], _in_double(_pow))
            for name, instruction in _INSTRUCTIONS.items():
                _define(f"__nv_{name}f", [single] * _OPERANDS.get(name, 1), instruction)
                _define(f"__nv_{name}", [double] * _OPERANDS.get(name, 1), instruction)
        run(module, "convert-math-to-llvm", "convert-to-llvm", "reconcile-unrealized-casts")
        return str(llvm_dialect.translate_module_to_llvmir(module.operation))


def _in_double(function: Callable[..., Real]) -> Callable[..., Any]:
    def widened(operand: Any) -> Real:
        widen = arith.extf if operand.type == ir.F32Type.get() else arith.sitofp
        return Real(widen(ir.F64Type.get(), operand))

    def compute(*operands: Any) -> Any:
        return arith.truncf(ir.F32Type.get(), function(*map(widened, operands)).value)

    return compute


def _define(name: str, kinds: Sequence[Any], function: Callable[..., Any]) -> None:
    definition = func.FuncOp(name, ir.FunctionType.get(list(kinds), [kinds[0]]))
    block = definition.add_entry_block()
    with ir.InsertionPoint(block):
        func.return_([function(*block.arguments)])
