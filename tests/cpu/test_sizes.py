"""Polynomials for dynamic sizes: arithmetic, quotients, and properties that are proved."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmdla.compiler.sizes import AnySize, Size, at, estimate, fit, is_positive, quotient, static

S, T = Size.symbol(0), Size.symbol(1)

# Points with the smallest values of all symbols, and others.
POINTS = list(itertools.product((2, 3, 7, 61), repeat=2))


@st.composite
def sizes(draw: st.DrawFn) -> AnySize:
    """Return sums of a few terms of two symbols."""
    total: AnySize = draw(st.integers(-9, 9))
    for _ in range(draw(st.integers(0, 3))):
        term: AnySize = draw(st.integers(-5, 5))
        for symbol in draw(st.lists(st.sampled_from([S, T]), max_size=3)):
            term = term * symbol
        total = total + term
    return total


@given(sizes(), sizes())
def test_arithmetic_is_that_of_the_numbers(first: AnySize, other: AnySize) -> None:
    for point in POINTS:
        x, y = at(first, point), at(other, point)
        assert (at(first + other, point), at(first - other, point), at(first * other, point)) == (x + y, x - y, x * y)


@given(sizes(), sizes())
def test_a_product_divides_by_its_factors(first: AnySize, other: AnySize) -> None:
    if other != 0:
        assert quotient(first * other, other) == first


@given(sizes(), sizes())
def test_a_quotient_is_right_at_all_sizes(first: AnySize, other: AnySize) -> None:
    result = quotient(first, other) if other != 0 else None
    if result is not None:
        assert result * other == first


@given(sizes())
def test_sizes_proven_positive_are_positive(number: AnySize) -> None:
    assert not is_positive(number) or all(at(number, point) > 0 for point in POINTS)


@given(sizes())
def test_numbers_tell_the_polynomial(number: AnySize) -> None:
    """Check that a polynomial that ``fit`` returns has the given values.

    ``fit`` only supports some forms.
    """
    points = [(11, 13), (17, 19), (23, 29), (31, 37), (41, 43), (47, 59)]
    try:
        polynomial = fit(points, [at(number, point) for point in points])
    except ValueError:
        return
    assert [at(polynomial, point) for point in points] == [at(number, point) for point in points]


@pytest.mark.parametrize(
    ("number", "divisor", "expected"),
    [
        (S * T, S, T),
        (6 * S, 4, None),
        (S * S + 2 * S, S + 2, S),
        (S * T + S + T + 1, T + 1, S + 1),
        (S, T, None),
        (12, S, None),
        (0, S, 0),
        (12, 5, None),
    ],
    ids=str,
)
def test_quotients(number: AnySize, divisor: AnySize, expected: AnySize | None) -> None:
    assert quotient(number, divisor) == expected
    if expected is None and isinstance(divisor, Size):
        with pytest.raises(ValueError, match="not at all sizes a multiple"):
            _ = number // divisor


def test_sizes_have_no_order() -> None:
    with pytest.raises(TypeError):
        _ = S < 3  # type: ignore[operator]
    assert estimate(S * T) > estimate(60 * S) > estimate(S) > estimate(8)


def test_equal_sizes_are_one_however_they_are_made() -> None:
    assert S + T - S == T and hash(S + T - S) == hash(T)
    assert (S + 1) - S == 1


def test_a_size_that_varies_is_not_static() -> None:
    assert static(7) == 7
    with pytest.raises(TypeError, match="s0 is not the same at all sizes"):
        static(S)
