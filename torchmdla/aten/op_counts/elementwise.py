"""Operation counts of elementwise ops, and of ops that move, view or fill data or compute with numbers."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.aten.op_counts.kinds import KINDS, Rule, each
from torchmdla.importer import schemas

# Ops that read only a tensor's type, without the namespace.
METADATA = frozenset(name.partition("::")[2] for name in schemas.METADATA)

SIGMOID = "- exp + /"  # 1 / (1 + exp(−x))
_SOFTPLUS = "* * exp + log > ?"  # log(1 + exp(βx)) / β below a threshold
GELU = "* * * erf +"  # x · ½ · (1 + erf(x · √½))
_GELU_TANH = "* * * * * * + + tanh"  # ½x · (1 + tanh(c · (x + 0.044715·x·x·x)))

# Kinds for each element of the result, by ops.
_EACH: Mapping[str, str] = {
    **{kind: kind for kind in KINDS if kind.islower()},
    "log2 log10": "log",
    "floor ceil trunc": "round",
    "eq ne lt le gt ge maximum minimum max.other min.other isnan isinf relu": ">",
    "logical_not logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor": "&",
    "__and__ __or__ __xor__ bitwise_left_shift bitwise_right_shift": "&",
    "where masked_fill": "?",
    "neg": "-",
    "exp2": "exp",
    "expm1": "exp -",
    "log1p": "+ log",
    "rsqrt": "sqrt /",
    "reciprocal": "/",
    "mul square deg2rad rad2deg": "*",
    "erfc": "erf -",
    "frac": "round -",
    "sign sgn relu6 hardtanh": "> >",
    "isfinite": "abs >",
    "sigmoid": SIGMOID,
    "silu glu": f"{SIGMOID} *",
    "mish": f"{_SOFTPLUS} tanh *",
    "hardsigmoid": "+ > > *",
    "hardswish": "+ > > * *",
    "log_sigmoid": "> abs - - exp + log",  # min(x, 0) − log(1 + exp(−|x|))
    "selu": "> exp - * * ?",
    "elu": "> exp - * * * ?",
    "celu": "> / exp - * ?",
    "softplus": _SOFTPLUS,
    "leaky_relu prelu _prelu_kernel": "> *",
    "hardshrink": "abs > ?",
    "softshrink": "> > - + ? ?",
    "threshold": "> ?",
    "logit": "- / log",
    "nan_to_num": "> > > ? ? ?",
    "heaviside": "> > ? ?",
    "remainder fmod": "%",
    "floor_divide": "/ round",
    "atan2": "/ atan",
    "hypot": "* MAC sqrt",
    "logaddexp": "exp exp + log",
    "sinc": "* sin / > ?",
    "xlogy": "log * > > ? ?",
    "lerp": "- MAC",
    "addcdiv": "/ MAC",
    "addcmul": "* MAC",
    "native_dropout": "* ?",
    # Gradients, computed from the incoming gradient g and the tensors saved by the forward pass
    "threshold_backward": "> ?",
    "hardtanh_backward": "> > ?",
    "hardswish_backward": "> > * * + ? ?",
    "hardsigmoid_backward": "> > * ?",
    "leaky_relu_backward": "> *",
    "elu_backward": "> exp * * * ?",
    "tanh_backward": "* * -",  # g · (1 − y·y)
    "sigmoid_backward": "* * -",  # g · y · (1 − y)
    "silu_backward": f"{SIGMOID} - + * * *",  # g · s · (1 + x · (1 − s))
    "mse_loss_backward": "- * *",
    # Moving, viewing and filling
    "clone _to_copy copy cat concat stack hstack vstack repeat repeat_interleave tile roll flip rot90 tril triu": "",
    "constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d pixel_shuffle pixel_unshuffle": "",
    "replication_pad1d replication_pad2d replication_pad3d channel_shuffle embedding index_select gather index": "",
    "take_along_dim diag_embed select_scatter slice_scatter scatter select_backward slice_backward": "",
    "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty": "",
    "arange linspace eye scalar_tensor fill zero lift_fresh lift_fresh_copy": "",
    # Numbers
    "item Int Float Bool IntImplicit FloatImplicit ScalarImplicit floordiv __not__ __is__ __isnot__ __getitem__": "",
    "slice.t add.t mul.left_t": "",
    # Arithmetic on sizes, which shares its names with ops on tensors
    "add.default sub.default mul.default div.default floordiv.default remainder.default": "",
    "add.int sub.int mul.int div.int remainder.int neg.int pow.int pow.int_to_int sqrt.int ceil.int floor.int": "",
    "__and__.bool __or__.bool eq.int ne.int lt.int le.int gt.int ge.int eq.bool ne.bool eq.int_list ne.int_list": "",
}

_POWERS: Mapping[float, str] = {0: "", 0.5: "sqrt", 1: "", 2: "*", 3: "* *", -0.5: "sqrt /", -1: "/", -2: "* /"}


def _sum(sign: str) -> Rule:
    """Return the rule for ``a ± alpha·b``."""
    return lambda call: each(call.out.numel, sign if call.arguments.get("alpha", 1) == 1 else "MAC")


def _gelu(exact: str, by_tanh: str) -> Rule:
    return lambda call: each(call.out.numel, by_tanh if call["approximate"] == "tanh" else exact)


def _dropout(kinds: str) -> Rule:
    """Return the rule for dropout, which scales and masks elements in training; drawing the mask is not counted."""
    return lambda call: each(call.out.numel, kinds if call["train"] else "")


RULES: Mapping[str, Rule] = {
    **{name: kinds for names, kinds in _EACH.items() for name in names.split()},
    **dict.fromkeys(METADATA, ""),
    **dict.fromkeys(
        ("clamp", "clamp_min", "clamp_max", "clip"),
        lambda call: each(call.out.numel * sum(call.arguments.get(name) is not None for name in ("min", "max")), ">"),
    ),
    "add": _sum("+"),
    "sub": _sum("-"),
    "rsub": _sum("-"),
    "div": lambda call: each(call.out.numel, "/ round" if call.arguments.get("rounding_mode") is not None else "/"),
    "pow": lambda call: each(call.out.numel, _POWERS.get(call["exponent"], "pow")),
    "gelu": _gelu(GELU, _GELU_TANH),
    # The derivative also needs the density, or the square of tanh.
    "gelu_backward": _gelu(f"{GELU} * * * * exp +", f"{_GELU_TANH} * * * * * * + + -"),
    "dropout": _dropout("* ?"),
    "feature_dropout": _dropout("* ?"),
    "alpha_dropout": _dropout("MAC ?"),
    **dict.fromkeys(
        ("index_put", "_index_put_impl"), lambda call: each(call["values"].numel, "+" if call["accumulate"] else "")
    ),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), lambda call: each(call["src"].numel, "+")),
    "index_add": lambda call: each(call["source"].numel, "MAC"),
    "embedding_dense_backward": lambda call: each(call["grad_output"].numel, "+"),
}
