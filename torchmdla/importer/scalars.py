"""Eager's rules for numbers and 0-d tensors: the form in which an operator's kernel sees them.

The rules were derived from eager, and ``tests/group/test_scalars.py`` compares each with it. The dtype of the
computation is that of the result, or of the operands where a record has ``computed_in="promoted"``. Numbers and 0-d
tensors are rounded to it, or wrap around, unless their rule specifies otherwise. No other code converts scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchmdla.importer.size_int import SizeInt, SizeValue
from torchmdla.importer.types import COMPUTED, HALVES


@dataclass(frozen=True)
class ScalarRule:
    """Rule for the scalars of one operator.

    Attributes:
        wide: arguments that are float32 beside floats of 16 bits, and are not rounded to their dtype.
        checked: arguments for which eager raises if they exceed the range of the dtype.
    """

    wide: frozenset[str] = frozenset()
    checked: frozenset[str] = frozenset()

    def dtype_of(self, argument: str, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that ``argument`` has beside tensors of ``dtype``."""
        return COMPUTED[dtype] if argument in self.wide and dtype in HALVES else dtype


def _rule(wide: str = "", checked: str = "") -> ScalarRule:
    return ScalarRule(frozenset(wide.split()), frozenset(checked.split()))


TABLE: Mapping[str, ScalarRule] = {
    "add sub rsub": _rule(checked="alpha"),
    "mul div floor_divide": _rule(wide="other"),
    "remainder fmod atan2 maximum minimum max.other min.other fmax fmin hypot logaddexp xlogy copysign": _rule(),
    "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ bitwise_left_shift bitwise_right_shift": _rule(),
    "eq ne lt le gt ge": _rule(),
    "pow": _rule(),
    "pow.Tensor_Scalar": _rule(checked="exponent"),
    "clamp clamp_min clamp_max": _rule(checked="min max"),
    "clamp.Tensor clamp_min.Tensor clamp_max.Tensor": _rule(),
    "logical_and logical_or logical_xor": _rule(),
    "gelu_backward silu_backward tanh_backward sigmoid_backward hardswish_backward": _rule(),
    "mse_loss mse_loss_backward smooth_l1_loss huber_loss binary_cross_entropy": _rule(),
    "hardtanh": _rule(checked="min_val max_val"),
    "hardtanh_backward": _rule(wide="min_val max_val", checked="min_val max_val"),
    "threshold threshold_backward": _rule(wide="threshold", checked="threshold value"),
    "hardshrink": _rule(checked="lambd"),
    "softshrink": _rule(wide="lambd", checked="lambd"),
    "leaky_relu leaky_relu_backward": _rule(wide="negative_slope", checked="negative_slope"),
    "elu elu_backward": _rule(wide="alpha scale input_scale", checked="alpha scale input_scale"),
    "celu": _rule(wide="alpha"),
    "softplus": _rule(wide="beta threshold", checked="beta threshold"),
    "lerp": _rule(),
    "lerp.Scalar": _rule(wide="weight", checked="weight"),
    "addcmul addcdiv": _rule(wide="value", checked="value"),
    "addmm addmv baddbmm": _rule(wide="beta alpha", checked="beta alpha"),
    "nan_to_num": _rule(),
    "logit": _rule(checked="eps"),
    "where": _rule(),
    "masked_fill": _rule(checked="value"),
    "fill.Scalar full full_like new_full": _rule(checked="value fill_value"),
    "fill.Tensor": _rule(),
    "scatter.value constant_pad_nd": _rule(checked="value"),
}

_RULES = {f"aten::{name}": rule for names, rule in TABLE.items() for name in names.split()}


def scalar_rule(name: str) -> ScalarRule | None:
    """Return the rule of an operator, by its schema name with overload, or None if it has no scalars to convert."""
    return _RULES.get(name, _RULES.get(name.partition(".")[0]))


def convert_number(number: int | float | bool, dtype: torch.dtype | None) -> int | float | bool:
    """Return ``number`` as a tensor of ``dtype`` holds it: rounded, or wrapped around.

    An integer that is exact in a float dtype stays an integer.
    """
    if dtype is None or isinstance(number, SizeInt | SizeValue):
        return number
    if dtype == torch.bool:
        return bool(number)
    if isinstance(number, float) and not math.isfinite(number):
        return number
    exact = torch.float64 if isinstance(number, float) else torch.int64
    converted: int | float = torch.tensor(number, dtype=exact).to(dtype).item()
    return number if converted == number and dtype.is_floating_point else converted
