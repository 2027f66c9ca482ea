"""Sizes that vary between calls: polynomials in symbols, found from what numbers are at several values of these.

A dynamic program is written out at a few sizes (:class:`~torchmdla.compiler.program.Sample`), by the same code that
writes static ones. What differs between the samples is a polynomial in the symbols, or the program is not dynamic.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

# The terms that a polynomial may have: of a symbol, and of all together. A product of matrices has s² elements for each
# of b batches.
_MOST_POWER = 2
_MOST_DEGREE = 3

# Of more symbols, two terms are looked for among those of a lower degree.
_FEW_SYMBOLS = 4

# Relative, of what a combination is at a point in double precision.
_ROUNDING = 1e-9

Exponents = tuple[int, ...]


class NoPolynomial(ValueError):
    """The numbers are no polynomial of the symbols, as far as one is looked for."""


@dataclass(frozen=True)
class Size:
    """A polynomial with integer coefficients that is not constant: ``terms`` are pairs of the exponents of all symbols
    and a coefficient, which is not 0, in ascending order of exponents.

    Sums, differences and products with integers and sizes are sizes, or integers where all symbols cancel. Sizes are
    equal if they are at all values of the symbols; they have no order.
    """

    terms: tuple[tuple[Exponents, int], ...]

    @classmethod
    def symbol(cls, number: int, symbols: int) -> Size:
        """Symbol ``number`` of ``symbols``."""
        return cls(((tuple(int(k == number) for k in range(symbols)), 1),))

    def at(self, values: Sequence[int]) -> int:
        """The number where the symbols have ``values``."""
        return sum(factor * _monomial(exponents, values) for exponents, factor in self.terms)

    def __add__(self, other: int | Size) -> int | Size:
        return _collected([*self.terms, *_terms(other, len(self.terms[0][0]))])

    __radd__ = __add__

    def __mul__(self, other: int | Size) -> int | Size:
        if not isinstance(other, Size):
            return Size(tuple((e, f * other) for e, f in self.terms)) if other else 0
        pairs = itertools.product(self.terms, _terms(other, len(self.terms[0][0])))
        return _collected([(tuple(map(sum, zip(a, b, strict=True))), x * y) for (a, x), (b, y) in pairs])

    __rmul__ = __mul__

    def __neg__(self) -> int | Size:
        return self * -1

    def __sub__(self, other: int | Size) -> int | Size:
        return self + other * -1

    def __rsub__(self, other: int) -> int | Size:
        return self * -1 + other

    def __str__(self) -> str:
        def name(exponents: Exponents, factor: int) -> str:
            powers = [f"s{k}" for k, power in enumerate(exponents) for _ in range(power)]
            return "*".join(([str(factor)] if factor != 1 or not powers else []) + powers)

        return " + ".join(name(*term) for term in self.terms)


def at(size: int | Size, values: Sequence[int]) -> int:
    """``size`` where the symbols have ``values``."""
    return size.at(values) if isinstance(size, Size) else size


def terms(size: int | Size, symbols: int) -> int | tuple[tuple[Exponents, int], ...]:
    """``size``, in which no symbol stands but the first ``symbols``, in types that JSON has."""
    if not isinstance(size, Size):
        return size
    return tuple((exponents[:symbols], factor) for exponents, factor in size.terms)


def fit(points: Sequence[Sequence[int]], numbers: Sequence[int]) -> int | Size:
    """The polynomial that is ``numbers[k]`` at ``points[k]``, with the fewest terms of those that :func:`_forms` lists.
    More points than coefficients, which are integers, make sure of it: two, or one for the multiplied-out products.

    Raises:
        NoPolynomial: there is none with integer coefficients.
    """
    return numbers[0] if len(set(numbers)) == 1 else _fit(tuple(map(tuple, points)), tuple(numbers))


@lru_cache(maxsize=4096)
def _fit(points: tuple[tuple[int, ...], ...], numbers: tuple[int, ...]) -> int | Size:
    wanted = np.array(numbers, dtype=np.float64)
    for form in _tables(points):
        factors = form.inverses @ wanted
        error = np.abs(np.einsum("fpt,ft->fp", form.columns, factors) - wanted).max(axis=1)
        for k in np.flatnonzero(error <= _ROUNDING * np.abs(wanted).max()):
            if (found := _solved(form.monomials[k], points, numbers)) is not None:
                return found
    raise NoPolynomial(f"{list(numbers)} at {list(points)}")


@dataclass(frozen=True)
class _Table:
    """Combinations of as many monomials, a constant among them, and what they are at all points."""

    monomials: list[tuple[Exponents, ...]]
    columns: np.ndarray[Any, Any]  # [combination, point, monomial]
    inverses: np.ndarray[Any, Any]  # [combination, monomial, point], pseudo-inverses


@lru_cache(maxsize=64)
def _tables(points: tuple[tuple[int, ...], ...]) -> list[_Table]:
    """Of the combinations that ``points`` tell from others, by their numbers of monomials."""
    tables = []
    for monomials in _forms(len(points[0])):
        count = len(monomials[0]) if monomials else 0
        if not monomials or len(points) < count + 1 + (2 if count <= 2 else 1):
            continue
        values = {e: [float(_monomial(e, point)) for point in points] for e in set(itertools.chain(*monomials))}
        ones = [1.0] * len(points)
        columns = np.array([[*(values[e] for e in several), ones] for several in monomials]).transpose(0, 2, 1)
        scale = np.abs(columns).max(axis=1, keepdims=True)
        inverses = np.linalg.pinv(columns / scale) / scale.transpose(0, 2, 1)
        tables.append(_Table(monomials, columns, inverses))
    return tables


@lru_cache(maxsize=64)
def _forms(symbols: int) -> list[list[tuple[Exponents, ...]]]:
    """The combinations of monomials that are looked for, beside a constant: one; two of low degree; and what a product
    of two sums is multiplied out, of an image with a border (``xy, x, y``) and of several of them."""
    singles = sorted(_exponents(symbols), key=lambda e: (sum(e), max(e), e))
    low = singles if symbols <= _FEW_SYMBOLS else [e for e in singles if sum(e) < _MOST_DEGREE]
    units = [e for e in singles if sum(e) == 1]
    images = [(_product(x, y), x, y) for x, y in itertools.combinations(units, 2)]
    batches = [(tuple(_product(z, e) for e in image)) for image in images for z in units if z not in image[1:]]
    return [
        [(e,) for e in singles],
        list(itertools.combinations(low, 2)),
        images + batches,
        [(*batch, z) for batch, z in zip(batches, [z for i in images for z in units if z not in i[1:]], strict=True)],
    ]


def _exponents(symbols: int) -> list[Exponents]:
    """Every monomial that is looked for."""
    found = set()
    for degree in range(1, _MOST_DEGREE + 1):
        for factors in itertools.combinations_with_replacement(range(symbols), degree):
            exponents = tuple(factors.count(k) for k in range(symbols))
            if max(exponents) <= _MOST_POWER:
                found.add(exponents)
    return list(found)


def _product(one: Exponents, other: Exponents) -> Exponents:
    return tuple(map(operator.add, one, other))


def _solved(
    monomials: Sequence[Exponents], points: Sequence[Sequence[int]], numbers: Sequence[int]
) -> int | Size | None:
    """The combination of ``monomials`` and a constant that goes through all points, if there is one."""
    columns = [*monomials, (0,) * len(points[0])]
    rows = [[Fraction(_monomial(e, point)) for e in columns] for point in points]
    factors = _solve([[*row, Fraction(n)] for row, n in zip(rows[: len(columns)], numbers, strict=False)])
    if factors is None or any(f.denominator != 1 for f in factors):
        return None
    if any(sum(f * r for f, r in zip(factors, row, strict=True)) != n for row, n in zip(rows, numbers, strict=True)):
        return None
    return _collected([(e, int(f)) for e, f in zip(columns, factors, strict=True)])


def _solve(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """Gauss-Jordan elimination of a square system with its right side; None if it is singular."""
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return None
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(len(rows)):
            if i != k:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return [row[-1] for row in rows]


def _monomial(exponents: Exponents, values: Sequence[int]) -> int:
    return math.prod(v**e for v, e in zip(values, exponents, strict=True))


def _terms(size: int | Size, symbols: int) -> Iterator[tuple[Exponents, int]]:
    return iter(size.terms) if isinstance(size, Size) else iter([((0,) * symbols, size)])


def _collected(terms: Sequence[tuple[Exponents, int]]) -> int | Size:
    """The sum of ``terms``: an integer where no symbol is left."""
    sums: dict[Exponents, int] = {}
    for exponents, factor in terms:
        sums[exponents] = sums.get(exponents, 0) + factor
    kept = tuple(sorted((e, f) for e, f in sums.items() if f))
    if not any(any(e) for e, _ in kept):
        return kept[0][1] if kept else 0
    return Size(kept)
