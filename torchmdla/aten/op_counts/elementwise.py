"""Operation counts of elementwise ops, per element of the result."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.aten.calls import Call
from torchmdla.aten.op_counts.kinds import Counts, Rule, times, total, words

SIGMOID: Mapping[str, int] = {"-": 1, "exp": 1, "+": 1, "/": 1}  # 1 / (1 + exp(−x))
SOFTPLUS: Mapping[str, int] = {
    "*": 2,
    "exp": 1,
    "+": 1,
    "log": 1,
    ">": 1,
    "?": 1,
}  # log(1 + exp(βx)) / β below a threshold
GELU: Mapping[str, int] = {"*": 3, "erf": 1, "+": 1}  # x · ½ · (1 + erf(x · √½))
GELU_TANH: Mapping[str, int] = {"*": 6, "+": 2, "tanh": 1}  # ½x · (1 + tanh(c · (x + 0.044715·x·x·x)))

# Counts per element of the result.
_EACH: Mapping[str, Mapping[str, int]] = {
    **{
        name: {name: 1}
        for name in words("abs exp log sqrt sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh erf round")
    },
    **{name: {"log": 1} for name in ("log2", "log10")},
    **{name: {"round": 1} for name in ("floor", "ceil", "trunc")},
    **{name: {">": 1} for name in words("eq ne lt le gt ge maximum minimum isnan isinf relu")},
    **{
        name: {"&": 1}
        for name in words(
            "logical_not logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor "
            "__and__ __or__ __xor__ bitwise_left_shift bitwise_right_shift"
        )
    },
    **{name: {"?": 1} for name in ("where", "masked_fill")},
    "neg": {"-": 1},
    "exp2": {"exp": 1},
    "expm1": {"exp": 1, "-": 1},
    "log1p": {"+": 1, "log": 1},
    "rsqrt": {"sqrt": 1, "/": 1},
    "reciprocal": {"/": 1},
    "square": {"*": 1},
    "erfc": {"erf": 1, "-": 1},
    "frac": {"round": 1, "-": 1},
    "sign": {">": 2},
    "sgn": {">": 2},
    "isfinite": {"abs": 1, ">": 1},
    "relu6": {">": 2},
    "hardtanh": {">": 2},
    "sigmoid": SIGMOID,
    "silu": {**SIGMOID, "*": 1},
    "mish": {**SOFTPLUS, "tanh": 1, "*": SOFTPLUS["*"] + 1},
    "hardsigmoid": {"+": 1, ">": 2, "*": 1},
    "hardswish": {"+": 1, ">": 2, "*": 2},
    "log_sigmoid": {">": 1, "abs": 1, "-": 2, "exp": 1, "+": 1, "log": 1},  # min(x, 0) − log(1 + exp(−|x|))
    "selu": {">": 1, "exp": 1, "-": 1, "*": 2, "?": 1},
    "elu": {">": 1, "exp": 1, "-": 1, "*": 3, "?": 1},
    "celu": {">": 1, "/": 1, "exp": 1, "-": 1, "*": 1, "?": 1},
    "softplus": SOFTPLUS,
    "leaky_relu": {">": 1, "*": 1},
    "prelu": {">": 1, "*": 1},
    "_prelu_kernel": {">": 1, "*": 1},
    "hardshrink": {"abs": 1, ">": 1, "?": 1},
    "softshrink": {">": 2, "-": 1, "+": 1, "?": 2},
    "threshold": {">": 1, "?": 1},
    "glu": {**SIGMOID, "*": 1},
    "logit": {"-": 1, "/": 1, "log": 1},
    "nan_to_num": {">": 3, "?": 3},
    "heaviside": {">": 2, "?": 2},
    "remainder": {"%": 1},
    "fmod": {"%": 1},
    "floor_divide": {"/": 1, "round": 1},
    "atan2": {"/": 1, "atan": 1},
    "hypot": {"*": 1, "MAC": 1, "sqrt": 1},
    "logaddexp": {"exp": 2, "+": 1, "log": 1},
    "sinc": {"*": 1, "sin": 1, "/": 1, ">": 1, "?": 1},
    "xlogy": {"log": 1, "*": 1, ">": 2, "?": 2},
    **{name: {"*": 1} for name in ("deg2rad", "rad2deg")},
    "lerp": {"-": 1, "MAC": 1},
    "addcdiv": {"/": 1, "MAC": 1},
    "addcmul": {"*": 1, "MAC": 1},
    # Gradients, computed from the incoming gradient g and the tensors saved by the forward pass
    "threshold_backward": {">": 1, "?": 1},
    "hardtanh_backward": {">": 2, "?": 1},
    "hardswish_backward": {">": 2, "*": 2, "+": 1, "?": 2},
    "hardsigmoid_backward": {">": 2, "*": 1, "?": 1},
    "leaky_relu_backward": {">": 1, "*": 1},
    "elu_backward": {">": 1, "exp": 1, "*": 3, "?": 1},
    "tanh_backward": {"*": 2, "-": 1},  # g · (1 − y·y)
    "sigmoid_backward": {"*": 2, "-": 1},  # g · y · (1 − y)
    "silu_backward": {**SIGMOID, "-": 2, "*": 3, "+": 2},  # g · s · (1 + x · (1 − s))
    "mse_loss_backward": {"-": 1, "*": 2},
}


def _each(each: Mapping[str, int]) -> Rule:
    return lambda call: times(call.out.numel, each)


def _sum(sign: str) -> Rule:
    """Return the rule for ``a ± alpha·b``."""

    def rule(call: Call) -> Counts:
        scaled = call.arguments.get("alpha", 1) != 1
        return times(call.out.numel, {"MAC": 1} if scaled else {sign: 1})

    return rule


def _division(call: Call) -> Counts:
    rounded = call.arguments.get("rounding_mode") is not None
    return times(call.out.numel, {"/": 1, "round": 1} if rounded else {"/": 1})


_POWERS: Mapping[float, Mapping[str, int]] = {
    0.0: {},
    0.5: {"sqrt": 1},
    1.0: {},
    2.0: {"*": 1},
    3.0: {"*": 2},
    -0.5: {"sqrt": 1, "/": 1},
    -1.0: {"/": 1},
    -2.0: {"*": 1, "/": 1},
}


def _power(call: Call) -> Counts:
    exponent = call["exponent"]
    known = isinstance(exponent, int | float) and float(exponent) in _POWERS
    return times(call.out.numel, _POWERS[float(exponent)] if known else {"pow": 1})


def _clamp(call: Call) -> Counts:
    bounds = [call.arguments.get(name) for name in ("min", "max")]
    return {">": call.out.numel * sum(bound is not None for bound in bounds)}


def _gelu(each: Mapping[str, int], by_tanh: Mapping[str, int]) -> Rule:
    return lambda call: times(call.out.numel, by_tanh if call["approximate"] == "tanh" else each)


RULES: Mapping[str, Rule] = {
    **{name: _each(each) for name, each in _EACH.items()},
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "clip"), _clamp),
    "add": _sum("+"),
    "sub": _sum("-"),
    "rsub": _sum("-"),
    "mul": _each({"*": 1}),
    "div": _division,
    "pow": _power,
    "gelu": _gelu(GELU, GELU_TANH),
    # The derivative also needs the density, or the square of tanh.
    "gelu_backward": _gelu(
        total(GELU, {"*": 4, "exp": 1, "+": 1}),
        total(GELU_TANH, {"*": 6, "+": 2, "-": 1}),
    ),
    "max.other": _each({">": 1}),
    "min.other": _each({">": 1}),
}
