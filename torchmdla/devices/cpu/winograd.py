"""Winograd's transforms: matrices for convolutions with few products, and their application to expressions.

``m`` neighbouring results of a filter of ``r`` taps are ``AT [(G g) * (BT d)]``. Here ``d`` are the ``n = m + r - 1``
inputs, ``g`` are the taps, and ``*`` multiplies elementwise. That takes ``n`` products instead of ``m r``. In two
dimensions, each matrix is applied along both.

The matrices are the transposed Toom-Cook construction at points of the line (Blahut, Fast Algorithms for Signal
Processing, 2010, section 5.2; Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015). Row ``j`` of
``G`` and column ``j`` of ``AT`` contain the powers of point ``j``. Row ``j`` of ``BT`` contains the coefficients of the
polynomial that is zero at all other points.
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


def has_transforms(results: int, taps: int) -> bool:
    """Return whether there are transforms for ``results`` and ``taps``."""
    return results + taps - 1 in _POINTS


@dataclass(frozen=True)
class Transforms:
    """Matrices of an algorithm: ``inputs`` is ``BT`` (n×n), ``taps`` is ``G`` (n×r), ``outputs`` is ``AT`` (m×n)."""

    inputs: Matrix
    taps: Matrix
    outputs: Matrix

    @property
    def results(self) -> int:
        """Return m, the results of a tile along a dimension."""
        return len(self.outputs)

    @property
    def products(self) -> int:
        """Return n, the inputs of a tile along a dimension, which is also the number of products."""
        return len(self.inputs)

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
    points = _POINTS[results + taps - 1]
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


def apply_matrices(
    matrices: Sequence[Matrix], values: Mapping[tuple[int, ...], Expression], fused: bool
) -> dict[tuple[int, ...], Expression]:
    """Return ``values`` (f32) multiplied by a matrix along each dimension, in the order of their positions.

    ``values`` are indexed by position. ``fused``: multiply-add is one instruction.
    """
    results = dict(values)
    for d, matrix in enumerate(matrices):
        lines: dict[tuple[int, ...], dict[int, Expression]] = {}
        for place, value in results.items():
            lines.setdefault((*place[:d], *place[d + 1 :]), {})[place[d]] = value
        results = {
            (*rest[:d], k, *rest[d:]): value
            for rest, line in lines.items()
            for k, value in enumerate(_product(matrix, [line[j] for j in sorted(line)], fused))
        }
    return dict(sorted(results.items()))


def _product(matrix: Matrix, vector: Sequence[Expression], fused: bool) -> list[Expression]:
    """Return a matrix times a vector."""
    results: list[Expression] = []
    for first, op, second in _rows(matrix):
        value = _sum(first, vector, fused)
        results.append(value if not op else binary(op, value, _sum(second, vector, fused)))
    return results


# Terms of a sum, grouped by factor. Each group has the positions of its values, and whether they are added or
# subtracted.
_Terms = tuple[tuple[float, tuple[tuple[bool, int], ...]], ...]


@cache
def _rows(matrix: Matrix) -> list[tuple[_Terms, str, _Terms]]:
    """Return each row as a sum or difference of two parts, or as one part.

    Rows of points of opposite sign differ only in signs. They are the sum and the difference of their common and their
    other terms.
    """
    results: list[tuple[_Terms, str, _Terms]] = []
    for number, row in enumerate(matrix):
        partner = next((k for k, other in enumerate(matrix) if _is_mirrored(row, other)), None)
        if partner is None:
            results.append((_terms(row), "", ()))
            continue
        first, second = sorted((number, partner))
        pairs = list(zip(matrix[first], matrix[second], strict=True))
        common = _terms([a if a == b else Fraction(0) for a, b in pairs])
        other = _terms([a if a != b else Fraction(0) for a, b in pairs])
        results.append((common, "arith.addf" if number == first else "arith.subf", other))
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
            part = binary("arith.addf" if is_added else "arith.subf", part, values[place])
        total = _plus(total, factor, part, fused)
    return total


def _plus(total: Expression, factor: float, value: Expression, fused: bool) -> Expression:
    """Return ``total`` plus ``factor`` times ``value``."""
    if value is ZERO:
        return total
    if factor in (1, -1):
        return binary("arith.addf" if factor == 1 else "arith.subf", total, value)
    number = constant(factor, KIND)
    if total is ZERO or not fused:
        return binary("arith.addf", total, binary("arith.mulf", value, number))
    return operation("math.fma", [value, number, total], KIND)


def binary(op: str, left: Expression, right: Expression) -> Expression:
    """Return a sum or a difference, of f32."""
    if right is ZERO and op in ("arith.addf", "arith.subf"):
        return left
    return right if left is ZERO and op == "arith.addf" else operation(op, [left, right], KIND)
