"""Functions of single precision as straight-line code: a nest's ``math`` ops become ``arith`` instructions.

The instructions know nothing of lanes, so a scalar, a vector of any width and a masked rest run the same code and give
the same values. Every function is within 4 ulp of the exact value for all of the 2³² floats, keeps NaNs, infinities
and the sign of zero, and rounds results below the normal range once (``tests/cpu/test_vector_math.py``). Half-precision
values are computed in single precision; double precision stays with the library.

Methods. exp, exp2, expm1 and tanh: reduction by multiples of ln 2 in two steps (W. J. Cody and W. Waite, Software
Manual for the Elementary Functions, 1980), here exact by fused multiply-add, rounding to an integer by adding 1.5·2²³;
then a polynomial, then a power of two. tanh(x) = expm1(2x) / (expm1(2x) + 2), halved throughout.
erf(x) = -expm1(-x·Q(x)) for x ≥ 0 with Q(x) = -ln(erfc(x)) / x, which is smooth, so one polynomial serves the whole
range; where a lookup in sixteen floats is one instruction, a table of polynomials around sixteen points takes half the
time. log: mantissa in [√½, √2), log1p(f) = f - f²/2 + f³·P(f), as in Cephes (S. L. Moshier).

Coefficients are weighted minimax fits in double precision, by Lawson's iteration (C. L. Lawson, 1961: least squares on
2000 Chebyshev nodes, weights multiplied by the error until it is level), then rounded to single precision. Each table
names function, weight and interval; the error that it leaves is below 0.6·2⁻²⁴ of the result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchmdla.devices.cpu.kernel_spec import AnyEpilogue, AnyNest, Instruction, constant
from torchmdla.devices.cpu.machine import Machine

# (exp(r) - 1 - r) / r², weighted by r² / expm1(r), for |r| ≤ 1.01·ln(2)/2.
_EXP = (0.4999999701976776, 0.16666539013385773, 0.04166722297668457, 0.008367180824279785, 0.0013882395578548312)

# -ln(erfc(t)) / t, weighted by t·erfc(t)/erf(t), for 0 ≤ t ≤ 4.
_ERF = (
    1.128379225730896, 0.6366165280342102, 0.10281436145305634, -0.019321583211421967, 0.00020553568901959807,
    0.0012518726289272308, -0.0003810438502114266, 4.071366129210219e-05,
)  # fmt: skip

# erf(k·h + d) as polynomials in d, weighted by 1/erf, for k = 0 … 15 and |d| ≤ h/2: by power of d, of all k. The first
# is fixed to 0 at the least k, the last to 1, which erf is to single precision from 3.92 on.
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

# Adding this to a float of at most 2²² in size rounds it to an integer, which is then in the sum's lowest bits.
_ROUNDER = 1.5 * 2.0**23

# ln 2 = hi + lo: hi is ln 2 in single precision, lo what it lacks.
_LN2_HI = 0.693147182464599609375
_LN2_LO = math.log(2.0) - _LN2_HI

_MANTISSA_BITS = 23
_ONE_BITS = 0x3F800000
_SMALLEST_NORMAL = 2.0**-126

_PREDICATES = {"oeq": 1, "ogt": 2, "olt": 4, "ole": 5}

_HALF_PRECISION = ("f16", "bf16")


class _Code:
    """Instructions under construction. Values are numbers, as in a nest's body."""

    def __init__(self, first: int, machine: Machine) -> None:
        self.instructions: list[Instruction] = []
        self.machine = machine
        self._first = first
        self._constants: dict[Instruction, int] = {}

    def append(self, instruction: Instruction) -> int:
        self.instructions.append(instruction)
        return self._first + len(self.instructions) - 1

    def op(self, name: str, *operands: int, result: str = "f32", attributes: str = "") -> int:
        return self.append(Instruction(name, operands, result, attributes))

    def _constant(self, text: str, kind: str) -> int:
        instruction = constant(text, kind)
        if instruction not in self._constants:
            self._constants[instruction] = self.append(instruction)
        return self._constants[instruction]

    def number(self, value: float) -> int:
        """The float nearest to ``value``, written by its bits."""
        bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
        return self._constant(f"0x{bits:08X}", "f32")

    def integer(self, value: int) -> int:
        return self._constant(str(value), "i32")

    def add(self, a: int, b: int) -> int:
        return self.op("arith.addf", a, b)

    def sub(self, a: int, b: int) -> int:
        return self.op("arith.subf", a, b)

    def mul(self, a: int, b: int) -> int:
        return self.op("arith.mulf", a, b)

    def fma(self, a: int, b: int, c: int) -> int:
        return self.op("math.fma", a, b, c)

    def compare(self, predicate: str, a: int, b: int) -> int:
        return self.op("arith.cmpf", a, b, result="i1", attributes=f"{{predicate = {_PREDICATES[predicate]} : i64}}")

    def select(self, condition: int, a: int, b: int) -> int:
        return self.op("arith.select", condition, a, b)

    def at_most(self, x: int, limit: float) -> int:
        """The smaller one; a NaN stays. This form is one instruction on x86."""
        bound = self.number(limit)
        return self.select(self.compare("olt", bound, x), bound, x)

    def at_least(self, x: int, limit: float) -> int:
        bound = self.number(limit)
        return self.select(self.compare("ogt", bound, x), bound, x)

    def bits(self, x: int) -> int:
        return self.op("arith.bitcast", x, result="i32")

    def float_of(self, bits: int) -> int:
        return self.op("arith.bitcast", bits)

    def int_op(self, name: str, a: int, b: int) -> int:
        return self.op(f"arith.{name}", a, b, result="i32")

    def polynomial(self, x: int, coefficients: Sequence[float]) -> int:
        """By Horner's rule, lowest coefficient first."""
        total = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.number(coefficient))
        return total

    def lookup(self, index: int, values: Sequence[float]) -> int:
        """That of sixteen floats which the lowest four bits of ``index`` number."""
        bits = ", ".join(f"0x{b:08X}" for b in struct.unpack("<16I", struct.pack("<16f", *values)))
        return self.op("lookup", index, attributes=f"[{bits}]")

    def power_of_two(self, exponent: int) -> int:
        """2ⁿ for the integer in the lowest 9 bits of ``exponent``, from -126 to 127."""
        shifted = self.int_op("shli", exponent, self.integer(_MANTISSA_BITS))
        return self.float_of(self.int_op("addi", shifted, self.integer(_ONE_BITS)))


def _reduced(code: _Code, x: int) -> tuple[int, int, int]:
    """``x = n·ln 2 + r`` with ``|r| ≤ ln(2)/2``: ``n`` with the rounder added, ``n`` and ``r``."""
    shifted = code.fma(x, code.number(1 / math.log(2.0)), code.number(_ROUNDER))
    n = code.sub(shifted, code.number(_ROUNDER))
    r = code.fma(n, code.number(-_LN2_HI), x)
    return shifted, n, code.fma(n, code.number(-_LN2_LO), r)


def _exp_near_zero(code: _Code, r: int) -> int:
    """``exp(r)`` for ``|r| ≤ ln(2)/2``."""
    return code.polynomial(r, (1.0, 1.0, *_EXP))


def _expm1_near_zero(code: _Code, r: int) -> int:
    """``exp(r) - 1`` for ``|r| ≤ ln(2)/2``."""
    return code.fma(code.mul(r, r), code.polynomial(r, _EXP), r)


def _scaled(code: _Code, x: int, shifted: int, n: int) -> int:
    """``x·2ⁿ`` for ``n`` from -250 to 250: at once, or in two factors, so that results outside of the normal range are
    right. ``shifted``: ``n`` with the rounder added."""
    if code.machine.scales:
        return code.op("scale", x, n)
    exponent = code.bits(shifted)
    half = code.int_op("shrsi", exponent, code.integer(1))
    rest = code.int_op("subi", exponent, half)
    return code.mul(code.mul(x, code.power_of_two(half)), code.power_of_two(rest))


def _exp(code: _Code, x: int) -> int:
    # Beyond these limits exp is 0 and infinity.
    shifted, n, r = _reduced(code, code.at_most(code.at_least(x, -104.0), 89.0))
    return _scaled(code, _exp_near_zero(code, r), shifted, n)


def _exp2(code: _Code, x: int) -> int:
    x = code.at_most(code.at_least(x, -151.0), 129.0)
    shifted = code.add(x, code.number(_ROUNDER))
    n = code.sub(shifted, code.number(_ROUNDER))
    near = _exp_near_zero(code, code.mul(code.sub(x, n), code.number(math.log(2.0))))
    return _scaled(code, near, shifted, n)


def _expm1(code: _Code, x: int) -> int:
    # Half the result, doubled at last: the power of two of the largest results is no float.
    shifted, _, r = _reduced(code, code.at_most(code.at_least(x, -20.0), 89.0))
    half_power = code.power_of_two(code.int_op("subi", code.bits(shifted), code.integer(1)))
    half = code.fma(half_power, _expm1_near_zero(code, r), code.sub(half_power, code.number(0.5)))
    return code.op("math.copysign", code.add(half, half), x)


def _tanh(code: _Code, x: int) -> int:
    # From 9.1 on tanh is 1. With x = n·ln(2)/2 + h, expm1(2h)/2 = h + h²·(2·c₀ + 4·c₁·h + …).
    bounded = code.at_most(code.at_least(x, -10.0), 10.0)
    shifted = code.fma(bounded, code.number(2 / math.log(2.0)), code.number(_ROUNDER))
    n = code.sub(shifted, code.number(_ROUNDER))
    h = code.fma(n, code.number(-_LN2_HI / 2), bounded)
    h = code.fma(n, code.number(-_LN2_LO / 2), h)
    doubled = [c * 2.0 ** (k + 1) for k, c in enumerate(_EXP)]
    near = code.fma(code.mul(h, h), code.polynomial(h, doubled), h)
    power = code.power_of_two(code.bits(shifted))
    half = code.fma(power, near, code.fma(power, code.number(0.5), code.number(-0.5)))
    return code.op("math.copysign", code.op("arith.divf", half, code.add(half, code.number(1.0))), x)


def _erf(code: _Code, x: int) -> int:
    return _erf_by_table(code, x) if code.machine.looks_up else _erf_by_exponential(code, x)


def _erf_by_table(code: _Code, x: int) -> int:
    last = len(_ERF_TABLE[0]) - 1
    t = code.at_most(code.op("math.absf", x), last * _ERF_STEP)
    shifted = code.fma(t, code.number(1 / _ERF_STEP), code.number(_ROUNDER))
    d = code.fma(code.sub(shifted, code.number(_ROUNDER)), code.number(-_ERF_STEP), t)
    index = code.bits(shifted)
    total = code.lookup(index, _ERF_TABLE[-1])
    for coefficients in reversed(_ERF_TABLE[:-1]):
        total = code.fma(total, d, code.lookup(index, coefficients))
    return code.op("math.copysign", total, x)


def _erf_by_exponential(code: _Code, x: int) -> int:
    # From 3.92 on erf is 1.
    t = code.at_most(code.op("math.absf", x), 4.0)
    z = code.mul(code.op("arith.negf", t), code.polynomial(t, _ERF))
    shifted, _, r = _reduced(code, z)
    power = code.power_of_two(code.bits(shifted))
    rest = code.sub(code.number(1.0), power)
    size = code.sub(rest, code.mul(power, _expm1_near_zero(code, r)))
    return code.op("math.copysign", size, x)


def _log(code: _Code, x: int) -> int:
    is_small = code.compare("olt", x, code.number(_SMALLEST_NORMAL))
    normal = code.select(is_small, code.mul(x, code.number(2.0**_MANTISSA_BITS)), x)
    bits = code.bits(normal)
    above_root = code.int_op("subi", bits, code.integer(struct.unpack("<i", struct.pack("<f", math.sqrt(0.5)))[0]))
    exponent = code.int_op("shrsi", above_root, code.integer(_MANTISSA_BITS))
    scale = code.int_op("shli", exponent, code.integer(_MANTISSA_BITS))
    f = code.sub(code.float_of(code.int_op("subi", bits, scale)), code.number(1.0))
    shift = code.select(is_small, code.number(-_MANTISSA_BITS), code.number(0.0))
    k = code.add(code.op("arith.sitofp", exponent), shift)
    square = code.mul(f, f)
    tail = code.fma(code.mul(square, f), code.polynomial(f, _LOG), code.mul(k, code.number(_LN2_LO)))
    tail = code.fma(square, code.number(-0.5), tail)
    result = code.fma(k, code.number(_LN2_HI), code.add(f, tail))
    return _log_of_specials(code, x, result)


def _log_of_specials(code: _Code, x: int, result: int) -> int:
    """``result`` for finite positive ``x``; infinity and NaN are their own logarithms."""
    zero = code.number(0.0)
    outside = code.select(code.compare("oeq", x, zero), code.number(-math.inf), code.number(math.nan))
    result = code.select(code.compare("olt", x, code.number(math.inf)), result, x)
    return code.select(code.compare("ole", x, zero), outside, result)


_FUNCTIONS: Mapping[str, Callable[[_Code, int], int]] = {
    "math.erf": _erf,
    "math.exp": _exp,
    "math.exp2": _exp2,
    "math.expm1": _expm1,
    "math.log": _log,
    "math.tanh": _tanh,
}


def is_expanded(instruction: Instruction) -> bool:
    """Whether :func:`expand` replaces the instruction by arithmetic."""
    return instruction.name in _FUNCTIONS and instruction.result in ("f32", *_HALF_PRECISION)


def expand(nest: AnyNest, machine: Machine) -> AnyNest:
    """The nest with every function that this module knows written out, in its body and in its epilogue. A machine
    without fused multiply-add keeps the library's functions."""
    if not machine.fused:
        return nest
    first = len(nest.inputs) + len(nest.outputs) + len(nest.scalars)
    body, yields = _expanded(nest.body, nest.yields, first, machine)
    epilogue = nest.epilogue
    if epilogue is not None:
        first = len(nest.outputs) + len(epilogue.inputs) + len(epilogue.scalars)
        epilogue = _expanded_epilogue(epilogue, first, machine)
    return replace(nest, body=body, yields=yields, epilogue=epilogue)


def _expanded_epilogue(epilogue: AnyEpilogue, first: int, machine: Machine) -> AnyEpilogue:
    body, yields = _expanded(epilogue.body, epilogue.yields, first, machine)
    return replace(epilogue, body=body, yields=yields)


def _expanded(
    body: tuple[Instruction, ...], yields: tuple[int, ...], first: int, machine: Machine
) -> tuple[tuple[Instruction, ...], tuple[int, ...]]:
    """Body and yields with functions written out; values below ``first`` keep their numbers."""
    if not any(is_expanded(i) for i in body):
        return body, yields
    code = _Code(first, machine)
    numbers = list(range(first))
    for instruction in body:
        operands = tuple(numbers[v] for v in instruction.operands)
        if is_expanded(instruction):
            numbers.append(_call(code, instruction, operands[0]))
        else:
            numbers.append(code.append(replace(instruction, operands=operands)))
    return tuple(code.instructions), tuple(numbers[v] for v in yields)


def _call(code: _Code, instruction: Instruction, x: int) -> int:
    function = _FUNCTIONS[instruction.name]
    if instruction.result == "f32":
        return function(code, x)
    wide = function(code, code.op("arith.extf", x))
    return code.op("arith.truncf", wide, result=instruction.result)
