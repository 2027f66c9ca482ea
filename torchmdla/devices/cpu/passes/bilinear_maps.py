"""Sums of bilinear algorithms: Winograd's transforms, and the sums of Strassen's matrix product.

Winograd's convolution computes ``m`` neighbouring results of a filter of ``r`` taps as ``AT [(G g) * (BT d)]``. Here
``d`` are the ``n = m + r - 1`` inputs, ``g`` are the taps, and ``*`` multiplies elementwise. That takes ``n`` products
instead of ``m r``. In two dimensions, each matrix is applied along both.

The matrices are the transposed Toom-Cook construction at points of the line (Blahut, Fast Algorithms for Signal
Processing, 2010, section 5.2; Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015). Row ``j`` of
``G`` and column ``j`` of ``AT`` contain the powers of point ``j``. Row ``j`` of ``BT`` contains the coefficients of the
polynomial that is zero at all other points.

Transforms of integers have multiples of these rows without fractions, so that sums are exact. Their results are
multiples of the convolution's, modulo 2**32. A product with the inverse of the odd factor, and a shift, restore them
(:func:`restore`).

Strassen's matrix product in Winograd's form has seven products of sums of quarters instead of eight products. Both
factors and the result are divided into quarters, ``A B / C D``. Among all algorithms with seven products, this form has
the fewest sums (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 23.1). The error of an element is
bounded by the largest rows and columns, not by its own. Small elements beside large ones are less exact than with a
plain sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from torchmdla.devices.cpu.ir.expressions import Expression, constant, operation

KIND = "f32"
ZERO = constant(0.0, KIND)

# The types of sums of quantised integers, of 8 bits, and of sums of products of these sums.
SHORT, WHOLE = "i16", "i32"

Matrix = tuple[tuple[Fraction, ...], ...]

# The place of a value in a tile along each dimension, and the values at all places.
Place = tuple[int, ...]
Values = Mapping[Place, Expression]

# The finite points of transforms, by the number of points including infinity. Rows of points of opposite sign share
# terms. Among such sets these have the least error, or nearly: the root mean square over random images and taps. For
# three taps and four results, 5/8 and 3/2 have 0.42 of the error of the usual 1 and 2.
_POINTS: Mapping[int, Sequence[Fraction]] = {
    places: [Fraction(value) for value in values.split()]
    for places, values in {
        3: "1 -1",
        4: "0 1 -1",
        5: "3/8 -3/8 9/8 -9/8",
        6: "0 5/8 -5/8 3/2 -3/2",
        7: "3/8 -3/8 7/8 -7/8 15/8 -15/8",
        8: "0 1/2 -1/2 1 -1 2 -2",
    }.items()
}


# The same for integers. The first set for six places has simpler multiples. The second loses two bits of sums in two
# dimensions, instead of six.
_INTEGER_POINTS: Mapping[int, Sequence[Sequence[Fraction]]] = {
    places: [[Fraction(value) for value in values.split()] for values in sets]
    for places, sets in {3: ["0 1"], 4: ["0 1 -1"], 5: ["0 1 -1 2"], 6: ["0 1 -1 2 -2", "0 1 -1 2 -1/2"]}.items()
}


def has_transforms(results: int, taps: int) -> bool:
    """Return whether there are transforms for ``results`` and ``taps``."""
    return results + taps - 1 in _POINTS


@dataclass(frozen=True)
class Transforms:
    """Matrices of an algorithm: ``inputs`` is ``BT`` (n×n), ``taps`` is ``G`` (n×r), ``outputs`` is ``AT`` (m×n).

    The results are ``divisor`` times those of the convolution.
    """

    inputs: Matrix
    taps: Matrix
    outputs: Matrix
    divisor: int = 1

    @property
    def results(self) -> int:
        """Return m, the results of a tile along a dimension."""
        return len(self.outputs)

    @property
    def products(self) -> int:
        """Return n, the inputs of a tile along a dimension, which is also the number of products."""
        return len(self.inputs)

    @property
    def most_taps(self) -> int:
        """Return r, the taps of a tile along a dimension."""
        return len(self.taps[0])

    def drop_tap(self) -> Transforms:
        """Return the transforms for one tap less, at the same points without infinity.

        The product at infinity would be zero.
        """
        inputs, taps = (_matrix([row[:-1] for row in matrix[:-1]]) for matrix in (self.inputs, self.taps))
        return replace(self, inputs=inputs, taps=taps)


@cache
def transforms(results: int, taps: int) -> Transforms:
    """Return the transforms for tiles of ``results`` results and ``taps`` taps.

    Raises:
        KeyError: the transforms do not exist (:func:`has_transforms`).
    """
    return _transforms_at(_POINTS[results + taps - 1], results, taps)


@cache
def integer_transforms(results: int, taps: int) -> Sequence[Transforms]:
    """Return the transforms without fractions for tiles of ``results`` results and ``taps`` taps, simple ones first."""
    return [
        _without_fractions(_transforms_at(points, results, taps))
        for points in _INTEGER_POINTS.get(results + taps - 1, ())
    ]


def _without_fractions(exact: Transforms) -> Transforms:
    """Return the least multiples of rows that are integers, with outputs that make up for them."""
    scales = [tuple(map(_least_multiple, rows)) for rows in zip(exact.inputs, exact.taps, strict=True)]
    inputs, taps = (
        _matrix([[a * scale[k] for a in row] for row, scale in zip(rows, scales, strict=True)])
        for k, rows in enumerate((exact.inputs, exact.taps))
    )
    outputs = [[a / math.prod(scale) for a, scale in zip(row, scales, strict=True)] for row in exact.outputs]
    divisor = math.lcm(*(a.denominator for row in outputs for a in row))
    return Transforms(inputs, taps, _matrix([[a * divisor for a in row] for row in outputs]), divisor)


def _least_multiple(row: Sequence[Fraction]) -> Fraction:
    """Return the least factor with which all numbers of a row are integers."""
    return Fraction(math.lcm(*(a.denominator for a in row)), math.gcd(*(a.numerator for a in row)))


def are_sums_exact(tiling: Sequence[Transforms], terms: int) -> bool:
    """Return whether integer transforms compute convolutions of ``terms`` products of 8-bit integers exactly.

    Sums of each factor have to fit in 16 bits. Where divisors are even, the shift of the results loses their highest
    bits, which have to be copies of the sign.
    """
    # The sums of a row's positive and of its negative factors, along all dimensions.
    signed = {(Fraction(1), Fraction(0))}
    for each in tiling:
        rows = [(sum(a for a in row if a > 0), -sum(a for a in row if a < 0)) for row in each.inputs]
        signed = {(p * a + n * b, p * b + n * a) for p, n in signed for a, b in rows}
    weights = math.prod(max(sum(map(abs, row)) for row in each.taps) for each in tiling)
    lost = _split_power(math.prod(each.divisor for each in tiling))[1]
    fit = max(map(max, signed)) * 255 < 2**15 and weights * 128 < 2**15
    return bool(fit and (terms * 255 * 128) << lost < 2**31)


def _split_power(number: int) -> tuple[int, int]:
    """Return the odd factor of a number, and the power of two by which it is multiplied."""
    power = (number & -number).bit_length() - 1
    return number >> power, power


def restore(total: Expression, divisor: int) -> Expression:
    """Return an integer of 32 bits from its product with ``divisor`` modulo 2**32 (:func:`are_sums_exact`)."""
    odd, power = _split_power(divisor)
    inverse = (pow(odd, -1, 2**32) + 2**31) % 2**32 - 2**31
    if inverse != 1:
        total = operation("arith.muli", [total, constant(inverse, WHOLE)], WHOLE)
    return operation("arith.shrsi", [total, constant(power, WHOLE)], WHOLE) if power else total


def _transforms_at(points: Sequence[Fraction], results: int, taps: int) -> Transforms:
    scales = [math.prod(p - q for q in points if q != p) for p in points]
    last = len(points)

    def powers(count: int) -> list[list[Fraction]]:
        """Return a row for each power, and a column for each point. The last column is infinity."""
        return [[*(p**k for p in points), Fraction(int(k == count - 1))] for k in range(count)]

    outputs = powers(results)
    filters = [[row[j] / (scales[j] if j < last else 1) for row in powers(taps)] for j in range(last + 1)]
    inputs = [_expand_roots([q for q in points if q != p]) for p in points]
    padded = [[*row, *[Fraction(0)] * (last + 1 - len(row))] for row in [*inputs, _expand_roots(points)]]
    return Transforms(_matrix(padded), _matrix(filters), _matrix(outputs))


def _expand_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the product of ``x - root``, the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [high - root * low for high, low in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
    return coefficients


def _matrix(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))


# Matrices times expressions.


def apply_matrices(matrices: Sequence[Matrix], values: Values, fused: bool) -> Values:
    """Return ``values`` multiplied by a matrix along each dimension, in the order of their places.

    Values at other places are zero. ``fused``: multiply-add of floats is one instruction.
    """
    results, zero = dict(values), constant(0, next(iter(values.values())).type)
    for d, matrix in enumerate(matrices):
        lines: dict[Place, dict[int, Expression]] = {}
        for place, value in results.items():
            lines.setdefault((*place[:d], *place[d + 1 :]), {})[place[d]] = value
        results = {
            (*rest[:d], k, *rest[d:]): value
            for rest, line in lines.items()
            for k, value in enumerate(_product(matrix, [line.get(j, ZERO) for j in range(len(matrix[0]))], fused))
        }
    return {place: zero if value is ZERO else value for place, value in sorted(results.items())}


def _product(matrix: Matrix, vector: Sequence[Expression], fused: bool) -> list[Expression]:
    """Return a matrix times a vector."""
    return [combine(_sum(left, vector, fused), _sum(right, vector, fused)) for left, combine, right in _rows(matrix)]


# Terms of a sum, grouped by factor. Each group has the positions of its values, and whether they are added or
# subtracted.
_Terms = tuple[tuple[float, tuple[tuple[bool, int], ...]], ...]
_Row = tuple[_Terms, Callable[[Expression, Expression], Expression], _Terms]


@cache
def _rows(matrix: Matrix) -> list[_Row]:
    """Return each row as a sum or difference of two parts, the second of which may be empty.

    Rows of points of opposite sign differ only in signs. They are the sum and the difference of their common and their
    other terms.
    """
    results: list[_Row] = []
    for number, row in enumerate(matrix):
        partner = next((k for k, other in enumerate(matrix) if _is_mirrored(row, other)), None)
        if partner is None:
            results.append((_terms(row), _add, ()))
            continue
        first, second = sorted((number, partner))
        pairs = list(zip(matrix[first], matrix[second], strict=True))
        common = _terms([a if a == b else Fraction(0) for a, b in pairs])
        other = _terms([a if a != b else Fraction(0) for a, b in pairs])
        results.append((common, _add if number == first else _subtract, other))
    return results


def _is_mirrored(row: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    pairs = [(a, b) for a, b in zip(row, other, strict=True) if a or b]
    return all(abs(a) == abs(b) for a, b in pairs) and {a == b for a, b in pairs} == {True, False}


def _terms(factors: Sequence[Fraction]) -> _Terms:
    """Return the terms of a row, grouped by the size of their factor.

    Values with the same factor up to sign are added first, since rows may share that sum. Groups with factor 1 or -1
    come first.
    """
    alike: dict[Fraction, list[int]] = {}
    for place, factor in enumerate(factors):
        if factor:
            alike.setdefault(abs(factor), []).append(place)
    terms = [(factors[places[0]], places) for places in alike.values()]
    terms.sort(key=lambda term: abs(term[0]) != 1)
    return tuple((float(factor), tuple((factors[k] == factor, k) for k in places)) for factor, places in terms)


def _sum(terms: _Terms, values: Sequence[Expression], fused: bool) -> Expression:
    total = ZERO
    for factor, places in terms:
        part = ZERO
        for is_added, place in places:
            part = (_add if is_added else _subtract)(part, values[place])
        if part is ZERO:
            continue
        if abs(factor) == 1:
            total = (_add if factor == 1 else _subtract)(total, part)
        elif part.type in (SHORT, WHOLE):
            number = constant(int(abs(factor)), part.type)
            product = operation("arith.muli", [part, number], part.type)
            total = (_add if factor > 0 else _subtract)(total, product)
        elif total is ZERO or not fused:
            total = _add(total, operation("arith.mulf", [part, constant(factor, KIND)], KIND))
        else:
            total = operation("math.fma", [part, constant(factor, KIND), total], KIND)
    return total


def _add(left: Expression, right: Expression) -> Expression:
    if right is ZERO:
        return left
    return right if left is ZERO else _combine("arith.add", left, right)


def _subtract(left: Expression, right: Expression) -> Expression:
    if right is ZERO:
        return left
    return _combine("arith.sub", constant(0, right.type) if left is ZERO else left, right)


def _combine(name: str, left: Expression, right: Expression) -> Expression:
    """Return the result of an op for floats or for integers, without its last letter in ``name``."""
    if right.type in (SHORT, WHOLE):
        return operation(f"{name}i", [left, right], right.type)
    return operation(f"{name}f", [left, right], KIND)


# Strassen's sums.

PRODUCTS = 7

# The half of a matrix's rows, and the half of its columns.
QUARTERS: Sequence[Place] = (0, 0), (0, 1), (1, 0), (1, 1)
A, B, C, D = QUARTERS


def left_sums(of: Values) -> list[Expression]:
    """Return the left factor of each product."""
    lower = _add(of[C], of[D])
    rest = _subtract(lower, of[A])
    return [of[A], of[B], _subtract(of[B], rest), of[D], lower, rest, _subtract(of[A], of[C])]


def right_sums(of: Values) -> list[Expression]:
    """Return the right factor of each product."""
    upper = _subtract(of[B], of[A])
    rest = _subtract(of[D], upper)
    return [of[A], of[C], of[D], _subtract(rest, of[C]), upper, rest, _subtract(of[D], of[B])]


def result_sums(products: Sequence[Expression]) -> Values:
    """Return the quarters of the result."""
    first, second, third, fourth, fifth, sixth, seventh = products
    common = _add(first, sixth)
    lower, right = _add(common, seventh), _add(common, fifth)
    return {A: _add(first, second), B: _add(right, third), C: _subtract(lower, fourth), D: _add(lower, fifth)}
