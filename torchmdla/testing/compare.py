"""Comparison of torchmdla's results with PyTorch's, and the table of tolerances.

An element passes if::

    |actual - expected| <= tolerance.relative * |expected|
                           + (tolerance.largest * largest + tolerance.absolute) * sqrt(layers)

where ``largest`` is the largest finite magnitude in ``expected``.

Sums need the second term. Their rounding error is proportional to the magnitude of the addends, not of the result. With
random signs it grows with the square root of the number of chained sums (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd edition, section 2.8). Fixed-point formats of devices have a constant step, which ``absolute`` bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """Tolerance of a dtype or number format.

    Attributes:
        relative: relative to the element.
        largest: relative to the largest element of the tensor.
        absolute: in the unit of the values.
    """

    relative: float
    largest: float
    absolute: float = 0.0


_EXACT = Tolerance(0.0, 0.0)

# Dtypes that are not listed are compared exactly. float32 allows about 100 units in the last place, because other
# algorithms than eager's are allowed (Winograd's convolution, Strassen's product, vector maths of a few ulp). The half
# formats allow 4, because their sums are rounded at other places than eager's.
TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-12, 1e-12),
    torch.complex128: Tolerance(1e-12, 1e-12),
    torch.float32: Tolerance(1e-5, 1e-5),
    torch.complex64: Tolerance(1e-5, 1e-5),
    torch.float16: Tolerance(4e-3, 4e-3),
    torch.bfloat16: Tolerance(3e-2, 3e-2),
}

# The error of torchmdla may exceed the error of eager runs with other rounding by this factor.
DOUBT = 8.0

# Number formats of devices, or of products of float32, by name. Other formats have the tolerance of the dtype.
# "fixed16" has 16 bits, 8 of them fractional: weights of a tenth keep four to five bits, and errors of independent
# signs average out over a sum.
FORMATS: dict[str, Tolerance] = {
    "bfloat16": TOLERANCES[torch.bfloat16],
    "fixed16": Tolerance(0.0, 3e-2, 2.0**-7),
    "fixed8": Tolerance(0.0, 2e-1, 2.0**-3),
    "variable": Tolerance(0.0, 2e-2, 0.0),
}


def assert_matches(
    actual: Any,
    expected: Any,
    *,
    layers: int = 1,
    strides: bool = True,
    precision: str | None = None,
    others: Sequence[Any] = (),
) -> None:
    """Check that ``actual`` is what PyTorch would have returned.

    Compares nested tuples, lists and dicts of tensors, numbers and other values. Tensors must agree in dtype, sizes,
    layout, device, ``requires_grad``, the order of strides, and values; NaN equals NaN, an infinity equals itself.
    Integers and booleans are exact. A Python ``float`` is held to float32, since it may come from a tensor's item.

    Args:
        actual: the result of torchmdla.
        expected: the result of eager.
        layers: the number of chained layers that sum (convolutions, products of matrices); 1 for one op.
        strides: whether strides must agree. They are compared in dimensions of more than one element, in tensors that
            are not empty. For dense tensors this is the memory format (contiguous, channels-last, any permutation).
        precision: the device's number format (``"fixed16"``). Its tolerance replaces those of the float dtypes.
        others: results that are as correct as ``expected``, from inputs rounded differently or in float64. An element
            may differ by :data:`DOUBT` times the difference between these and ``expected``. The difference is taken at
            the element, or is the median of its tensor if that is larger.

    Raises:
        AssertionError: the first difference: its location in the structure and its kind, and for values the worst
            element with its error and the tolerance.
    """
    doubts = _extra_tolerances(expected, others)
    for path, result, other in _pairs(actual, expected, "result"):
        if isinstance(other, Tensor):
            _check_tensor(path, result, other, layers, strides, precision, doubts.get(path))
        elif path not in doubts:
            _check_value(path, result, other, layers)


def _extra_tolerances(expected: Any, others: Sequence[Any]) -> dict[str, Tensor]:
    """Return, for each path to a tensor, the difference between ``others`` and ``expected``, times :data:`DOUBT`.

    Paths of other values are included, with an infinite difference, if the values differ.
    """
    doubts: dict[str, Tensor] = {}
    for other in others:
        for path, alternative, wanted in _pairs(other, expected, "result"):
            if not isinstance(wanted, Tensor):
                if alternative != wanted:
                    doubts[path] = torch.tensor(math.inf)
                continue
            same = alternative.shape == wanted.shape
            error = DOUBT * _errors(_widen(alternative), _widen(wanted)) if same else torch.tensor(math.inf)
            doubts[path] = torch.maximum(doubts[path], error) if path in doubts else error
    return {path: _raise_to_median(doubt) for path, doubt in doubts.items()}


def _raise_to_median(doubt: Tensor) -> Tensor:
    """Raise each doubt to at least the median. A small doubt may come from roundings that happen to cancel."""
    finite = doubt[doubt.isfinite()]
    return doubt.clamp(min=float(finite.median())) if finite.numel() else doubt


def largest_error(actual: Any, expected: Any) -> float:
    """Return the largest error of all floating-point tensors, relative to the largest element of the tensor.

    The error is infinite where one value is NaN or infinite and the other is not.

    Raises:
        AssertionError: the structures or sizes differ.
    """
    worst = 0.0
    for path, result, other in _pairs(actual, expected, "result"):
        if isinstance(other, Tensor) and other.numel() and (other.is_floating_point() or other.is_complex()):
            _require_equal(path, "sizes", tuple(result.shape), tuple(other.shape))
            error = float(_errors(_widen(result), _widen(other)).max())
            # If the largest element is 0, only equal tensors have an error of 0.
            worst = max(worst, error / (_largest(other) or 1.0))
    return worst


def _pairs(actual: Any, expected: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the corresponding leaves of both structures, each with its path, ``result[0]['key']``."""
    if isinstance(expected, Mapping):
        _require(isinstance(actual, Mapping), path, f"a {_kind(expected)} was expected, got {_kind(actual)}")
        _require_equal(path, "keys", list(actual), list(expected))
        children = [(f"{path}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        # A scripted function returns another named tuple class than eager: compare the kind and the fields.
        kind = tuple if isinstance(expected, tuple) else list if isinstance(expected, list) else type(expected)
        _require(isinstance(actual, kind), path, f"a {_kind(expected)} was expected, got {_kind(actual)}")
        _require_equal(path, "fields", getattr(actual, "_fields", None), getattr(expected, "_fields", None))
        _require_equal(path, "length", len(actual), len(expected))
        children = [(f"{path}[{i}]", *both) for i, both in enumerate(zip(actual, expected, strict=True))]
    else:
        yield path, actual, expected
        return
    for where, left, other in children:
        yield from _pairs(left, other, where)


def _check_tensor(
    path: str,
    actual: Any,
    expected: Tensor,
    layers: int,
    strides: bool,
    precision: str | None,
    doubt: Tensor | None,
) -> None:
    _require(isinstance(actual, Tensor), path, f"a tensor was expected, got {_kind(actual)}")
    for name in ("dtype", "layout", "device", "requires_grad"):
        _require_equal(path, name, getattr(actual, name), getattr(expected, name))
    _require_equal(path, "sizes", tuple(actual.shape), tuple(expected.shape))
    if strides and expected.layout == torch.strided and expected.numel():
        wanted = [(d, s) for d, s in enumerate(expected.stride()) if expected.size(d) > 1]
        actual_strides = [(d, actual.stride(d)) for d, _ in wanted]
        what = f"strides {actual.stride()}, expected {expected.stride()} for sizes {tuple(expected.shape)}"
        _require(actual_strides == wanted, path, what)
    if expected.numel():
        _check_elements(path, actual, expected, layers, precision, doubt)


def _check_elements(
    path: str,
    actual: Tensor,
    expected: Tensor,
    layers: int,
    precision: str | None = None,
    doubt: Tensor | None = None,
) -> None:
    tolerance = TOLERANCES.get(expected.dtype, _EXACT)
    if precision is not None and expected.is_floating_point():
        tolerance = FORMATS.get(precision, tolerance)
    result, other = _widen(actual), _widen(expected)
    error = _errors(result, other)
    finite = torch.where(other.isfinite(), other.abs(), 0)
    allowed = tolerance.relative * finite
    allowed = allowed + math.sqrt(layers) * (tolerance.largest * _largest(expected) + tolerance.absolute)
    if doubt is not None:
        allowed = allowed + doubt
    # Only an infinite doubt excuses an infinite error.
    excess = torch.nan_to_num(error - allowed, nan=math.inf if doubt is None else 0.0)
    if not bool((excess > 0).any()):
        return
    worst = int(excess.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), expected.shape))
    values = actual.detach().flatten()[worst].item(), expected.detach().flatten()[worst].item()
    absolute, magnitude = error.flatten()[worst].item(), finite.flatten()[worst].item()
    raise AssertionError(
        f"{path}: {int((excess > 0).sum())} of {expected.numel()} elements of {expected.dtype} differ; the worst is "
        f"at {index}: {values[0]!r}, expected {values[1]!r}; error {absolute:.3g}, "
        f"{_ratio(absolute, magnitude):.3g} of the element and {_ratio(absolute, _largest(expected)):.3g} of the "
        f"largest; allowed {allowed.flatten()[worst].item():.3g} ({tolerance}, layers {layers})"
    )


def _check_value(path: str, actual: Any, expected: Any, layers: int) -> None:
    _require(type(actual) is type(expected), path, f"a {_kind(expected)} was expected, got {_kind(actual)}")
    if isinstance(expected, float):
        _check_elements(path, torch.tensor(actual), torch.tensor(expected, dtype=torch.float32), layers)
    else:
        _require_equal(path, "value", actual, expected)


def _widen(tensor: Tensor) -> Tensor:
    """Return the values as int64, float64 or complex128, in which differences are exact enough."""
    plain = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    if plain.is_complex():
        return plain.to(torch.complex128)
    return plain.to(torch.float64 if plain.is_floating_point() else torch.int64)


def _errors(actual: Tensor, expected: Tensor) -> Tensor:
    """Return |actual - expected| as float64.

    The error is 0 where both are NaN or the same infinity, and infinite where only one is.
    """
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    # The difference of two int64 may overflow to 0 or below: unequal integers are at least 1 apart.
    difference = (actual - expected).abs().to(torch.float64)
    if not actual.is_floating_point() and not actual.is_complex():
        difference = difference.abs().clamp(min=1)
    difference = torch.nan_to_num(difference, nan=math.inf, posinf=math.inf)
    return torch.where(same, 0.0, difference)


def _largest(tensor: Tensor) -> float:
    """Return the largest finite magnitude, or 0 if no element is finite."""
    magnitude = _widen(tensor).abs().to(torch.float64)
    return float(torch.where(magnitude.isfinite(), magnitude, 0).max())


def _ratio(error: float, magnitude: float) -> float:
    return error / magnitude if magnitude else math.inf


def _require_equal(path: str, what: str, actual: object, expected: object) -> None:
    _require(bool(actual == expected), path, f"{what} {actual}, expected {expected}")


def _require(holds: bool, path: str, message: str) -> None:
    if not holds:
        raise AssertionError(f"{path}: {message}")


def _kind(value: object) -> str:
    return type(value).__name__
