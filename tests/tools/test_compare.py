"""Tests of the comparison function: it finds the differences that it must find, and no others."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from torchmdla.testing.compare import TOLERANCES, assert_matches, largest_error

FLOATS = list(TOLERANCES)
EXACT = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def values(dtype: torch.dtype) -> torch.Tensor:
    """Return ``[4, 5]`` values: a zero, then magnitudes from 0.25 to 1."""
    data = torch.linspace(0.25, 1, 20).view(4, 5)
    data[0, 0] = 0
    return data.to(dtype) if dtype in TOLERANCES else (data * 100).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS + EXACT, ids=str)
def test_equal_values_match(dtype: torch.dtype) -> None:
    assert_matches(values(dtype), values(dtype).clone())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("factor", "passes"), [(0.5, True), (1.5, False)])
def test_tolerance_follows_the_table(dtype: torch.dtype, factor: float, passes: bool) -> None:
    expected = values(dtype)
    wide = expected.to(torch.complex128 if dtype.is_complex else torch.float64, copy=True)
    tolerance = TOLERANCES[dtype]
    wide[2, 3] += factor * (tolerance.relative * wide[2, 3] + tolerance.largest * wide.abs().max())
    actual = wide.to(dtype)
    if passes:
        assert_matches(actual, expected)
    else:
        with pytest.raises(AssertionError, match=r"result: 1 of 20 elements of .* at \(2, 3\)"):
            assert_matches(actual, expected)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_integers_are_exact(dtype: torch.dtype) -> None:
    expected = values(dtype)
    actual = expected.clone()
    actual[1, 2] = not bool(actual[1, 2]) if dtype is torch.bool else actual[1, 2] + 1
    with pytest.raises(AssertionError, match=r"1 of 20 .* at \(1, 2\)"):
        assert_matches(actual, expected)


def test_more_layers_allow_more() -> None:
    expected = torch.ones(3)
    actual = expected + 4e-5
    with pytest.raises(AssertionError, match=r"4\.01e-05 of the largest; allowed 2e-05"):
        assert_matches(actual, expected)
    assert_matches(actual, expected, layers=16)
    with pytest.raises(AssertionError):
        assert_matches(expected + 4e-4, expected, layers=16)


def test_small_elements_are_held_to_the_largest() -> None:
    expected = torch.tensor([100.0, 1e-6])
    assert_matches(torch.tensor([100.0, 9e-6]), expected)
    with pytest.raises(AssertionError, match=r"at \(1,\)"):
        assert_matches(torch.tensor([1.0, 9e-4]), torch.tensor([1.0, 1e-6]))


def strided(order: str) -> torch.Tensor:
    """Return the same ``[2, 3, 4, 5]`` values in a memory layout."""
    base = torch.arange(120.0).view(2, 3, 4, 5)
    layouts = {
        "contiguous": lambda: base,
        "channels last": lambda: base.contiguous(memory_format=torch.channels_last),
        "transposed": lambda: base.transpose(0, 1).contiguous().transpose(0, 1),
        "gaps": lambda: base.repeat_interleave(2, 3)[..., ::2],
    }
    return layouts[order]()


@pytest.mark.parametrize("actual", ["contiguous", "channels last", "transposed", "gaps"])
@pytest.mark.parametrize("expected", ["contiguous", "channels last", "transposed", "gaps"])
def test_order_of_strides_must_agree(actual: str, expected: str) -> None:
    if actual == expected:
        assert_matches(strided(actual), strided(expected))
        return
    with pytest.raises(AssertionError, match="strides"):
        assert_matches(strided(actual), strided(expected))
    assert_matches(strided(actual), strided(expected), strides=False)


def test_strides_that_mean_nothing_may_differ() -> None:
    one_row = torch.as_strided(torch.arange(5.0), (1, 5), (77, 1))
    assert_matches(one_row, torch.arange(5.0).view(1, 5))
    assert_matches(torch.empty(3, 0).t(), torch.empty(0, 3))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values(dtype: torch.dtype, special: float) -> None:
    expected = values(dtype)
    expected[1, 1] = special
    assert_matches(expected.clone(), expected)
    for actual, wanted in ((values(dtype), expected), (expected, values(dtype))):
        with pytest.raises(AssertionError, match=r"1 of 20 .* at \(1, 1\)"):
            assert_matches(actual, wanted)


def test_structures() -> None:
    expected = {"a": (torch.zeros(2), [1, True, None, "x"]), "b": 0.5}
    assert_matches({"a": (torch.zeros(2), [1, True, None, "x"]), "b": 0.5}, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64), "dtype torch.float32, expected torch.float64"),
        (torch.zeros(3, 1), torch.zeros(3), r"sizes \(3, 1\), expected \(3,\)"),
        (torch.zeros(0, 2), torch.zeros(2, 0), "sizes"),
        (torch.zeros(3), torch.zeros(3, requires_grad=True), "requires_grad False, expected True"),
        (torch.zeros(3), torch.zeros(3).to_sparse(), "layout"),
        (torch.zeros(3), torch.zeros(3, device="meta"), "device"),
        (0.0, torch.zeros(()), "a tensor was expected, got float"),
        (torch.zeros(()), 0.0, "a float was expected, got Tensor"),
        # The difference of these integers overflows.
        (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), "1 of 1 elements"),
        (torch.tensor([-(2**63)]), torch.zeros(1, dtype=torch.int64), "1 of 1 elements"),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), "1 of 1 elements"),
        (torch.tensor([math.nan]), torch.tensor([math.inf]), "1 of 1 elements"),
        # Infinity does not widen the tolerance.
        (torch.tensor([math.inf, 1.1]), torch.tensor([math.inf, 1.0]), r"at \(1,\)"),
        ((1, 2), (1, 2, 3), "result: length 2, expected 3"),
        ([1], (1,), "result: a tuple was expected, got list"),
        ({"a": 1}, {"b": 1}, "result: keys"),
        ((1,), {"b": 1}, "a dict was expected, got tuple"),
        (((0, [1, 2]),), ((0, [1, 3]),), r"result\[0\]\[1\]\[1\]: value 2, expected 3"),
        ({"a": (torch.zeros(2),)}, {"a": (torch.ones(2),)}, r"result\['a'\]\[0\]: 2 of 2"),
        (1, True, "a bool was expected, got int"),
        (1, 1.0, "a float was expected, got int"),
        (0.5, 0.6, "result: 1 of 1"),
        (None, torch.zeros(1), "a tensor was expected, got NoneType"),
        ("x", "y", "value x, expected y"),
    ],
)
def test_differences_are_found(actual: object, expected: object, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_matches(actual, expected)


class Eager(NamedTuple):
    x: int
    y: int


class Scripted(NamedTuple):
    x: int
    y: int


class Other(NamedTuple):
    x: int
    z: int


def test_named_tuples_agree_by_field() -> None:
    assert_matches(Scripted(1, 2), Eager(1, 2))
    with pytest.raises(AssertionError, match="fields"):
        assert_matches(Other(1, 2), Eager(1, 2))


def test_largest_error() -> None:
    expected = (torch.tensor([0.5, 4.0]), torch.arange(3), torch.zeros(2), torch.empty(0))
    actual = (torch.tensor([0.75, 4.0]), torch.arange(3), torch.zeros(2), torch.empty(0))
    assert largest_error(actual, expected) == 0.25 / 4
    assert largest_error(expected, expected) == 0
    assert largest_error(torch.tensor([math.nan]), torch.ones(1)) == math.inf


def test_a_devices_number_format_has_a_tolerance_of_its_own() -> None:
    exact = torch.tensor([1.0, 100.0])
    near = exact + 2.0**-8
    assert_matches(near, exact, precision="fixed16")
    with pytest.raises(AssertionError, match=r"elements of torch\.float32 differ"):
        assert_matches(near, exact, precision="float32")
