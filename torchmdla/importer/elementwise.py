"""Elementwise ops whose lowerings in torch-mlir are missing, inexact or wrong."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchmdla.errors import CompileError


def gelu(value: Tensor, approximate: str = "none") -> Tensor:
    """The tanh form is written out: upstream's has an error of 5e-5."""
    if approximate == "none":
        return torch.ops.aten.gelu(value)  # type: ignore[no-any-return]
    inner = math.sqrt(2.0 / math.pi) * (value + 0.044715 * (value * value * value))
    return 0.5 * value * (1.0 + torch.tanh(inner))


def softshrink(value: Tensor, lambd: float = 0.5) -> Tensor:
    """Moves towards zero by ``lambd``; NaN stays NaN."""
    return value - torch.clamp(value, -lambd, lambd)


def prelu(value: Tensor, weight: Tensor) -> Tensor:
    """One slope for all, or one for each channel (dimension 1)."""
    if weight.dim() == 1 and weight.numel() != 1:
        weight = weight.view([-1 if dim == 1 else 1 for dim in range(value.dim())])
    return torch.where(value > 0, value, value * weight)


def isfinite(value: Tensor) -> Tensor:
    """Integers are always finite."""
    if not value.is_floating_point():
        return torch.ones_like(value, dtype=torch.bool)
    return torch.abs(value) < math.inf


def nan_to_num(
    value: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replaces NaN by 0 and infinities by the largest finite numbers unless told otherwise."""
    if not value.is_floating_point():
        return value.clone()
    limits = torch.finfo(value.dtype)
    value = torch.where(torch.isnan(value), 0.0 if nan is None else nan, value)
    value = torch.where(value == math.inf, limits.max if posinf is None else posinf, value)
    return torch.where(value == -math.inf, limits.min if neginf is None else neginf, value)


def reciprocal(value: Tensor) -> Tensor:
    """A division: upstream's lowering ends the process on a zero."""
    return torch.div(1.0, value)


_POWERS = {
    0.5: torch.sqrt,
    1: lambda value: value.clone(),
    2: lambda value: value * value,
    3: lambda value: value * value * value,
    -0.5: torch.rsqrt,
    -1: reciprocal,
    -2: lambda value: reciprocal(value * value),
}


def pow_by_number(value: Tensor, exponent: float) -> Tensor:
    """The exponents that eager, too, does without ``pow``; integers by repeated multiplication."""
    if value.is_floating_point() and exponent in _POWERS:
        return _POWERS[exponent](value)
    if value.is_floating_point() or isinstance(exponent, float):
        return cast(Tensor, torch.ops.aten.pow.Tensor_Scalar(value, exponent))
    if not 1 <= exponent <= 8:
        raise CompileError(f"an integer power of {exponent} is not supported")
    power = value.to(torch.int64) if value.dtype == torch.bool else value
    return math.prod([power] * (exponent - 1), start=power)


def rsub(value: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
    """``other - alpha · value``."""
    return torch.sub(other, value, alpha=alpha)
