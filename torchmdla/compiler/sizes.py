"""Sizes that vary between calls: polynomials in symbols, fitted to the numbers at several values of the symbols.

A dynamic program is written out at a few sizes (:class:`~torchmdla.compiler.program.Sample`), by the same code that
writes static programs. A number that differs between the samples must be a polynomial in the symbols. Otherwise the
program is not dynamic.
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

# Largest power of a symbol and largest degree of a term. A product of matrices has s² elements for each of b batches.
_MOST_POWER = 2
_MOST_DEGREE = 3

# Above this number of symbols, pairs of terms are searched only among those of a lower degree.
_FEW_SYMBOLS = 4

# Relative rounding error of a combination at a point in double precision.
_ROUNDING = 1e-9

Exponents = tuple[int, ...]


class NoPolynomial(ValueError):
    """Error of numbers that are not a polynomial of the symbols, within the forms that are searched."""


@dataclass(frozen=True)
class Size:
    """Polynomial with integer coefficients that is not constant.

    ``terms`` are pairs of exponents and a coefficient, in ascending order of exponents. The exponents end with the last
    symbol of the term. The coefficient is not 0.

    Sums, differences and products with integers and sizes are sizes, or integers if all symbols cancel. So is a
    quotient that is exact at all values of the symbols; any other quotient raises ``ValueError``. Sizes are equal if
    they are equal at all values of the symbols. Sizes are not ordered. :func:`is_positive` proves that one is larger
    than another, and :func:`estimate` compares costs.
    """

    terms: tuple[tuple[Exponents, int], ...]

    @classmethod
    def symbol(cls, number: int) -> Size:
        """Return symbol ``number`` as a size."""
        return cls((((0,) * number + (1,), 1),))

    def at(self, values: Sequence[int]) -> int:
        """Return the number where the symbols have ``values``."""
        return sum(factor * _monomial(exponents, values) for exponents, factor in self.terms)

    def __add__(self, other: int | Size) -> int | Size:
        return _sum_terms([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __mul__(self, other: int | Size) -> int | Size:
        if not isinstance(other, Size):
            return Size(tuple((e, f * other) for e, f in self.terms)) if other else 0
        pairs = itertools.product(self.terms, other.terms)
        return _sum_terms([(_product(a, b), x * y) for (a, x), (b, y) in pairs])

    __rmul__ = __mul__

    def __neg__(self) -> int | Size:
        return self * -1

    def __sub__(self, other: int | Size) -> int | Size:
        return self + other * -1

    def __rsub__(self, other: int) -> int | Size:
        return self * -1 + other

    def __floordiv__(self, other: int | Size) -> int | Size:
        result = quotient(self, other)
        if result is None:
            raise ValueError(f"{self} is not at all sizes a multiple of {other}")
        return result

    def __rfloordiv__(self, other: int) -> int | Size:
        if other:
            raise ValueError(f"{other} is not at all sizes a multiple of {self}")
        return 0

    def __str__(self) -> str:
        def name(exponents: Exponents, factor: int) -> str:
            powers = [f"s{k}" for k, power in enumerate(exponents) for _ in range(power)]
            return "*".join(([str(factor)] if factor != 1 or not powers else []) + powers)

        return " + ".join(name(*term) for term in self.terms)


# A number of a program: of elements, of iterations, a stride, an offset.
AnySize = int | Size


def static(size: AnySize) -> int:
    """Return ``size``, which must not vary.

    Raises:
        TypeError: ``size`` varies.
    """
    if isinstance(size, Size):
        raise TypeError(f"{size} is not the same at all sizes")
    return size


def at(size: int | Size, values: Sequence[int]) -> int:
    """Return ``size`` where the symbols have ``values``."""
    return size.at(values) if isinstance(size, Size) else size


def terms(size: int | Size) -> int | tuple[tuple[Exponents, int], ...]:
    """Return ``size`` in types that JSON has."""
    return size.terms if isinstance(size, Size) else size


# Value of a symbol for comparisons of costs before the program's typical sizes are used. It is larger than the sizes
# that passes treat as small. It is a prime, so that sizes of other forms differ.
_TYPICAL_SIZE = 61


def estimate(size: int | Size) -> int:
    """Return a number to compare costs and to order sizes by: ``size`` where all symbols have the same value."""
    return sum(factor * _TYPICAL_SIZE ** sum(exponents) for exponents, factor in _terms(size))


def is_positive(number: int | Size) -> bool:
    """Return whether ``number`` is provably positive wherever all symbols are 2 or larger.

    The proof replaces each symbol by the symbol plus 2. It succeeds if no term is negative and one is constant.
    """
    if not isinstance(number, Size):
        return number > 0
    total: int | Size = 0
    for exponents, factor in number.terms:
        product: int | Size = factor
        for k, power in enumerate(exponents):
            for _ in range(power):
                product = (Size.symbol(k) + 2) * product
        total = total + product
    expanded = list(_terms(total))
    return all(factor > 0 for _, factor in expanded) and not any(expanded[0][0])


def quotient(number: int | Size, divisor: int | Size) -> int | Size | None:
    """Return ``number / divisor`` if that is an integer at all values of the symbols, else None.

    The function divides polynomials. The leading term has the highest exponents.
    """
    if not isinstance(number, Size) and not isinstance(divisor, Size):
        return number // divisor if number % divisor == 0 else None
    *_, (leading, coefficient) = _terms(divisor)
    result: int | Size = 0
    rest = number
    while rest != 0:
        *_, (exponents, factor) = _terms(rest)
        power = _ratio(exponents, leading)
        if power is None or factor % coefficient:
            return None
        term = _sum_terms([(power, factor // coefficient)])
        result, rest = result + term, rest - term * divisor
    return result


def fit(points: Sequence[Sequence[int]], numbers: Sequence[int]) -> int | Size:
    """Return the polynomial that is ``numbers[k]`` at ``points[k]``, with the fewest terms.

    :func:`_forms` lists the forms that are tried.

    The coefficients are integers. For reliability there are at least two more points than coefficients, or one more if
    few combinations have that number of coefficients.

    Raises:
        NoPolynomial: no polynomial with integer coefficients fits.
    """
    return numbers[0] if len(set(numbers)) == 1 else _fit(tuple(map(tuple, points)), tuple(numbers))


@lru_cache(maxsize=4096)
def _fit(points: tuple[tuple[int, ...], ...], numbers: tuple[int, ...]) -> int | Size:
    wanted = np.array(numbers, dtype=np.float64)
    for form in _tables(points):
        factors = form.inverses @ wanted
        error = np.abs(np.einsum("fpt,ft->fp", form.columns, factors) - wanted).max(axis=1)
        for k in np.flatnonzero(error <= _ROUNDING * np.abs(wanted).max()):
            if (polynomial := _fit_exactly(form.monomials[k], points, numbers)) is not None:
                return polynomial
    raise NoPolynomial(f"{list(numbers)} at {list(points)}")


@dataclass(frozen=True)
class _Table:
    """Combinations of the same number of monomials and a constant, with their values at all points."""

    monomials: list[tuple[Exponents, ...]]
    columns: np.ndarray[Any, Any]  # [combination, point, monomial]
    inverses: np.ndarray[Any, Any]  # [combination, monomial, point], pseudo-inverses


@lru_cache(maxsize=64)
def _tables(points: tuple[tuple[int, ...], ...]) -> list[_Table]:
    """Return the combinations that ``points`` can distinguish, one table for each number of monomials."""
    tables = []
    for monomials in _forms(len(points[0])):
        count = len(monomials[0]) if monomials else 0
        if not monomials or len(points) < count + 1 + (2 if len(monomials) > 1 and count <= 2 else 1):
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
    """Return the combinations of monomials that are searched, beside a constant.

    They are one monomial, two of low degree, and the terms of a multiplied-out product of two sums. Such products are
    the sizes of an image with a border (``xy, x, y``) and of several images.
    """
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
    """Return every monomial that is searched."""
    monomials = set()
    for degree in range(1, _MOST_DEGREE + 1):
        for factors in itertools.combinations_with_replacement(range(symbols), degree):
            exponents = tuple(factors.count(k) for k in range(symbols))
            if max(exponents) <= _MOST_POWER:
                monomials.add(exponents)
    return list(monomials)


def _product(left: Exponents, right: Exponents) -> Exponents:
    return tuple(itertools.starmap(operator.add, itertools.zip_longest(left, right, fillvalue=0)))


def _ratio(dividend: Exponents, other: Exponents) -> Exponents | None:
    """Return the monomial whose product with ``other`` is ``dividend``; None if it does not exist."""
    powers = list(itertools.starmap(operator.sub, itertools.zip_longest(dividend, other, fillvalue=0)))
    return None if any(power < 0 for power in powers) else tuple(powers)


def _fit_exactly(
    monomials: Sequence[Exponents], points: Sequence[Sequence[int]], numbers: Sequence[int]
) -> int | Size | None:
    """Return the combination of ``monomials`` and a constant that fits all points, or None."""
    columns = [*monomials, (0,) * len(points[0])]
    rows = [[Fraction(_monomial(e, point)) for e in columns] for point in points]
    factors = _solve([[*row, Fraction(n)] for row, n in zip(rows[: len(columns)], numbers, strict=False)])
    if factors is None or any(f.denominator != 1 for f in factors):
        return None
    if any(sum(f * r for f, r in zip(factors, row, strict=True)) != n for row, n in zip(rows, numbers, strict=True)):
        return None
    return _sum_terms([(e, int(f)) for e, f in zip(columns, factors, strict=True)])


def _solve(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """Solve a square system with its right side by Gauss-Jordan elimination; return None if it is singular."""
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
    return math.prod(v**e for v, e in zip(values, exponents, strict=False))


def _terms(size: int | Size) -> Iterator[tuple[Exponents, int]]:
    return iter(size.terms) if isinstance(size, Size) else iter([((), size)])


def _sum_terms(terms: Sequence[tuple[Exponents, int]]) -> int | Size:
    """Return the sum of ``terms``: an integer if no symbol is left."""
    sums: dict[Exponents, int] = {}
    for exponents, factor in terms:
        used = max((k + 1 for k, power in enumerate(exponents) if power), default=0)
        sums[exponents[:used]] = sums.get(exponents[:used], 0) + factor
    nonzero = tuple(sorted((e, f) for e, f in sums.items() if f))
    if not any(e for e, _ in nonzero):
        return nonzero[0][1] if nonzero else 0
    return Size(nonzero)
