"""Single-precision functions as straight-line code: a nest's ``math`` ops become ``arith`` instructions.

The instructions do not depend on lanes. A scalar, a vector of any width and a masked rest run the same code and have
the same values. Every function is within 4 ulp of the exact value for all of the 2³² floats. It preserves NaNs,
infinities and the sign of zero, and rounds results below the normal range once (``tests/cpu/test_vector_math.py``).
Half-precision values are computed in single precision; double precision uses the library.

exp, exp2, expm1 and tanh reduce the argument by multiples of ln 2 in two steps (W. J. Cody and W. Waite, Software
Manual for the Elementary Functions, 1980). Fused multiply-add makes the reduction exact. Adding 1.5·2²³ rounds to an
integer. A polynomial and a power of two follow. tanh(x) = expm1(2x) / (expm1(2x) + 2), with numerator and denominator
halved. Where a lookup in a table is one instruction, exp and exp2 reduce the argument by multiples of ln(2)/16 or
ln(2)/8. Then the polynomial is shorter (P. T. P. Tang, Table-Driven Implementation of the Exponential Function, 1989).

erf(x) = -expm1(-x·Q(x)) for x ≥ 0 with Q(x) = -ln(erfc(x)) / x. Q is smooth, so one polynomial is enough for the whole
range. Where a lookup in sixteen floats is one instruction, a table of polynomials around sixteen points takes half the
time.

log: mantissa in [√½, √2), log1p(f) = f - f²/2 + f³·P(f), as in Cephes (S. L. Moshier).

log1p(x) = log(u) + (x - (u - 1))/u with u = 1 + x. The second term is what the rounding of u loses (D. Goldberg, What
Every Computer Scientist Should Know About Floating-Point Arithmetic, 1991).

Coefficients are weighted minimax fits in double precision, by Lawson's iteration (C. L. Lawson, 1961), then rounded to
single precision. The iteration repeats least squares on 2000 Chebyshev nodes, and multiplies weights by the error until
the error is level. The comment of each table names the function, the weight and the interval. The remaining error is
below 0.6·2⁻²⁴ of the result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.devices.cpu.ir.expressions import Expression, constant, operation, rewrite
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest
from torchmdla.devices.cpu.target.function_identities import apply_identities
from torchmdla.devices.cpu.target.machine import Machine

# (exp(r) - 1 - r) / r², weighted by r² / expm1(r), for |r| ≤ 1.01·ln(2)/2.
_EXP = (0.4999999701976776, 0.16666539013385773, 0.04166722297668457, 0.008367180824279785, 0.0013882395578548312)

# (exp(r) - 1 - r) / r², weighted by r² / exp(r), for |r| ≤ 1.01·ln(2)/(2·n). The key is n.
_EXP_OF_PARTS = {8: (0.5000657439231873, 0.1666686236858368), 16: (0.5000165104866028, 0.16666719317436218)}

# -ln(erfc(t)) / t, weighted by t·erfc(t)/erf(t), for 0 ≤ t ≤ 4.
_ERF = (
    1.128379225730896, 0.6366165280342102, 0.10281436145305634, -0.019321583211421967, 0.00020553568901959807,
    0.0012518726289272308, -0.0003810438502114266, 4.071366129210219e-05,
)  # fmt: skip

# erf(k·h + d) as polynomials in d, weighted by 1/erf, for k = 0 … 15 and |d| ≤ h/2. Each row has the coefficients of
# one power of d, for all k. The constant term of the first polynomial is 0. That of the last one is 1, since erf is 1
# in single precision from 3.92 on.
_ERF_STEP = 67 / 256
_ERF_TABLE = (
    (
        0.0, 0.2887115478515625, 0.5408531427383423, 0.7331640720367432,
        0.8612614274024963, 0.9357773661613464, 0.9736325740814209, 0.9904270172119141,
        0.9969336986541748, 0.9991350769996643, 0.9997854828834534, 0.9999532699584961,
        0.9999910593032837, 0.9999985098838806, 0.9999997615814209, 1.0,
    ),
    (
        1.128379225730896, 1.0536766052246094, 0.8579542636871338, 0.6091516017913818,
        0.3771301209926605, 0.20359238982200623, 0.09583770483732224, 0.03933831676840782,
        0.01407990325242281, 0.004394283518195152, 0.0011958618415519595, 0.0002837778301909566,
        5.871923713129945e-05, 1.059465739672305e-05, 1.666855268922518e-06, 1.102621990867192e-05,
    ),
    (
        2.8054927270204644e-07, -0.27576306462287903, -0.44907763600349426, -0.478267103433609,
        -0.39480993151664734, -0.26643145084381104, -0.1504896730184555, -0.07207360863685608,
        -0.029489874839782715, -0.01035044901072979, -0.0031353607773780823, -0.0008185442420653999,
        -0.0001806614745873958, -3.922600808436982e-05, 2.597636466816766e-06, 0.000659203331451863,
    ),
    (
        -0.37614214420318604, -0.30313625931739807, -0.12928949296474457, 0.047304291278123856,
        0.1498316526412964, 0.16455720365047455, 0.12560546398162842, 0.07490956783294678,
        0.03645577281713486, 0.01478890422731638, 0.005062108859419823, 0.001473314012400806,
        0.0003665098629426211, 7.821685721864924e-05, 1.4359297892951872e-05, 0.01412647683173418,
    ),
    (
        0.0002953668008558452, 0.13066649436950684, 0.18228751420974731, 0.13977238535881042,
        0.05343439057469368, -0.01780111715197563, -0.04848732054233551, -0.04422992467880249,
        -0.0277724526822567, -0.014028864912688732, -0.005295170471072197, -0.001775922835804522,
        -0.0007406034274026752, 6.23885789536871e-05, -0.0005331689608283341, 0.12334942072629929,
    ),
    (
        0.11092217266559601, 0.07822289317846298, 0.0012773931957781315, -0.05843031406402588,
        -0.0669265165925026, -0.03935055434703827, -0.007447770796716213, 0.010083533823490143,
        0.012747013010084629, 0.008723756298422813, 0.004342074040323496, 0.0017003335524350405,
        0.000542345573194325, 0.00014365521201398224, 3.19405116897542e-05, 0.37706443667411804,
    ),
)  # fmt: skip

# (log1p(f) - f + f²/2) / f³, weighted by f³ / log1p(f), for √½ - 1 ≤ f ≤ √2 - 1.
_LOG = (
    0.3333333134651184, -0.2500081956386566, 0.20001226663589478, -0.16623356938362122, 0.14201757311820984,
    -0.13160182535648346, 0.1276157796382904, -0.07634499669075012,
)  # fmt: skip

# Adding this to a float of at most 2²² in size rounds it to an integer. The integer is in the lowest bits of the sum.
_ROUNDER = 1.5 * 2.0**23

_ROUNDER_BITS, _MOST_ROUNDED = 0x4B400000, 2.0**22

# ln 2 = hi + lo: hi is ln 2 in single precision, lo is the rest.
_LN2_HI = 0.693147182464599609375
_LN2_LO = math.log(2.0) - _LN2_HI

_MANTISSA_BITS = 23
_ONE_BITS = 0x3F800000
_WHOLE_TABLE, _HALF_TABLE = 16, 8
_SMALLEST_NORMAL = 2.0**-126

_IS_LESS = "{predicate = 2 : i64}"

_PREDICATES = {"oeq": 1, "ogt": 2, "olt": 4, "ole": 5}

# The predicates of selects that are lower bounds. NaN becomes the bound with the first, and stays NaN with the second.
_IS_GREATER = "{predicate = 2 : i64}"
_LOWER_BOUNDS = (_IS_GREATER, "{predicate = 10 : i64}")

_HALF_PRECISION = ("f16", "bf16")

# The exponent of the largest factor of an argument that becomes part of the coefficients.
_MOST_FACTOR = 8


def _op(name: str, *operands: Expression, type: str = "f32", attributes: str = "") -> Expression:
    return operation(name, operands, type, attributes)


_add, _sub, _mul = (partial(_op, f"arith.{name}") for name in ("addf", "subf", "mulf"))
_fma, _select = partial(_op, "math.fma"), partial(_op, "arith.select")
_bits, _bitcast_to_float = partial(_op, "arith.bitcast", type="i32"), partial(_op, "arith.bitcast")


def _number(value: float) -> Expression:
    """Return the float nearest to ``value``."""
    return constant(struct.unpack("<f", struct.pack("<f", value))[0], "f32")


def _integer(value: int) -> Expression:
    return constant(value, "i32")


def _compare(predicate: str, a: Expression, b: Expression) -> Expression:
    return _op("arith.cmpf", a, b, type="i1", attributes=f"{{predicate = {_PREDICATES[predicate]} : i64}}")


def _at_most(x: Expression, limit: float) -> Expression:
    """Return the smaller of ``x`` and ``limit``. NaN stays NaN. This form is one instruction on x86."""
    bound = _number(limit)
    return _select(_compare("olt", bound, x), bound, x)


def _at_least(x: Expression, limit: float) -> Expression:
    bound = _number(limit)
    return _select(_compare("ogt", bound, x), bound, x)


def _above(x: Expression, limit: float) -> Expression:
    """Return the larger of ``x`` and ``limit``. NaN becomes the limit."""
    bound = _number(limit)
    return _select(_compare("ogt", x, bound), x, bound)


def _int_op(name: str, a: Expression, b: Expression, type: str = "i32") -> Expression:
    return _op(f"arith.{name}", a, b, type=type)


def _polynomial(x: Expression, coefficients: Sequence[Expression]) -> Expression:
    """Return the value of a polynomial by Horner's rule. The lowest coefficient is first."""
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = _fma(total, x, coefficient)
    return total


def _polynomial_of(x: Expression, coefficients: Iterable[float]) -> Expression:
    return _polynomial(x, [_number(coefficient) for coefficient in coefficients])


def _lookup(index: Expression, values: Sequence[float]) -> Expression:
    """Return one of sixteen or eight floats, indexed by the lowest bits of ``index``."""
    return _lookup_bits(index, [_bits_of(value) for value in values])


def _lookup_bits(index: Expression, words: Iterable[int]) -> Expression:
    """Return the same as :func:`_lookup`, for floats that are given by their bits."""
    return _op("lookup", index, attributes=f"[{', '.join(f'0x{word & 0xFFFFFFFF:08X}' for word in words)}]")


def _bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _power_of_two(exponent: Expression) -> Expression:
    """Return 2ⁿ for the integer n in the lowest 9 bits of ``exponent``, from -126 to 127."""
    shifted = _int_op("shli", exponent, _integer(_MANTISSA_BITS))
    return _bitcast_to_float(_int_op("addi", shifted, _integer(_ONE_BITS)))


# An argument in parts: n with the rounder added, n, and r.
_Reduced = tuple[Expression, Expression, Expression]


def _reduce_argument(x: Expression, parts: int = 1) -> _Reduced:
    """Return x as ``n·ln 2 + r``, where n is a multiple of ``1 / parts`` and ``|r| ≤ ln(2) / 2 / parts``."""
    shifted = _fma(x, _number(1 / math.log(2.0)), _number(_ROUNDER / parts))
    n = _sub(shifted, _number(_ROUNDER / parts))
    r = _fma(n, _number(-_LN2_HI), x)
    return shifted, n, _fma(n, _number(-_LN2_LO), r)


def _reduce_binary(x: Expression, parts: int = 1) -> _Reduced:
    """Return the same for ``x·ln 2``."""
    shifted = _add(x, _number(_ROUNDER / parts))
    n = _sub(shifted, _number(_ROUNDER / parts))
    return shifted, n, _mul(_sub(x, n), _number(math.log(2.0)))


def _expm1_near_zero(r: Expression) -> Expression:
    """Return ``exp(r) - 1`` for ``|r| ≤ ln(2)/2``."""
    return _fma(_mul(r, r), _polynomial_of(r, _EXP), r)


# The ways to compute an exponential of a bounded argument. ``reduce`` splits the argument in parts.
_Reduce = Callable[..., _Reduced]


def _exp_by_scaling(x: Expression, reduce: _Reduce) -> Expression:
    """Return the exponential by an instruction that multiplies by the largest power of two up to 2ⁿ."""
    shifted, n, r = reduce(x, 16)
    power = _lookup(_bits(shifted), [2.0 ** (k / 16) for k in range(16)])
    return _op("scale", _multiply_exp(power, r, 16), n)


def _exp_by_table(x: Expression, reduce: _Reduce) -> Expression:
    """Return the exponential by a table of eight powers of two.

    The integer part of n is added to the exponent of the power, and the fraction in its mantissa is subtracted in the
    table. The result is first computed times 2³² or 1/2, and then multiplied once, so that results outside of the
    normal range are right.
    """
    shifted, _, r = reduce(x, 8)
    is_negative = _op("arith.cmpi", _bits(x), _integer(0), type="i1", attributes=_IS_LESS)
    factor = _select(is_negative, _number(2.0**-32), _number(2.0))
    step = 1 << (_MANTISSA_BITS - 3)
    table = [_bits_of(2.0 ** (k / 8)) - k * step + _ONE_BITS for k in range(8)]
    exponent = _int_op("shli", _bits(shifted), _integer(_MANTISSA_BITS - 3))
    bits = _int_op("addi", _bits(_lookup_bits(_bits(shifted), table)), _int_op("subi", exponent, _bits(factor)))
    return _mul(_multiply_exp(_bitcast_to_float(bits), r, 8), factor)


def _multiply_exp(power: Expression, r: Expression, parts: int) -> Expression:
    """Return ``power·exp(r)`` for ``|r| ≤ ln(2) / 2 / parts``."""
    return _fma(power, _fma(_mul(r, r), _polynomial_of(r, _EXP_OF_PARTS[parts]), r), power)


def _exp_by_products(x: Expression, reduce: _Reduce) -> Expression:
    """Return the exponential by two multiplications, so that results outside of the normal range are right."""
    shifted, _, r = reduce(x)
    exponent = _bits(shifted)
    half = _int_op("shrsi", exponent, _integer(1))
    rest = _int_op("subi", exponent, half)
    return _mul(_mul(_polynomial_of(r, (1.0, 1.0, *_EXP)), _power_of_two(half)), _power_of_two(rest))


_Exponential = Callable[[Expression, _Reduce], Expression]


def _clamp(x: Expression, least: float, most: float) -> Expression:
    """Return ``x`` bounded from both sides. A negation follows the bounds: then it is part of the next instruction."""
    if x.op == "arith.negf":
        return _op("arith.negf", _clamp(x.operands[0], -most, -least))
    return _at_most(_at_least(x, least), most)


def _exp(x: Expression, exponential: _Exponential) -> Expression:
    # Beyond these limits exp is 0 and infinity.
    return exponential(_clamp(x, -104.0, 89.0), _reduce_argument)


def _exp2(x: Expression, exponential: _Exponential) -> Expression:
    return exponential(_clamp(x, -151.0, 128.0), _reduce_binary)


def _expm1(x: Expression) -> Expression:
    # Compute half of the result and double it at the end: the power of two of the largest results is not a finite
    # float.
    shifted, _, r = _reduce_argument(_clamp(x, -20.0, 89.0))
    half_power = _power_of_two(_int_op("subi", _bits(shifted), _integer(1)))
    half = _fma(half_power, _expm1_near_zero(r), _sub(half_power, _number(0.5)))
    return _op("math.copysign", _add(half, half), x)


def _tanh(x: Expression) -> Expression:
    # From 9.1 on tanh is 1. With x = n·ln(2)/2 + h, expm1(2h)/2 = h + h²·(2·c₀ + 4·c₁·h + …).
    bounded = _clamp(x, -10.0, 10.0)
    shifted = _fma(bounded, _number(2 / math.log(2.0)), _number(_ROUNDER))
    n = _sub(shifted, _number(_ROUNDER))
    h = _fma(n, _number(-_LN2_HI / 2), bounded)
    h = _fma(n, _number(-_LN2_LO / 2), h)
    doubled = [c * 2.0 ** (k + 1) for k, c in enumerate(_EXP)]
    near = _fma(_mul(h, h), _polynomial_of(h, doubled), h)
    power = _power_of_two(_bits(shifted))
    half = _fma(power, near, _fma(power, _number(0.5), _number(-0.5)))
    return _op("math.copysign", _op("arith.divf", half, _add(half, _number(1.0))), x)


def _erf_by_table(x: Expression) -> Expression:
    x, scale = _strip_factor(x)
    last = len(_ERF_TABLE[0]) - 1
    step = float(_number(_ERF_STEP / scale).payload)
    # The steps are rounded, so the values at them change a little.
    middle = [c + math.erf(k * step * scale) - math.erf(k * _ERF_STEP) for k, c in enumerate(_ERF_TABLE[0])]
    rows = [middle, *([c * scale**power for c in row] for power, row in enumerate(_ERF_TABLE[1:], 1))]
    t = _at_most(_op("math.absf", x), last * step)
    shifted = _fma(t, _number(1 / step), _number(_ROUNDER))
    d = _fma(_sub(shifted, _number(_ROUNDER)), _number(-step), t)
    return _op("math.copysign", _polynomial(d, [_lookup(_bits(shifted), row) for row in rows]), x)


def _erf_by_exponential(x: Expression) -> Expression:
    x, scale = _strip_factor(x)
    # From 3.92 on erf is 1.
    t = _at_most(_op("math.absf", x), 4.0 / scale)
    z = _mul(_op("arith.negf", t), _polynomial_of(t, (c * scale**power for power, c in enumerate(_ERF, 1))))
    shifted, _, r = _reduce_argument(z)
    power = _power_of_two(_bits(shifted))
    rest = _sub(_number(1.0), power)
    size = _sub(rest, _mul(power, _expm1_near_zero(r)))
    return _op("math.copysign", size, x)


def _strip_factor(x: Expression) -> tuple[Expression, float]:
    """Return ``x`` without a constant factor or divisor of medium size, and the factor, or 1."""
    if x.op not in ("arith.mulf", "arith.divf"):
        return x, 1.0
    first, second = x.operands
    if x.op == "arith.mulf" and first.op == "constant":
        first, second = second, first
    if second.op != "constant" or not 2.0**-_MOST_FACTOR <= second.payload <= 2.0**_MOST_FACTOR:
        return x, 1.0
    return first, float(1 / second.payload if x.op == "arith.divf" else second.payload)


def _log(x: Expression) -> Expression:
    is_small = _compare("olt", x, _number(_SMALLEST_NORMAL))
    normal = _select(is_small, _mul(x, _number(2.0**_MANTISSA_BITS)), x)
    bits = _bits(normal)
    above_root = _int_op("subi", bits, _integer(struct.unpack("<i", struct.pack("<f", math.sqrt(0.5)))[0]))
    exponent = _int_op("shrsi", above_root, _integer(_MANTISSA_BITS))
    scale = _int_op("shli", exponent, _integer(_MANTISSA_BITS))
    f = _sub(_bitcast_to_float(_int_op("subi", bits, scale)), _number(1.0))
    shift = _select(is_small, _number(-_MANTISSA_BITS), _number(0.0))
    k = _add(_op("arith.sitofp", exponent), shift)
    square = _mul(f, f)
    tail = _fma(_mul(square, f), _polynomial_of(f, _LOG), _mul(k, _number(_LN2_LO)))
    tail = _fma(square, _number(-0.5), tail)
    result = _fma(k, _number(_LN2_HI), _add(f, tail))
    return _log_of_specials(x, result)


def _log1p(x: Expression) -> Expression:
    u = _add(x, _number(1.0))
    lost = _op("arith.divf", _sub(x, _sub(u, _number(1.0))), u)
    # Where u is 0 or infinite, the logarithm is right, and the quotient not a number.
    is_inside = _int_op("andi", _compare("olt", u, _number(math.inf)), _compare("ogt", u, _number(0.0)), type="i1")
    result = _add(_log(u), _select(is_inside, lost, _number(0.0)))
    return _op("math.copysign", result, x)


def _log_of_specials(x: Expression, result: Expression) -> Expression:
    """Return ``result`` for finite positive ``x``, and the logarithm of special values otherwise."""
    zero = _number(0.0)
    outside = _select(_compare("oeq", x, zero), _number(-math.inf), _number(math.nan))
    result = _select(_compare("olt", x, _number(math.inf)), result, x)
    return _select(_compare("ole", x, zero), outside, result)


def _select_extremum(expression: Expression) -> Expression | None:
    """Return a maximum or minimum with a nonzero constant as a select, else None.

    Zero is excluded because the sign of zero must be preserved.
    """
    bound, x = sorted(expression.operands, key=lambda operand: operand.op != "constant")
    if bound.op != "constant" or not bound.payload or bound.payload != bound.payload or expression.type != "f32":
        return None
    return _BOUNDS[expression.op](x, bound.payload)


def _simplify_rounding(expression: Expression) -> Expression | None:
    """Return a cheaper conversion of a rounded float to an integer, else None.

    It applies to values that are bounded by 2²² in size, as in quantisation, where the sign of zero does not matter.
    """
    if (expression.op, expression.type) != ("arith.fptosi", "i32"):
        return None
    (x,) = expression.operands
    if (x.op, x.type) != ("math.roundeven", "f32"):
        return None
    x, bounds = _strip_clamps(x.operands[0])
    if not -_MOST_ROUNDED <= bounds.least <= bounds.most <= _MOST_ROUNDED:
        return None
    lower = _above if bounds.takes_nan else _at_least
    rounded = _add(_at_most(lower(x, bounds.least), bounds.most), _number(_ROUNDER))
    return _int_op("subi", _bits(rounded), _integer(_ROUNDER_BITS))


def _look_up_four_bits(expression: Expression) -> Expression | None:
    """Return a table lookup for a float that is converted from a signed four-bit field, else None.

    Such a field is shifted to the top of the word and back.
    """
    if (expression.op, expression.type) != ("arith.sitofp", "f32"):
        return None
    word, down = _match_shift(expression.operands[0], "arith.shrsi")
    word, up = _match_shift(word, "arith.shli")
    if down != 28 or word.type != "i32":
        return None
    index = _int_op("shrui", word, _integer(down - up)) if up < down else word
    return _lookup(index, [(k + 8) % 16 - 8 for k in range(16)])


def _match_shift(value: Expression, op: str) -> tuple[Expression, int]:
    """Return the operand that ``op`` shifts by a constant, and the number of bits.

    Other values are returned with 0 bits.
    """
    if value.op != op or value.operands[1].op != "constant":
        return value, 0
    return value.operands[0], int(value.operands[1].payload)


def _strip_clamps(x: Expression) -> tuple[Expression, _Bounds]:
    """Return ``x`` without its clamps to constants, and the bounds of these clamps.

    Clamps before multiplications by positive constants are included, since multiplication and rounding are monotonic.
    """
    bounds = _Bounds()
    factors: list[float] = []
    while True:
        operand, bound = _match_constant_operand(x)
        if operand is None:
            break
        if x.op == "arith.mulf":
            if not 0 < bound < math.inf:
                break
            factors.append(bound)
        elif not bounds.tighten(x, _multiply_bound(bound, reversed(factors))):
            break
        x = operand
    for factor in reversed(factors):
        x = _mul(x, _number(factor))
    return x, bounds


@dataclass
class _Bounds:
    """Bounds of a value. ``takes_nan``: whether NaN becomes the lower bound."""

    least: float = -math.inf
    most: float = math.inf
    takes_nan: bool = False

    def tighten(self, x: Expression, bound: float) -> bool:
        """Tighten the bounds by the clamp ``x``, and return whether that is possible.

        If so, the clamp can be removed: the final clamp to these bounds has the same result.
        """
        is_least = x.op != "arith.minimumf"
        least, most = (max(self.least, bound), self.most) if is_least else (self.least, min(self.most, bound))
        if not least <= most or (self.takes_nan and least != self.least):
            return False
        self.least, self.most = least, most
        self.takes_nan = self.takes_nan or (x.op == "arith.select" and x.operands[0].attributes == _IS_GREATER)
        return True


def _match_constant_operand(x: Expression) -> tuple[Expression | None, float]:
    """Return the other operand and the constant of a product, a bound or a rectifier; None if ``x`` is neither."""
    if x.op == "arith.select":
        condition, value, bound = x.operands
        is_bound = condition.attributes in _LOWER_BOUNDS and condition.operands == (value, bound)
        return (value if is_bound and bound.op == "constant" else None), bound.payload
    if x.op not in ("arith.mulf", *_BOUNDS):
        return None, 0.0
    first, second = sorted(x.operands, key=lambda operand: operand.op == "constant")
    return (first, second.payload) if second.op == "constant" and first.op != "constant" else (None, 0.0)


def _multiply_bound(bound: float, factors: Iterable[float]) -> float:
    for factor in factors:
        bound = float(_number(bound * factor).payload)
    return bound


_BOUNDS: Mapping[str, Callable[[Expression, float], Expression]] = {
    "arith.maximumf": _at_least,
    "arith.minimumf": _at_most,
}


# The expansion of an op on a machine for which a condition holds. The first row whose condition holds is used.
_EXPANSIONS: Sequence[tuple[str, Callable[[Machine], bool], Callable[[Expression], Expression]]] = (
    ("math.erf", lambda machine: machine.lookup >= _WHOLE_TABLE, _erf_by_table),
    ("math.erf", lambda _: True, _erf_by_exponential),
    *(
        (name, has, partial(function, exponential=exponential))
        for name, function in (("math.exp", _exp), ("math.exp2", _exp2))
        for has, exponential in (
            (lambda machine: machine.has_scale and machine.lookup >= _WHOLE_TABLE, _exp_by_scaling),
            (lambda machine: machine.lookup >= _HALF_TABLE, _exp_by_table),
            (lambda _: True, _exp_by_products),
        )
    ),
    ("math.expm1", lambda _: True, _expm1),
    ("math.log", lambda _: True, _log),
    ("math.log1p", lambda _: True, _log1p),
    ("math.tanh", lambda _: True, _tanh),
)


def expand(nest: AnyNest, machine: Machine) -> AnyNest:
    """Return the nest with all functions that this module supports expanded, in the body and the epilogue.

    A machine without fused multiply-add calls the library's functions instead.
    """
    if not machine.fused:
        return nest
    known = {name: function for name, holds, function in reversed(_EXPANSIONS) if holds(machine)}

    def expand_function(expression: Expression) -> Expression | None:
        if expression.op in _BOUNDS:
            return _select_extremum(expression)
        function = known.get(expression.op)
        if function is None or expression.type not in ("f32", *_HALF_PRECISION):
            return None
        (x,) = expression.operands
        if expression.type == "f32":
            return function(x)
        return _op("arith.truncf", function(_op("arith.extf", x)), type=expression.type)

    lookups = [_look_up_four_bits] if machine.lookup >= _WHOLE_TABLE else []
    nest = _rewrite_nest(nest, apply_identities)
    for rule in (_simplify_rounding, *lookups, expand_function):
        nest = _rewrite_nest(nest, partial(rewrite, function=rule))
    return nest


def _rewrite_nest(nest: AnyNest, function: Callable[[Sequence[Expression]], tuple[Expression, ...]]) -> AnyNest:
    epilogue = nest.epilogue
    return replace(
        nest,
        values=function(nest.values),
        checks=function(nest.checks),
        epilogue=epilogue and replace(epilogue, values=function(epilogue.values)),
    )
