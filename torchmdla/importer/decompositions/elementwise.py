"""Elementwise ops whose lowerings in torch-mlir are missing, inexact or wrong.

Comparisons are written so that NaN selects the same branch as in PyTorch. A number may also be a 0-d tensor, which is
a float that is known only at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.types import COMPUTED


def gelu(value: Tensor, approximate: str = "none") -> Tensor:
    """Compute GELU. The tanh form is written out, because upstream's has an error of 5e-5."""
    if approximate == "none":
        return torch.ops.aten.gelu(value)  # type: ignore[no-any-return]
    inner = math.sqrt(2.0 / math.pi) * (value + 0.044715 * (value * value * value))
    return 0.5 * value * (1.0 + torch.tanh(inner))


def softshrink(value: Tensor, lambd: float = 0.5) -> Tensor:
    """Move each element towards zero by ``lambd``. NaN stays NaN."""
    return value - torch.clamp(value, -lambd, lambd)


def prelu(value: Tensor, weight: Tensor) -> Tensor:
    """Multiply negative elements by one slope for all, or by one slope for each channel (dimension 1)."""
    if weight.dim() == 1 and weight.numel() != 1:
        weight = weight.view([-1 if dim == 1 else 1 for dim in range(value.dim())])
    return torch.where(value > 0, value, value * weight)


def leaky_relu(value: Tensor, slope: float = 0.01) -> Tensor:
    """Compute leaky ReLU with a select.

    Upstream adds both sides. One side is NaN where an infinite slope meets the zero of the other side.
    """
    return torch.where(value > 0, value, value * slope)


def isfinite(value: Tensor) -> Tensor:
    """Return whether each element is finite. Integers are always finite."""
    if not value.is_floating_point():
        return torch.ones_like(value, dtype=torch.bool)
    return torch.abs(value) < math.inf


def hypot(value: Tensor, other: Tensor) -> Tensor:
    """Compute the hypotenuse without squares that overflow. It is infinite if one side is, even beside a NaN."""
    first, second = torch.abs(value), torch.abs(other)
    large, small = torch.maximum(first, second), torch.minimum(first, second)
    ratio = small / large
    length = torch.where(large == 0, large, large * torch.sqrt(1.0 + ratio * ratio))
    return torch.where((first == math.inf) | (second == math.inf), math.inf, length)


def logaddexp(value: Tensor, other: Tensor) -> Tensor:
    """Compute ``log(exp(value) + exp(other))``, with the larger of both factored out."""
    apart = torch.maximum(value, other) + torch.log1p(torch.exp(-torch.abs(value - other)))
    return torch.where((value == other) & (torch.abs(value) == math.inf), value, apart)


def sinc(value: Tensor) -> Tensor:
    """Compute ``sin(πx) / (πx)``, which is 1 at 0."""
    angle = value * math.pi
    return torch.where(value == 0, 1.0, torch.sin(angle) / angle)


def xlogy(value: Tensor, other: Tensor) -> Tensor:
    """Compute ``x log y``, which is 0 where x is 0, unless y is NaN."""
    product = torch.where(value == 0, 0.0, value * torch.log(other))
    return torch.where(torch.isnan(other), math.nan, product)


def nan_to_num(
    value: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN by 0 and infinities by the largest finite numbers, unless the arguments give replacements."""
    if not value.is_floating_point():
        return value.clone()
    limits = torch.finfo(value.dtype)
    result = torch.where(value == math.inf, limits.max if posinf is None else posinf, value)
    result = torch.where(value == -math.inf, limits.min if neginf is None else neginf, result)
    return torch.where(torch.isnan(value), 0.0 if nan is None else nan, result)


def reciprocal(value: Tensor) -> Tensor:
    """Divide 1 by each element: upstream's lowering of ``reciprocal`` ends the process on a zero."""
    return torch.div(1.0, value)


def neg(value: Tensor) -> Tensor:
    """Negate each element, integers by a subtraction.

    Upstream's lowering converts integers to floats, which cannot represent large integers.
    """
    return torch.neg(value) if value.is_floating_point() else torch.rsub(value, 0)


def clamp(value: Tensor, smallest: float | None = None, largest: float | None = None) -> Tensor:
    """Clamp, and keep -0 above a bound of 0, and 0 below a bound of -0: maxima and minima order zeros."""
    if value.is_floating_point() and smallest == 0 and math.copysign(1, smallest) == 1:
        value, smallest = torch.relu(value), None
    if value.is_floating_point() and largest == 0 and math.copysign(1, largest) == -1:
        value = value if smallest is None else torch.clamp(value, smallest)
        return -torch.relu(-value)
    return value if smallest is None and largest is None else torch.clamp(value, smallest, largest)


def clamp_between(value: Tensor, smallest: Tensor | None = None, largest: Tensor | None = None) -> Tensor:
    """Clamp between tensors, and keep zeros as :func:`clamp` does where a bound is one number.

    Upstream orders booleans as signed numbers.
    """
    value = value if smallest is None else _limit(torch.maximum, value, smallest)
    return value if largest is None else _limit(torch.minimum, value, largest)


def _limit(extremum: Callable[[Tensor, Tensor], Tensor], value: Tensor, bound: Tensor) -> Tensor:
    limited = extremum(value, bound)
    is_number = bound.dim() == 0 and value.is_floating_point()
    return torch.where(value == bound, value, limited) if is_number else limited


def threshold(value: Tensor, threshold: float, replacement: float) -> Tensor:
    """Return ``value`` where it is larger than ``threshold`` or NaN, and ``replacement`` elsewhere."""
    return torch.where(value <= threshold, replacement, value)


def hardtanh_backward(grad: Tensor, value: Tensor, smallest: float, largest: float) -> Tensor:
    """Return ``grad``, with zeros where ``hardtanh`` clamped, on the limits, and at NaN."""
    return torch.where((value > smallest) & (value < largest), grad, 0)


def hardswish_backward(grad: Tensor, value: Tensor) -> Tensor:
    """Compute the gradient of hardswish. The slope is 0 up to -3, 1 from 3, and ``x / 3 + 1 / 2`` between."""
    return torch.where(value <= -3, 0, torch.where(value >= 3, grad, grad * (value / 3 + 0.5)))


def elu(value: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """Compute ``scale · x`` above 0, and ``scale · alpha · (exp(input_scale · x) - 1)`` below.

    The result does not suffer from cancellation near 0.
    """
    below = torch.expm1(value if _is_one(input_scale) else value * input_scale) * (alpha * scale)
    return torch.where(value < 0, below, value if _is_one(scale) else value * scale)


def selu(value: Tensor) -> Tensor:
    """Compute :func:`elu` with the constants of Klambauer et al., Self-Normalizing Neural Networks, 2017."""
    return elu(value, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def celu(value: Tensor, alpha: float = 1) -> Tensor:
    """Compute ``alpha · (exp(x / alpha) - 1)`` below 0, and x above."""
    return elu(value, alpha, 1, 1 / alpha)


def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, value: Tensor
) -> Tensor:
    """Compute the gradient of :func:`elu` from its input, or from its result. NaN stays NaN."""
    if is_result:
        slope = input_scale * (value + alpha * scale)
    else:
        slope = torch.exp(value * input_scale) * (input_scale * alpha * scale)
    return torch.where(value > 0, grad * scale, grad * slope)


def lerp(start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """Interpolate linearly from ``start`` to ``end``. The result is exact at both ends."""
    from_start, from_end = start + weight * (end - start), end + (weight - 1) * (end - start)
    if isinstance(weight, Tensor):
        return torch.where(torch.abs(weight) < 0.5, from_start, from_end)
    return from_start if abs(weight) < 0.5 else from_end


def tanh_backward(grad: Tensor, output: Tensor) -> Tensor:
    """Compute the gradient of tanh from its result. Operands may broadcast."""
    return grad * (1 - output * output)


def sigmoid_backward(grad: Tensor, output: Tensor) -> Tensor:
    """Compute the gradient of sigmoid from its result. Operands may broadcast."""
    return grad * (1 - output) * output


def heaviside(value: Tensor, at_zero: Tensor) -> Tensor:
    """Compute the step function, which is ``at_zero`` at 0, and 0 at NaN."""
    return torch.where(value == 0, at_zero, (value > 0).to(value.dtype))


def addcmul(value: Tensor, left: Tensor, right: Tensor, factor: float = 1) -> Tensor:
    """Compute ``value + factor · left · right``."""
    return value + (left if _is_one(factor) else left * factor) * right


def addcdiv(value: Tensor, left: Tensor, right: Tensor, factor: float = 1) -> Tensor:
    """Compute ``value + factor · left / right``."""
    return value + (left if _is_one(factor) else left * factor) / right


def _is_one(factor: float | Tensor) -> bool:
    return not isinstance(factor, Tensor) and factor == 1


def log_sigmoid(value: Tensor) -> Tensor:
    """Compute ``min(x, 0) - log(1 + exp(-|x|))``, which does not overflow."""
    return torch.clamp(value, max=0) - torch.log1p(torch.exp(-torch.abs(value)))


def logit(value: Tensor, eps: float | None = None) -> Tensor:
    """Compute ``log(x / (1 - x))`` after clamping x to ``[eps, 1 - eps]``. The limits are rounded to x's dtype."""
    if eps is not None:
        least = torch.fill(value, eps)
        most = 1 - least
        value = torch.where(value < least, least, torch.where(value > most, most, value))
    wide = value.to(COMPUTED.get(value.dtype, value.dtype))
    return torch.log(wide / (1 - wide)).to(value.dtype)


def softplus(value: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Compute ``log(1 + exp(beta · x)) / beta``, or x where ``beta · x`` is above the threshold.

    The logarithm overflows where eager's does.
    """
    scaled = value if _is_one(beta) else value * beta
    smooth = torch.log1p(torch.exp(scaled))
    return torch.where(scaled > threshold, value, smooth if _is_one(beta) else smooth / beta)


def asinh(value: Tensor) -> Tensor:
    """Compute ``log(|x| + √(x² + 1))`` with the sign of x. x² does not overflow, and small x keep their precision."""
    value = _floating(value)
    size = torch.abs(value)
    square = size * size
    small = torch.log1p(size + square / (1 + torch.sqrt(square + 1)))
    result = torch.where(size > _SQUARES_LOSE_ONE, torch.log(size) + math.log(2), small)
    return torch.where(value > 0, result, torch.where(value < 0, -result, value))


def acosh(value: Tensor) -> Tensor:
    """Compute ``log(x + √(x² - 1))``. x² does not overflow."""
    value = _floating(value)
    less = value - 1
    small = torch.log1p(less + torch.sqrt(less) * torch.sqrt(value + 1))
    return torch.where(value > _SQUARES_LOSE_ONE, torch.log(value) + math.log(2), small)


def _floating(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


# From this value on, x² + 1 equals x² even in double precision, and x² is far from overflow.
_SQUARES_LOSE_ONE = 2.0**28


def fmod(value: Tensor, divisor: Tensor | float) -> Tensor:
    """Return the remainder of the quotient rounded to zero. It has the sign of ``value``."""
    if _is_integral(value, divisor):  # the least integer has no absolute value
        return value - torch.div(value, divisor, rounding_mode="trunc") * divisor
    size = torch.abs(divisor) if isinstance(divisor, Tensor) else abs(divisor)
    rest = torch.remainder(torch.abs(value), size)
    signed = torch.where(value < 0, -rest, rest)
    return torch.where(value == 0, rest * value, signed) if value.is_floating_point() else signed


def trunc(value: Tensor) -> Tensor:
    """Round towards zero, and keep the sign of a zero. Integers stay unchanged."""
    if not value.is_floating_point():
        return value.clone()
    return torch.where(value < 0, torch.ceil(value), torch.floor(value))


def divide(value: Tensor, divisor: Tensor | float, rounding_mode: str | None) -> Tensor:
    """Return the quotient rounded down, rounded towards zero, or not rounded."""
    if rounding_mode is None:
        return torch.div(value, divisor)
    is_integral = _is_integral(value, divisor)
    if rounding_mode == "floor":
        return (_floor_of_integers if is_integral else _floor_of_floats)(value, divisor)
    return torch.div(value, divisor, rounding_mode="trunc") if is_integral else trunc(value / divisor)


def _is_integral(*operands: Tensor | float) -> bool:
    return not any(x.is_floating_point() if isinstance(x, Tensor) else isinstance(x, float) for x in operands)


def _floor_of_floats(value: Tensor, divisor: Tensor | float) -> Tensor:
    """Return the quotient rounded down, from an exact remainder as in eager.

    A plain quotient may be rounded up to the next integer.
    """
    rest = torch.fmod(value, divisor)
    quotient = (value - rest) / divisor
    quotient = torch.where((rest != 0) & ((rest < 0) != (divisor < 0)), quotient - 1, quotient)
    floor = torch.floor(quotient)
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    exact = value / divisor
    floor = torch.where(quotient == 0, exact * 0, floor)
    if isinstance(divisor, Tensor):
        return torch.where(divisor == 0, exact, floor)
    return exact if divisor == 0 else floor


def _floor_of_integers(value: Tensor, divisor: Tensor | float) -> Tensor:
    """Return the quotient rounded down, without floats, which cannot represent large integers."""
    quotient = torch.div(value, divisor, rounding_mode="trunc")
    rest = value - quotient * divisor
    return torch.where((rest != 0) & ((rest < 0) != (divisor < 0)), quotient - 1, quotient)


_POWERS: Mapping[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.sqrt,
    1: lambda value: value.clone(),
    2: lambda value: value * value,
    3: lambda value: value * value * value,
    -0.5: torch.rsqrt,
    -1: reciprocal,
    -2: lambda value: reciprocal(value * value),
}


def pow_by_number(value: Tensor, exponent: float) -> Tensor:
    """Raise to a power. Some exponents avoid ``pow``, as in eager, and integers use repeated squaring."""
    if value.is_floating_point() and exponent in _POWERS:
        return _POWERS[exponent](value)
    if value.is_floating_point() or isinstance(exponent, float):
        power: Tensor = torch.ops.aten.pow.Tensor_Scalar(value, exponent)
        return power
    return _integer_power(value, exponent)


def _integer_power(value: Tensor, exponent: int) -> Tensor:
    if exponent == 0:
        return torch.ones_like(value)
    if exponent == 1:
        return value.clone()
    half = _integer_power(value, exponent // 2)
    return half * half * value if exponent % 2 else half * half


def power_of_number(base: float, exponent: Tensor) -> Tensor:
    """Compute ``base ** exponent``.

    Integers support only powers of two, which are shifts. The result is 0 where the exponent is negative.
    """
    if exponent.is_floating_point() or isinstance(base, float):
        power: Tensor = torch.ops.aten.pow.Scalar(base, exponent)
        return power
    if base != 2:
        raise CompileError(f"integer powers of {base} are not supported")
    return torch.bitwise_left_shift(torch.ones_like(exponent), exponent)


def left_shift(value: Tensor, count: Tensor) -> Tensor:
    """Shift left. A count that is negative or beyond the width gives 0; MLIR leaves such a shift undefined."""
    last = torch.iinfo(value.dtype).bits - 1
    shifted = torch.bitwise_left_shift(value, torch.clamp(count, 0, last))
    return torch.where((count < 0) | (count > last), torch.zeros_like(shifted), shifted)


def right_shift(value: Tensor, count: Tensor) -> Tensor:
    """Shift right. A count that is negative or beyond the width leaves the sign only.

    MLIR leaves such a shift undefined.
    """
    last = torch.iinfo(value.dtype).bits - 1
    is_outside = (count < 0) | (count > last)
    shifted = torch.bitwise_right_shift(value, torch.where(is_outside, torch.full_like(count, last), count))
    return shifted if value.dtype.is_signed else torch.where(is_outside, torch.zeros_like(shifted), shifted)
