"""The one way in which results of torchmdla are compared with PyTorch's, and the one table of tolerances.

An element passes if::

    |actual - expected| <= tolerance.relative * |expected|
                           + (tolerance.largest * largest + tolerance.absolute) * sqrt(layers)

where ``largest`` is the largest finite magnitude in ``expected``. The second term is what sums need: their rounding
error is in proportion to what was added up, not to what is left of it, and with random signs it grows with the root of
the number of sums behind an output (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 2.8).
Fixed-point formats of devices have steps of one size, hence ``absolute``.
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
    """``relative`` is in parts of the element, ``largest`` in parts of the tensor's largest element, ``absolute`` in
    nothing."""

    relative: float
    largest: float
    absolute: float = 0.0


_EXACT = Tolerance(0.0, 0.0)

# Every dtype that is not here is compared exactly. About 100 units in the last place for float32, where other
# algorithms than eager's are allowed (Winograd's convolution, Strassen's product, vector maths of a few ulp); 4 for
# the half formats, whose sums are rounded at other places than eager's.
TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-12, 1e-12),
    torch.complex128: Tolerance(1e-12, 1e-12),
    torch.float32: Tolerance(1e-5, 1e-5),
    torch.complex64: Tolerance(1e-5, 1e-5),
    torch.float16: Tolerance(4e-3, 4e-3),
    torch.bfloat16: Tolerance(3e-2, 3e-2),
}

# How much farther from eager's results others may be than eager's results that are rounded otherwise.
DOUBT = 8.0

# Number formats of devices, or of products of float32, by their names; those that are not here are held to the dtype.
# "fixed16" has 16 bits, 8 of them
# fractional: weights of a tenth keep four to five bits, and errors of independent signs average out over a sum.
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
    """Checks that ``actual`` is what PyTorch would have returned.

    Compares nested tuples, lists and dicts of tensors, numbers and other values. Tensors must agree in dtype, sizes,
    layout, device, ``requires_grad``, the order of strides, and values; NaN equals NaN, an infinity equals itself.
    Integers and booleans are exact. A Python ``float`` is held to float32, since it may come from a tensor's item.

    Args:
        actual: what torchmdla returned.
        expected: what eager returned.
        layers: how many layers that sum (convolutions, products of matrices) the result has behind it; 1 for one op.
        strides: whether strides must agree. They are compared in dimensions of more than one element, in tensors that
            hold any: for dense tensors this is the memory format (contiguous, channels-last, any permutation).
        precision: the device's number format (``"fixed16"``), whose tolerance counts instead of the float dtypes'.
        others: results that are as right as ``expected``, of inputs rounded otherwise or in float64. An element may be
            off by so much more as they differ from ``expected`` there, or in half of its tensor, times :data:`DOUBT`.

    Raises:
        AssertionError: the first difference: where it is in the structure, what it is, and for values the worst
            element with its error and the tolerance.
    """
    doubts = _doubts(expected, others)
    for path, one, other in _pairs(actual, expected, "result"):
        if isinstance(other, Tensor):
            _check_tensor(path, one, other, layers, strides, precision, doubts.get(path))
        elif path not in doubts:
            _check_value(path, one, other, layers)


def _doubts(expected: Any, others: Sequence[Any]) -> dict[str, Tensor]:
    """For each tensor, how far ``others`` are from it, times :data:`DOUBT`; other values that differ are there, too."""
    found: dict[str, Tensor] = {}
    for other in others:
        for path, one, wanted in _pairs(other, expected, "result"):
            if not isinstance(wanted, Tensor):
                if one != wanted:
                    found[path] = torch.tensor(math.inf)
                continue
            same = one.shape == wanted.shape
            error = DOUBT * _errors(_wide(one), _wide(wanted)) if same else torch.tensor(math.inf)
            found[path] = torch.maximum(found[path], error) if path in found else error
    return {path: _evened(doubt) for path, doubt in found.items()}


def _evened(doubt: Tensor) -> Tensor:
    """Where few roundings happen to cancel, an element is as much in doubt as half of the others."""
    finite = doubt[doubt.isfinite()]
    return doubt.clamp(min=float(finite.median())) if finite.numel() else doubt


def largest_error(actual: Any, expected: Any) -> float:
    """The largest error of any floating-point tensor of ``actual``, relative to the largest element of that tensor.

    Infinite where one is NaN or infinite and the other is not.

    Raises:
        AssertionError: the structures or sizes differ.
    """
    worst = 0.0
    for path, one, other in _pairs(actual, expected, "result"):
        if isinstance(other, Tensor) and other.numel() and (other.is_floating_point() or other.is_complex()):
            _same(path, "sizes", tuple(one.shape), tuple(other.shape))
            error = float(_errors(_wide(one), _wide(other)).max())
            # Only equal tensors have an error of 0 beside a largest element of 0.
            worst = max(worst, error / (_largest(other) or 1.0))
    return worst


def _pairs(actual: Any, expected: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The leaves of both structures side by side, each with its path, ``result[0]['key']``."""
    if isinstance(expected, Mapping):
        _require(isinstance(actual, Mapping), path, f"a {_kind(expected)} was expected, got {_kind(actual)}")
        _same(path, "keys", list(actual), list(expected))
        children = [(f"{path}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        # A named tuple of a scripted function is another class than eager's: its kind and its fields must agree.
        kind = tuple if isinstance(expected, tuple) else list if isinstance(expected, list) else type(expected)
        _require(isinstance(actual, kind), path, f"a {_kind(expected)} was expected, got {_kind(actual)}")
        _same(path, "fields", getattr(actual, "_fields", None), getattr(expected, "_fields", None))
        _same(path, "length", len(actual), len(expected))
        children = [(f"{path}[{i}]", *both) for i, both in enumerate(zip(actual, expected, strict=True))]
    else:
        yield path, actual, expected
        return
    for where, one, other in children:
        yield from _pairs(one, other, where)


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
        _same(path, name, getattr(actual, name), getattr(expected, name))
    _same(path, "sizes", tuple(actual.shape), tuple(expected.shape))
    if strides and expected.layout == torch.strided and expected.numel():
        wanted = [(d, s) for d, s in enumerate(expected.stride()) if expected.size(d) > 1]
        found = [(d, actual.stride(d)) for d, _ in wanted]
        what = f"strides {actual.stride()}, expected {expected.stride()} for sizes {tuple(expected.shape)}"
        _require(found == wanted, path, what)
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
    one, other = _wide(actual), _wide(expected)
    error = _errors(one, other)
    finite = torch.where(other.isfinite(), other.abs(), 0)
    allowed = tolerance.relative * finite
    allowed = allowed + math.sqrt(layers) * (tolerance.largest * _largest(expected) + tolerance.absolute)
    if doubt is not None:
        allowed = allowed + doubt
    # An infinite error is excused by an infinite doubt alone.
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
        _same(path, "value", actual, expected)


def _wide(tensor: Tensor) -> Tensor:
    """The values in a dtype in which their differences are exact enough: int64, float64 or complex128."""
    plain = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    if plain.is_complex():
        return plain.to(torch.complex128)
    return plain.to(torch.float64 if plain.is_floating_point() else torch.int64)


def _errors(actual: Tensor, expected: Tensor) -> Tensor:
    """|actual - expected| as float64: 0 where both are NaN or the same infinity, infinite where only one is."""
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    # A difference of int64 may overflow to 0 or below: unequal integers are at least 1 apart.
    difference = (actual - expected).abs().to(torch.float64)
    if not actual.is_floating_point() and not actual.is_complex():
        difference = difference.abs().clamp(min=1)
    difference = torch.nan_to_num(difference, nan=math.inf, posinf=math.inf)
    return torch.where(same, 0.0, difference)


def _largest(tensor: Tensor) -> float:
    """The largest finite magnitude; 0 when there is none."""
    magnitude = _wide(tensor).abs().to(torch.float64)
    return float(torch.where(magnitude.isfinite(), magnitude, 0).max())


def _ratio(error: float, magnitude: float) -> float:
    return error / magnitude if magnitude else math.inf


def _same(path: str, what: str, actual: object, expected: object) -> None:
    _require(bool(actual == expected), path, f"{what} {actual}, expected {expected}")


def _require(holds: bool, path: str, message: str) -> None:
    if not holds:
        raise AssertionError(f"{path}: {message}")


def _kind(value: object) -> str:
    return type(value).__name__
