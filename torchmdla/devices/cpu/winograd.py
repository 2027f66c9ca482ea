"""Winograd's transforms: a convolution of few products, as matrices of numbers.

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
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

Matrix = tuple[tuple[Fraction, ...], ...]

# The finite points of transforms for three taps, by the number of results; infinity is the last point of each. Those
# of four results have 0.44 of the error that the usual 0, ±1, ±2 have (random images, root of the mean square).
_POINTS: Mapping[int, Sequence[Fraction]] = {
    2: [Fraction(0), Fraction(1), Fraction(-1)],
    4: [Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)],
}

TAPS = 3


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


@cache
def transforms(results: int) -> Transforms:
    """Those of tiles of ``results``, which :data:`_POINTS` has, for three taps."""
    points = _POINTS[results]
    scales = [math.prod(p - q for q in points if q != p) for p in points]
    last = len(points)

    def powers(count: int) -> list[list[Fraction]]:
        """A row for each power, a column for each point, infinity the last."""
        return [[*(p**k for p in points), Fraction(int(k == count - 1))] for k in range(count)]

    outputs = powers(results)
    taps = [[row[j] / (scales[j] if j < last else 1) for row in powers(TAPS)] for j in range(last + 1)]
    inputs = [_with_roots([q for q in points if q != p]) for p in points]
    padded = [[*row, *[Fraction(0)] * (last + 1 - len(row))] for row in [*inputs, _with_roots(points)]]
    return Transforms(_matrix(padded), _matrix(taps), _matrix(outputs))


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients, of the constant first, of the product of ``x - root``."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [high - root * low for high, low in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found


def _matrix(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))
