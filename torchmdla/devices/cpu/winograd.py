"""Winograd's transforms: a convolution of few products, as matrices and what they make of expressions.

``m`` neighbouring results of a filter of ``r`` taps are ``AT [(G g) * (BT d)]``, where ``d`` are the ``n = m + r - 1``
inputs, ``g`` the taps, and ``*`` multiplies element by element: ``n`` products in place of ``m r``. In two dimensions
each matrix is applied along either.

The construction is Toom's and Cook's at points of the line, transposed (Blahut, Fast Algorithms for Signal Processing,
2010, section 5.2; Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015): row ``j`` of ``G`` and
column ``j`` of ``AT`` hold the powers of point ``j``, row ``j`` of ``BT`` the coefficients of the polynomial that is
zero at all other points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from torchmdla.devices.cpu.expressions import Expression, constant, operation

KIND = "f32"
ZERO = constant(0.0, KIND)

Matrix = tuple[tuple[Fraction, ...], ...]

# The finite points of transforms, by the number of places, of which infinity is the last. Of pairs of both signs, whose
# rows have terms in common, these have the least error, or nearly (random images and taps, root of the mean square): of
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


def has_transforms(results: int, taps: int) -> bool:
    """Whether there are transforms of so many results and taps."""
    return results + taps - 1 in _POINTS


@dataclass(frozen=True)
class Transforms:
    """``inputs`` is ``BT`` (n×n), ``taps`` is ``G`` (n×r), ``outputs`` is ``AT`` (m×n)."""

    inputs: Matrix
    taps: Matrix
    outputs: Matrix

    @property
    def results(self) -> int:
        """m, the results of a tile along a dimension."""
        return len(self.outputs)

    @property
    def products(self) -> int:
        """n, the inputs of a tile along a dimension, and its products."""
        return len(self.inputs)

    def of_fewer_taps(self) -> Transforms:
        """Those for one tap less at the same points but infinity, whose product would be zero."""
        inputs, taps = (_matrix([row[:-1] for row in matrix[:-1]]) for matrix in (self.inputs, self.taps))
        return replace(self, inputs=inputs, taps=taps)


@cache
def transforms(results: int, taps: int) -> Transforms:
    """Those of tiles of ``results`` for so many ``taps``.

    Raises:
        KeyError: there are none (:func:`has_transforms`).
    """
    points = _POINTS[results + taps - 1]
    scales = [math.prod(p - q for q in points if q != p) for p in points]
    last = len(points)

    def powers(count: int) -> list[list[Fraction]]:
        """A row for each power, a column for each point, infinity the last."""
        return [[*(p**k for p in points), Fraction(int(k == count - 1))] for k in range(count)]

    outputs = powers(results)
    filters = [[row[j] / (scales[j] if j < last else 1) for row in powers(taps)] for j in range(last + 1)]
    inputs = [_with_roots([q for q in points if q != p]) for p in points]
    padded = [[*row, *[Fraction(0)] * (last + 1 - len(row))] for row in [*inputs, _with_roots(points)]]
    return Transforms(_matrix(padded), _matrix(filters), _matrix(outputs))


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients, of the constant first, of the product of ``x - root``."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [high - root * low for high, low in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found


def _matrix(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))


# Matrices times expressions.


def transformed(
    matrices: Sequence[Matrix], values: Mapping[tuple[int, ...], Expression], fused: bool
) -> dict[tuple[int, ...], Expression]:
    """A matrix along each dimension of ``values`` (f32), which are named by their places; in order of places.
    ``fused``: multiply-add is one instruction."""
    found = dict(values)
    for d, matrix in enumerate(matrices):
        lines: dict[tuple[int, ...], dict[int, Expression]] = {}
        for place, value in found.items():
            lines.setdefault((*place[:d], *place[d + 1 :]), {})[place[d]] = value
        found = {
            (*rest[:d], k, *rest[d:]): value
            for rest, line in lines.items()
            for k, value in enumerate(_product(matrix, [line[j] for j in sorted(line)], fused))
        }
    return dict(sorted(found.items()))


def _product(matrix: Matrix, vector: Sequence[Expression], fused: bool) -> list[Expression]:
    """A matrix times a vector."""
    made: list[Expression] = []
    for first, op, second in _rows(matrix):
        value = _sum(first, vector, fused)
        made.append(value if not op else binary(op, value, _sum(second, vector, fused)))
    return made


# Terms of a sum: those of one factor, which some have with the other sign, together.
_Terms = tuple[tuple[float, tuple[tuple[bool, int], ...]], ...]


@cache
def _rows(matrix: Matrix) -> list[tuple[_Terms, str, _Terms]]:
    """Each row as a sum of two, or as one and none. Rows that differ in signs alone, as those of points of both signs
    do, are the sum and the difference of what they have in common and of what they have not."""
    made: list[tuple[_Terms, str, _Terms]] = []
    for number, row in enumerate(matrix):
        partner = next((k for k, other in enumerate(matrix) if _is_mirrored(row, other)), None)
        if partner is None:
            made.append((_terms(row), "", ()))
            continue
        first, second = sorted((number, partner))
        pairs = list(zip(matrix[first], matrix[second], strict=True))
        common = _terms([a if a == b else Fraction(0) for a, b in pairs])
        other = _terms([a if a != b else Fraction(0) for a, b in pairs])
        made.append((common, "arith.addf" if number == first else "arith.subf", other))
    return made


def _is_mirrored(row: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    pairs = [(a, b) for a, b in zip(row, other, strict=True) if a or b]
    return all(abs(a) == abs(b) for a, b in pairs) and {a == b for a, b in pairs} == {True, False}


def _terms(factors: Sequence[Fraction]) -> _Terms:
    """Values whose factors are alike up to their signs are added first, since rows may share that; those that no number
    multiplies come before others."""
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
            part = binary("arith.addf" if is_added else "arith.subf", part, values[place])
        total = _plus(total, factor, part, fused)
    return total


def _plus(total: Expression, factor: float, value: Expression, fused: bool) -> Expression:
    """``total`` and ``factor`` times ``value``."""
    if value is ZERO:
        return total
    if factor in (1, -1):
        return binary("arith.addf" if factor == 1 else "arith.subf", total, value)
    number = constant(factor, KIND)
    if total is ZERO or not fused:
        return binary("arith.addf", total, binary("arith.mulf", value, number))
    return operation("math.fma", [value, number, total], KIND)


def binary(op: str, left: Expression, right: Expression) -> Expression:
    """A sum or a difference, of f32."""
    if right is ZERO and op in ("arith.addf", "arith.subf"):
        return left
    return right if left is ZERO and op == "arith.addf" else operation(op, [left, right], KIND)
