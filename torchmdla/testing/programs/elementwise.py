"""Chains of elementwise operators: activations, arithmetic, comparisons, promotion of dtypes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchmdla.testing.programs.inputs import between, booleans, integers, normal, positive
from torchmdla.testing.programs.program import functions, modules, with_gradients

X, Y, ROW, COLUMN, POSITIVE = normal(5, 7), normal(5, 7), normal(7), normal(5, 1), positive(5, 7)
INTS, OTHER_INTS = integers(5, 7, low=-9, high=9), integers(5, 7, low=1, high=5)

ACTIVATIONS = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "elu": lambda: nn.ELU(0.7),
    "celu": lambda: nn.CELU(0.7),
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "tanhshrink": nn.Tanhshrink,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "softshrink": lambda: nn.Softshrink(0.3),
    "hardshrink": lambda: nn.Hardshrink(0.3),
    "hardtanh": lambda: nn.Hardtanh(-0.4, 0.6),
    "hardsigmoid": nn.Hardsigmoid,
    "hardswish": nn.Hardswish,
    "log_sigmoid": nn.LogSigmoid,
    "threshold": lambda: nn.Threshold(0.1, 3.0),
    "prelu": lambda: nn.PReLU(7),
    "glu": lambda: nn.Sequential(nn.Linear(7, 8), nn.GLU()),
}


def gelu_by_hand(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def fused_multiply(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.addcmul(torch.addcdiv(x, y, z.abs() + 1, value=0.5), y, z, value=-2.0)


def clipped(x: Tensor, low: float, high: float) -> Tensor:
    return torch.clamp(x * 2, low, high) + torch.clamp_min(x, low)


def polynomial(x: Tensor) -> Tensor:
    y = x
    for power in range(2, 6):
        y = y + x**power / power
    return y


FLOATS = {
    "add_scaled": (lambda x, y: torch.relu(torch.add(x, y, alpha=0.5)), X, Y),
    "broadcast_row": (lambda x, y: (x - y) * y, X, ROW),
    "broadcast_column": (lambda x, y: (x + y) / (y * y + 1), X, COLUMN),
    "broadcast_both": (lambda x, y: torch.exp(x * y) + x, COLUMN, normal(1, 7)),
    "broadcast_rank": (lambda x, y: torch.tanh(x * y) + y, normal(2, 3, 5, 7), X),
    "scalar_tensor": (lambda x, y: x * y + y, X, normal()),
    "exp_log": (lambda x: torch.log(torch.exp(x) + 1), X),
    "logs": (lambda x: torch.log2(x) + torch.log10(x) + torch.log1p(x), POSITIVE),
    "roots": (lambda x: torch.sqrt(x) * torch.rsqrt(x + 1), POSITIVE),
    "trigonometry": (lambda x: torch.sin(x) * torch.cos(x) + torch.atan(x), X),
    "inverse_trigonometry": (lambda x: torch.asin(x) + torch.acos(x) * torch.atanh(x), between(-0.9, 0.9, 5, 7)),
    "hyperbolic": (lambda x: torch.sinh(x) / torch.cosh(x) + torch.asinh(x), X),
    "erf": (lambda x: torch.erf(x) + torch.erfc(x * 0.5), X),
    "power": (lambda x, y: torch.pow(x, y) + 1, POSITIVE, Y),
    "power_of_two": (lambda x: torch.exp2(x) * 2.0**x, X),
    "cube": (lambda x: x.pow(3) + x.pow(-2), POSITIVE),
    "reciprocal": (lambda x: torch.reciprocal(x) + 1 / (x + 1), POSITIVE),
    "atan2": (lambda x, y: torch.atan2(x, y) * 2, X, Y),
    "hypot": (lambda x, y: torch.hypot(x, y) + x, X, Y),
    "lerp": (lambda x, y, w: torch.lerp(torch.lerp(x, y, w), y, 0.3), X, Y, positive(5, 7)),
    "maximum": (lambda x, y: torch.maximum(x, y) - torch.minimum(x, y), X, Y),
    "where": (lambda x, y: torch.where(x > 0, x * 2, y), X, Y),
    "where_numbers": (lambda x: torch.where(x > 0, 1.5, 0.0) * x, X),
    "masked_fill": (lambda x, mask: torch.softmax(x.masked_fill(mask, -1e9), -1), X, booleans(5, 7)),
    "nan_to_num": (lambda x: torch.nan_to_num(torch.log(x), nan=0.5) * 2, X),
    "copysign": (lambda x, y: torch.copysign(x, y) + 1, X, Y),
    "xlogy": (lambda x, y: torch.xlogy(x, y) * 2, POSITIVE, POSITIVE),
    "logaddexp": (lambda x, y: torch.logaddexp(x, y) * 2, X, Y),
    "sinc": (lambda x: torch.sinc(x) * 2, X),
    "gelu_by_hand": (gelu_by_hand, X),
    "fused_multiply": (fused_multiply, X, Y, X),
    "clipped": (clipped, X, -0.5, 0.5),
    "polynomial": (polynomial, X),
    "softmin": (lambda x: functional.softmin(x, 1) + x, X),
    "normalize": (lambda x: functional.normalize(x, dim=1) * 2, X),
}

WITHOUT_GRADIENTS = {
    "rounding": (lambda x: torch.round(x * 3) + torch.floor(x) - torch.ceil(x) * torch.trunc(x * 2), X),
    "fraction": (lambda x: torch.frac(x * 3) + torch.sign(x), X),
    "remainder": (lambda x, y: torch.remainder(x, y) + torch.fmod(x, y), X, POSITIVE),
    "floor_divide": (lambda x, y: torch.floor_divide(x, y) * 2 + 1, X, POSITIVE),
    "heaviside": (lambda x, y: torch.heaviside(torch.round(x), y) + x, X, Y),
    "comparisons": (lambda x, y: (x > y) & (x <= 0.5) | (y == x), X, Y),
    "compare_integers": (lambda x, y: (x != y).logical_xor(x >= 2), INTS, OTHER_INTS),
    "logical": (lambda x, y: torch.logical_and(x, y).logical_not() | torch.logical_or(x, y), INTS, OTHER_INTS),
    "is_special": (lambda x: torch.isnan(x / 0) | torch.isinf(x / 0) | torch.isfinite(x), X),
    "integer_arithmetic": (lambda x, y: (x * y - x) + 3 * y, INTS, OTHER_INTS),
    "integer_division": (lambda x, y: x // y + x % y, INTS, OTHER_INTS),
    "true_division": (lambda x, y: x / y + 1, INTS, OTHER_INTS),
    "bits": (lambda x, y: ((x & y) | (x ^ y)) + ~x, INTS, OTHER_INTS),
    "shifts": (lambda x, y: (x << y) + (x >> y), INTS, OTHER_INTS),
    "boolean_arithmetic": (lambda x, y: x * y + x.float() * 2, booleans(5, 7), booleans(5, 7)),
    "close": (lambda x, y: torch.isclose(x, y) | torch.isclose(x, x + 1e-9), X, Y),
}

PROGRAMS = [
    *with_gradients(modules("elementwise", {name: (make, X) for name, make in ACTIVATIONS.items()})),
    *with_gradients(functions("elementwise", FLOATS)),
    *functions("elementwise", WITHOUT_GRADIENTS),
]
