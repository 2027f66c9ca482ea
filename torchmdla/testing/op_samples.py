"""Sample calls of every operator that the cpu device lists, by schema name with overload; positional arguments only.

Omitted arguments have the schema's defaults. Tensors are float32 where the operator supports floats; the tests change
their dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators

_random = torch.Generator().manual_seed(7)


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_random)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_random) + 0.5


def unit(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_random) * 1.8 - 0.9


def i(*shape: int, high: int = 4) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=_random)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=_random) > 0.5


def unary(names: str, *, make: Callable[..., torch.Tensor] = f) -> dict[str, list[tuple[object, ...]]]:
    return {f"aten::{name}": [(make(3, 5),)] for name in names.split()}


def max_pool_gradient(value: torch.Tensor, *arguments: object) -> tuple[object, ...]:
    pool = torch.ops.aten.max_pool2d_with_indices if value.dim() == 4 else torch.ops.aten.max_pool3d_with_indices
    result, indices = pool(value, *arguments)
    return (f(*result.shape), value, *arguments, indices)


def attention_gradients(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, mask: torch.Tensor | None = None, *scale: float
) -> tuple[object, ...]:
    value = f(*key.shape)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    result, sums = attend(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale[0] if scale else None)
    return (f(*result.shape), query, key, value, result, sums, 0.0, is_causal, mask, *scale)


X, Y, ROW = f(3, 4), f(3, 4), f(4)
IMAGE, VOLUME, SIGNAL = f(2, 4, 7, 6), f(1, 2, 4, 5, 6), f(2, 4, 9)
INTS, MASK = i(3, 4, high=5), b(3, 4)

SAMPLES: dict[str, list[tuple[object, ...]]] = {
    # Elementwise, one tensor
    **unary(
        "abs neg relu relu6 sigmoid tanh exp expm1 sin cos tan atan sinh cosh floor ceil round trunc sign sgn silu "
        "mish erf hardswish hardsigmoid log_sigmoid isnan isinf isfinite square logical_not exp2 frac selu asinh"
    ),
    **unary("log log2 log10 log1p sqrt rsqrt reciprocal", make=positive),
    **unary("asin acos atanh logit", make=unit),
    "aten::acosh": [(positive(3, 4) + 1,)],
    "aten::bitwise_not": [(INTS,), (MASK,)],
    "aten::gelu": [(X,), (X, "tanh")],
    "aten::leaky_relu": [(X, 0.1)],
    "aten::elu": [(X, 1.5)],
    "aten::celu": [(X, 1.5)],
    "aten::softplus": [(X,), (X, 2.0, 1.0)],
    "aten::hardtanh": [(X, -0.5, 0.5)],
    "aten::hardshrink": [(X, 0.5)],
    "aten::softshrink": [(X, 0.5)],
    "aten::threshold": [(X, 0.1, 0.2)],
    "aten::clamp": [(X, -0.5, 0.5), (X, None, 0.5), (X, -0.5, None)],
    "aten::clamp.Tensor": [(X, Y - 1, Y + 1)],
    "aten::clamp_min": [(X, 0.1)],
    "aten::clamp_max": [(X, 0.1)],
    "aten::clamp_min.Tensor": [(X, ROW)],
    "aten::clamp_max.Tensor": [(X, ROW)],
    "aten::prelu": [(IMAGE, f(4)), (X, f(1))],
    "aten::glu": [(X, 1), (IMAGE, 1)],
    "aten::nan_to_num": [(torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]), 0.5, 3.0, -3.0)],
    "aten::dropout": [(X, 0.5, False)],
    "aten::feature_dropout": [(IMAGE, 0.5, False)],
    "aten::alpha_dropout": [(X, 0.5, False)],
    "aten::positive": [(X,)],
    # Arguments: whether autocast is on for GPUs and for CPUs, and the dtypes of both.
    "aten::_autocast_to_reduced_precision": [(X, True, False, torch.float16, torch.bfloat16)],
    "aten::_autocast_to_full_precision": [(X, False, True), (X.bfloat16(), False, True)],
    # Quantised values
    "quantized_decomposed::choose_qparams.tensor": [
        (X, 0, 255, 1e-6, torch.uint8),
        (-X.abs(), -128, 127, 1e-6, torch.int8),
        (X * 0, 0, 255, 1e-6, torch.uint8),
    ],
    "quantized_decomposed::quantize_per_tensor": [
        (X, 0.05, 128, 0, 255, torch.uint8),
        (X, 0.02, 0, -127, 127, torch.int8),
        (X.bfloat16(), 0.05, 3, -128, 127, torch.int8),
    ],
    "quantized_decomposed::quantize_per_tensor.tensor": [
        (X, torch.tensor(0.05), torch.tensor(7), -128, 127, torch.int8),
    ],
    "quantized_decomposed::quantize_per_channel": [(X, positive(4), INTS[0], 1, -128, 127, torch.int8)],
    "quantized_decomposed::quantize_per_token": [(X, positive(3, 1), INTS[:, :1], -128, 127, torch.int8)],
    "quantized_decomposed::dequantize_per_tensor": [
        (INTS.to(torch.uint8), 0.05, 3, 0, 255, torch.uint8),
        (INTS.to(torch.int8), 0.05, 0, -128, 127, torch.int8, torch.bfloat16),
    ],
    "quantized_decomposed::dequantize_per_tensor.tensor": [
        (INTS.to(torch.int8), torch.tensor(0.05), torch.tensor(2), -128, 127, torch.int8),
    ],
    "quantized_decomposed::dequantize_per_channel": [
        (INTS.to(torch.int8), positive(3), None, 0, -128, 127, torch.int8),
        (INTS.to(torch.int8), positive(4), INTS[0], 1, -128, 127, torch.int8),
    ],
    "quantized_decomposed::dequantize_per_channel_group": [
        (INTS.to(torch.int8), positive(3, 2), INTS[:, :2], -8, 7, torch.int8, 2, torch.float32),
        (INTS.to(torch.int8), positive(3, 1), None, -8, 7, torch.int8, 4, torch.bfloat16),
    ],
    "quantized_decomposed::dequantize_per_token": [
        (INTS.to(torch.int8), positive(3, 1), INTS[:, :1], -128, 127, torch.int8, torch.float32),
    ],
    # Elementwise, two or more
    "aten::add.Tensor": [(X, Y), (X, ROW, 2), (X, ROW, 0.5), (X, INTS)],
    "aten::add.Scalar": [(X, 2), (X, 0.5, 3)],
    "aten::sub.Tensor": [(X, Y), (X, ROW, 2), (X, ROW, 0.5)],
    "aten::sub.Scalar": [(X, 2), (X, 0.5, 3)],
    "aten::rsub.Scalar": [(X, 2), (X, 0.5, 3)],
    "aten::rsub.Tensor": [(X, Y, 2)],
    "aten::mul.Tensor": [(X, Y), (X, f(3, 1)), (X, INTS)],
    "aten::mul.Scalar": [(X, 2), (X, 0.5)],
    "aten::div.Tensor": [(X, positive(3, 4))],
    "aten::div.Scalar": [(X, 2), (X, 0.5)],
    "aten::div.Tensor_mode": [(X, positive(4), "floor"), (X, positive(4), "trunc"), (X, positive(4), None)],
    "aten::div.Scalar_mode": [(X, 2, "floor"), (X, 0.3, "trunc")],
    "aten::floor_divide": [(X, positive(4))],
    "aten::floor_divide.Scalar": [(X, 2)],
    "aten::remainder.Tensor": [(X, positive(4))],
    "aten::remainder.Scalar": [(X, 0.7), (X, 2)],
    "aten::fmod.Tensor": [(X, positive(4))],
    "aten::pow.Tensor_Tensor": [(positive(3, 4), Y)],
    "aten::pow.Tensor_Scalar": [(X, 2), (X, 3), (positive(3, 4), 0.5), (positive(3, 4), -1.5)],
    "aten::pow.Scalar": [(2, X), (2.5, X)],
    "aten::atan2": [(X, Y)],
    **{f"aten::{name}": [(X, Y), (X, ROW)] for name in ("hypot", "logaddexp")},
    **unary("sinc deg2rad rad2deg"),
    "aten::xlogy.Tensor": [(X, positive(3, 4)), (X, ROW)],
    "aten::nansum": [(X,), (X, [1]), (IMAGE, [0, 2], True)],
    "aten::maximum": [(X, ROW)],
    "aten::minimum": [(X, ROW)],
    "aten::max.other": [(X, ROW)],
    "aten::min.other": [(X, ROW)],
    "aten::lerp.Tensor": [(X, Y, positive(4))],
    "aten::lerp.Scalar": [(X, Y, 0.3)],
    "aten::addcmul": [(X, Y, ROW, value) for value in (1, 0.5)],
    "aten::addcdiv": [(X, Y, positive(4), value) for value in (1, 0.5)],
    "aten::heaviside": [(X, ROW)],
    **{
        f"aten::{name}.{kind}": [(INTS, other), (X, other)]
        for name in ["eq", "ne", "lt", "le", "gt", "ge"]
        for kind, other in (("Tensor", INTS.flip(0)), ("Scalar", 2))
    },
    **{f"aten::{name}": [(MASK, MASK.flip(0)), (X, MASK)] for name in ["logical_and", "logical_or", "logical_xor"]},
    **{
        f"aten::{name}.Tensor": [(INTS, INTS.flip(0)), (MASK, MASK.flip(0))]
        for name in ["bitwise_and", "bitwise_or", "bitwise_xor"]
    },
    **{
        f"aten::{name}.Tensor": [(INTS, INTS.flip(0)), (MASK, MASK.flip(0))]
        for name in ["__and__", "__or__", "__xor__"]
    },
    "aten::bitwise_and.Scalar": [(INTS, 3)],
    "aten::bitwise_left_shift.Tensor": [(INTS, INTS.flip(0))],
    "aten::bitwise_right_shift.Tensor": [(INTS, INTS.flip(0))],
    "aten::where.self": [(MASK, X, ROW)],
    "aten::where.ScalarSelf": [(MASK, 2.0, X)],
    "aten::where.ScalarOther": [(MASK, X, 2.0)],
    "aten::where.Scalar": [(MASK, 1.0, 2.0)],
    "aten::masked_fill.Scalar": [(X, MASK, -1.5), (X, MASK, -float("inf"))],
    "aten::masked_fill.Tensor": [(X, MASK, torch.tensor(-1.5))],
    # Reductions
    "aten::sum": [(X,), (X, torch.float64)],
    "aten::sum.dim_IntList": [(X, [1]), (IMAGE, [0, -1], True), (X, None)],
    "aten::mean": [(X,)],
    "aten::mean.dim": [(X, [1]), (IMAGE, [2, 3], True)],
    "aten::var": [(X,), (X, False)],
    "aten::var.dim": [(X, [1]), (IMAGE, [2, 3], False, True)],
    "aten::var.correction": [(X, [1]), (IMAGE, [0, 2])],
    "aten::std": [(X,)],
    "aten::std.dim": [(X, [1]), (X, [1], False, True)],
    "aten::std.correction": [(X, [1])],
    "aten::var_mean.correction": [(X, [1])],
    "aten::var_mean": [(X,)],
    "aten::var_mean.dim": [(X, [1], False, True)],
    "aten::amax": [(X, [1]), (IMAGE, [2, 3], True), (X,), (X[0, 0], [0])],
    "aten::amin": [(X, [1]), (X,), (X[0, 0], [-1], True)],
    "aten::aminmax": [(X,), (X, 1), (X, 0, True), (X[0, 0], 0)],
    "aten::max": [(X,)],
    "aten::min": [(X,)],
    "aten::max.dim": [(X, 1), (X, 0, True), (X[0, 0], 0)],
    "aten::min.dim": [(X, 1), (X, 0, True), (X[0, 0], -1, True)],
    "aten::argmax": [(X, 1), (X, 0, True), (X,)],
    "aten::argmin": [(X, 1), (X,)],
    "aten::prod": [(X,)],
    "aten::prod.dim_int": [(X, 1)],
    "aten::all": [(MASK,), (X,)],
    "aten::any": [(MASK,), (X,)],
    "aten::all.dim": [(MASK, 1), (MASK, 0, True)],
    "aten::any.dim": [(MASK, 1), (MASK, 0, True)],
    "aten::any.dims": [(MASK, [0, 1])],
    "aten::norm.Scalar": [(X,), (X, 1)],
    "aten::norm.ScalarOpt_dim": [(X, 2, [1]), (X, 1, [1], True)],
    "aten::linalg_vector_norm": [(X,), (X, 1, [1]), (X, float("inf"), [1])],
    "aten::frobenius_norm.dim": [(X, [0, 1])],
    "aten::cumsum": [(X, 1), (X, 0), (X[0, 0], 0), (INTS[0, 0], -1, torch.float64), (MASK[0, 0], 0)],
    "aten::cumprod": [(X, 1), (X[0, 0], 0)],
    "aten::logsumexp": [(X, [1]), (X, [1], True)],
    "aten::count_nonzero": [(X,)],
    # Softmax and norms
    "aten::softmax.int": [(X, 1), (X, 0), (X, -1, torch.float64)],
    "aten::log_softmax.int": [(X, 1), (X, 0)],
    "aten::_softmax": [(X, 1, False)],
    "aten::_log_softmax": [(X, 1, False)],
    "aten::layer_norm": [(X, [4], ROW, ROW), (X, [4]), (IMAGE, [7, 6], f(7, 6), f(7, 6), 1e-3)],
    "aten::native_layer_norm": [(X, [4], ROW, ROW, 1e-5)],
    "aten::rms_norm": [(X, [4], ROW), (X, [4]), (X * 1e-3, [4]), (X * 1e-3, [3, 4], None, 1e-6)],
    "aten::group_norm": [(IMAGE, 2, ROW, ROW), (IMAGE, 4), (f(2, 4), 2, ROW, ROW)],
    "aten::native_group_norm": [(IMAGE, ROW, ROW, 2, 4, 42, 2, 1e-5)],
    "aten::batch_norm": [
        (IMAGE, ROW, ROW, ROW, positive(4), False, 0.1, 1e-5, True),
        (f(3, 4), None, None, ROW, positive(4), False, 0.1, 1e-3, True),
    ],
    "aten::instance_norm": [
        (IMAGE, ROW, ROW, None, None, True, 0.1, 1e-5, True),
        (IMAGE, None, None, ROW, positive(4), False, 0.1, 1e-5, True),
    ],
    "aten::cosine_similarity": [(X, Y, 1)],
    # Products
    "aten::_int_mm": [(INTS.to(torch.int8), INTS.t().to(torch.int8)), (INTS.to(torch.uint8), INTS.t().to(torch.int8))],
    "aten::mm": [(X, f(4, 5))],
    "aten::matmul": [
        (X, f(4, 5)),
        (f(2, 3, 4), f(4, 5)),
        (f(2, 3, 4), f(2, 4, 5)),
        (X, ROW),
        (ROW, ROW),
        (ROW, f(4, 5)),
        (f(2, 1, 3, 4), f(5, 4, 2)),
        (f(2, 3, 4), ROW),
    ],
    "aten::bmm": [(f(2, 3, 4), f(2, 4, 5))],
    "aten::mv": [(X, ROW)],
    "aten::dot": [(ROW, f(4))],
    "aten::outer": [(ROW, f(3))],
    "aten::addmm": [(f(5), X, f(4, 5)), (f(3, 5), X, f(4, 5), 0.5, 2)],
    "aten::addmv": [(f(3), X, ROW)],
    "aten::baddbmm": [(f(2, 3, 5), f(2, 3, 4), f(2, 4, 5)), (f(1, 1, 5), f(2, 3, 4), f(2, 4, 5), 0.5, 2)],
    "aten::linear": [(X, f(5, 4), f(5)), (X, f(5, 4)), (f(2, 3, 4), f(5, 4), f(5)), (ROW, f(5, 4), f(5))],
    "aten::bilinear": [(X, f(3, 2), f(5, 4, 2), f(5))],
    "aten::einsum": [
        ("bij,bjk->bik", [f(2, 3, 4), f(2, 4, 5)]),
        ("ij,j->i", [X, ROW]),
        ("bhid,bhjd->bhij", [f(1, 2, 3, 4), f(1, 2, 5, 4)]),
    ],
    "aten::tensordot": [(f(2, 3, 4), f(4, 3, 5), [1, 2], [1, 0])],
    "aten::scaled_dot_product_attention": [
        (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 6)),
        (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 6), b(3, 5)),
        (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 6), f(2, 1, 3, 5)),
        (f(2, 2, 5, 4), f(2, 2, 5, 4), f(2, 2, 5, 6), None, 0.0, True, 0.3),
        (f(2, 4, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 6), None, 0.0, False, None, True),
        (f(3, 4), f(5, 4), f(5, 6)),
    ],
    "aten::_transformer_encoder_layer_fwd": [
        (
            f(2, 5, 8),
            8,
            2,
            f(24, 8),
            f(24),
            f(8, 8),
            f(8),
            gelu,
            first,
            1e-5,
            f(8),
            f(8),
            f(8),
            f(8),
            f(12, 8),
            f(12),
            f(8, 12),
            f(8),
        )
        for gelu, first in ((True, False), (False, True))
    ],
    "aten::_native_multi_head_attention": [
        (x := f(2, 5, 8), x, x, 8, 2, f(24, 8), f(24), f(8, 8), f(8)),
        (x, x, x, 8, 2, f(24, 8), f(24), f(8, 8), f(8), b(5, 5).triu(1), True, False, 0),
    ],
    "aten::lstm.input": [
        (f(2, 3, 4), [f(1, 3, 5), f(1, 3, 5)], [f(20, 4), f(20, 5), f(20), f(20)], True, 1, 0.0, False, False, False),
        (
            f(2, 3, 4),
            [f(4, 2, 5), f(4, 2, 5)],
            [f(20, 4), f(20, 5), f(20, 4), f(20, 5), f(20, 10), f(20, 5), f(20, 10), f(20, 5)],
            False,
            2,
            0.0,
            False,
            True,
            True,
        ),
    ],
    "aten::gru.input": [
        (f(2, 3, 4), f(2, 3, 5), [f(15, 4), f(15, 5), f(15), f(15)] * 2, True, 1, 0.0, False, True, False)
    ],
    "aten::rnn_tanh.input": [
        (f(2, 3, 4), f(1, 3, 5), [f(5, 4), f(5, 5), f(5), f(5)], True, 1, 0.0, False, False, False)
    ],
    "aten::rnn_relu.input": [
        (f(2, 3, 4), f(1, 2, 5), [f(5, 4), f(5, 5), f(5), f(5)], True, 1, 0.0, False, False, True)
    ],
    "torchmdla::lstm_steps": [
        (f(2, 3, 20), [f(3, 5), f(3, 5)], f(20, 5), bias, reverse) for bias, reverse in ((f(20), False), (None, True))
    ],
    "torchmdla::gru_steps": [
        (f(2, 3, 15), [f(3, 5)], f(15, 5), bias, reverse) for bias, reverse in ((f(15), False), (None, True))
    ],
    "torchmdla::rnn_tanh_steps": [(f(2, 3, 5), [f(3, 5)], f(5, 5), f(5), False)],
    "torchmdla::rnn_relu_steps": [(f(2, 3, 5), [f(3, 5)], f(5, 5), None, True)],
    "torchmdla::lstm_steps_backward": [
        (h := f(2, 3, 5), [f(3, 5)], [f(3, 5), f(3, 5)], f(20, 5), [h, h, f(2, 3, 20)], reverse)
        for reverse in (False, True)
    ],
    "torchmdla::gru_steps_backward": [(h, [], [f(3, 5)], f(15, 5), [h, f(2, 3, 20)], False)],
    "torchmdla::rnn_tanh_steps_backward": [(h, [], [f(3, 5)], f(5, 5), [h], False)],
    "torchmdla::rnn_relu_steps_backward": [(h, [], [f(3, 5)], f(5, 5), [h], True)],
    "aten::lstm_cell": [(X, [f(3, 5), f(3, 5)], f(20, 4), f(20, 5), f(20), f(20))],
    "aten::gru_cell": [(X, f(3, 5), f(15, 4), f(15, 5), f(15), f(15))],
    "aten::rnn_tanh_cell": [(X, f(3, 5), f(5, 4), f(5, 5), f(5), f(5))],
    "aten::rnn_relu_cell": [(X, f(3, 5), f(5, 4), f(5, 5))],
    # Convolutions
    "aten::conv1d": [
        (SIGNAL, f(6, 4, 3), f(6)),
        (SIGNAL[0], f(6, 4, 3), f(6)),
        (SIGNAL, f(4, 2, 3), None, [2], [1], [1], 2),
    ],
    "aten::conv2d": [
        (IMAGE, f(6, 4, 3, 3), f(6)),
        (IMAGE, f(6, 4, 3, 2), None, [2, 1], [1, 0]),
        (IMAGE, f(4, 1, 3, 3), f(4), [1, 1], [1, 1], [2, 1], 4),
        (IMAGE, f(8, 2, 1, 1), f(8), [1, 1], [0, 0], [1, 1], 2),
        (IMAGE[0], f(6, 4, 3, 3), f(6), [2, 1], [1, 1]),
    ],
    "aten::conv2d.padding": [
        (IMAGE, f(6, 4, 3, 3), f(6), [1, 1], "same"),
        (IMAGE, f(6, 4, 3, 3), f(6), [1, 1], "valid"),
        (IMAGE, f(6, 4, 4, 2), f(6), [1, 1], "same", [1, 3]),
        (IMAGE[0], f(6, 4, 4, 3), None, [1, 1], "same"),
    ],
    "aten::conv1d.padding": [(SIGNAL, f(6, 4, 3), f(6), [1], "same"), (SIGNAL, f(6, 4, 4), f(6), [1], "same")],
    "aten::conv3d.padding": [(VOLUME, f(3, 2, 2, 3, 3), f(3), [1, 1, 1], "same")],
    "aten::_convolution_mode": [
        (IMAGE, f(6, 4, 4, 3), f(6), [1, 1], "same", [1, 1], 1),
        (IMAGE, f(6, 4, 4, 3), f(6), [2, 1], "valid", [1, 1], 1),
    ],
    "aten::conv3d": [
        (VOLUME, f(3, 2, 2, 3, 3), f(3), [1, 1, 1], [0, 1, 1]),
        (VOLUME[0], f(3, 2, 2, 3, 3), f(3)),
    ],
    "aten::convolution": [
        (IMAGE, f(6, 4, 3, 3), f(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        (IMAGE, f(4, 3, 4, 3), f(6), [3, 2], [1, 0], [1, 1], True, [2, 1], 2),
        (SIGNAL, f(4, 3, 2), None, [2], [1], [3], True, [1], 1),
        (f(1, 2, 3, 3, 2), f(2, 2, 2, 3, 2), None, [4], [1], [1], True, [0], 1),
    ],
    "aten::_convolution": [
        (IMAGE, f(6, 4, 3, 3), f(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True, True),
        (IMAGE, f(4, 3, 3, 3), f(3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1, False, False, True, True),
    ],
    "aten::_convolution.deprecated": [
        (IMAGE, f(6, 4, 3, 3), f(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True)
    ],
    "aten::conv_transpose1d": [(SIGNAL, f(4, 3, 3), f(3), [2]), (SIGNAL[0], f(4, 3, 3), f(3), [2])],
    "aten::conv_transpose2d.input": [
        (IMAGE, f(4, 3, 3, 3), f(3)),
        (IMAGE, f(4, 3, 3, 3), f(3), [2, 2], [1, 1], [1, 1]),
        (IMAGE, f(4, 2, 3, 3), f(4), [2, 2], [1, 1], [0, 0], 2),
        (IMAGE[0], f(4, 3, 3, 3), f(3), [2, 2], [1, 1], [1, 0]),
    ],
    "aten::conv_transpose3d.input": [
        (VOLUME, f(2, 3, 2, 2, 2), f(3), [2, 2, 2]),
        (VOLUME[0], f(2, 3, 2, 2, 2), f(3), [2, 2, 2]),
    ],
    # Pooling, padding, resizing
    "aten::max_pool1d": [(SIGNAL, [3]), (SIGNAL, [3], [2], [1])],
    "aten::max_pool3d": [(VOLUME, [2, 3, 3]), (VOLUME, [3], [2], [1], [1], True), (VOLUME, [2], [1], [0], [1, 2, 2])],
    "aten::max_pool2d": [
        (IMAGE, [3, 3]),
        (IMAGE, [3, 3], [2, 2], [1, 1]),
        (IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], True),
        (IMAGE, [2, 2], [1, 1], [0, 0], [2, 2]),
    ],
    "aten::avg_pool1d": [(SIGNAL, [3]), (SIGNAL, [3], [2], [1])],
    "aten::avg_pool2d": [
        (IMAGE, [3, 3]),
        (IMAGE, [3, 3], [2, 2], [1, 1]),
        (IMAGE, [3, 3], [2, 2], [1, 1], False, False),
        (IMAGE, [2, 2], [2, 2], [0, 0], True),
    ],
    "aten::avg_pool3d": [(VOLUME, [2, 2, 2])],
    "aten::adaptive_avg_pool1d": [(SIGNAL, [1]), (SIGNAL, [4])],
    "aten::adaptive_avg_pool2d": [(IMAGE, [1, 1]), (IMAGE, [3, 4]), (IMAGE, [7, 6])],
    "aten::adaptive_avg_pool3d": [(VOLUME, [1, 1, 1])],
    "aten::adaptive_max_pool1d": [(SIGNAL, [1]), (SIGNAL, [4])],
    "aten::adaptive_max_pool2d": [(IMAGE, [1, 1]), (IMAGE, [3, 2])],
    "aten::adaptive_max_pool3d": [(VOLUME, [1, 1, 1]), (VOLUME, [3, 2, 4])],
    "aten::max_pool2d_with_indices": [
        (IMAGE, [3, 3], [2, 2], [1, 1]),
        (IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], True),
        (IMAGE, [3], [1], [1], [2]),
        (torch.where(IMAGE > 1, IMAGE, -math.inf), [3, 2], [2, 1], [1, 1], [1, 1], True),
    ],
    "aten::max_pool3d_with_indices": [(VOLUME, [2, 3, 3]), (VOLUME, [3], [2], [1], [1], True)],
    "aten::constant_pad_nd": [(X, [1, 2], 0.5), (IMAGE, [1, 0, 2, 1])],
    "aten::pad": [
        (X, [1, 2]),
        (IMAGE, [1, 1, 2, 1], "reflect"),
        (IMAGE, [1, 1, 2, 1], "replicate"),
        (IMAGE, [1, 2, 0, 3], "circular"),
        (SIGNAL, [2, 0], "circular"),
        (X, [1, 1], "constant", 2.0),
    ],
    "aten::reflection_pad1d": [(SIGNAL, [1, 2])],
    "aten::reflection_pad2d": [(IMAGE, [1, 2, 0, 1])],
    "aten::replication_pad1d": [(SIGNAL, [1, 2])],
    "aten::replication_pad2d": [(IMAGE, [1, 2, 0, 1])],
    "aten::upsample_nearest1d": [(SIGNAL, [18])],
    "aten::upsample_nearest2d": [(IMAGE, [14, 12]), (IMAGE, [10, 9])],
    "aten::_upsample_nearest_exact1d": [(SIGNAL, [18])],
    "aten::_upsample_nearest_exact2d": [(IMAGE, [14, 12]), (IMAGE, [10, 9])],
    "aten::_upsample_nearest_exact3d": [(VOLUME, [8, 10, 12])],
    "aten::_upsample_nearest_exact1d.vec": [(SIGNAL, None, [2.0])],
    "aten::_upsample_nearest_exact2d.vec": [(IMAGE, None, [2.0, 2.0])],
    "aten::_upsample_nearest_exact3d.vec": [(VOLUME, None, [2.0, 2.0, 2.0])],
    "aten::upsample_nearest2d.vec": [(IMAGE, None, [2.0, 2.0]), (IMAGE, [14, 12], None)],
    "aten::upsample_bilinear2d": [(IMAGE, [14, 12], False), (IMAGE, [14, 12], True)],
    "aten::upsample_bilinear2d.vec": [(IMAGE, None, False, [2.0, 2.0]), (IMAGE, [10, 9], True, None)],
    "aten::upsample_linear1d": [(SIGNAL, [18], False)],
    "aten::upsample_bicubic2d": [(IMAGE, [14, 12], False)],
    "aten::upsample_bicubic2d.vec": [(IMAGE, None, False, [2.0, 2.0])],
    "aten::upsample_nearest3d": [(VOLUME, [8, 10, 12])],
    "aten::upsample_trilinear3d": [(VOLUME, [8, 10, 9], False)],
    "aten::upsample_trilinear3d.vec": [(VOLUME, None, True, [2.0, 2.0, 2.0])],
    "aten::upsample_nearest3d.vec": [(VOLUME, None, [2.0, 2.0, 2.0])],
    "aten::upsample_nearest1d.vec": [(SIGNAL, None, [2.0])],
    "aten::upsample_linear1d.vec": [(SIGNAL, None, False, [2.0])],
    "aten::grid_sampler": [(IMAGE, unit(2, 3, 3, 2), 0, 0, False)],
    "aten::pixel_shuffle": [(IMAGE, 2)],
    "aten::pixel_unshuffle": [(f(1, 2, 4, 6), 2)],
    "aten::channel_shuffle": [(IMAGE, 2)],
    # Lookups
    "aten::embedding": [(f(5, 4), i(2, 3)), (f(5, 4), i(2, 3), 0)],
    "aten::index_select": [(X, 0, i(5, high=3)), (X, 1, i(2))],
    "aten::gather": [(X, 1, i(3, 2)), (X, 0, i(2, 4, high=3))],
    "aten::index.Tensor": [
        (X, [i(5, high=3)]),
        (X, [None, i(5)]),
        (X, [i(2, high=3), i(2)]),
        (IMAGE, [i(3, high=2), None, i(3)]),
    ],
    "aten::take_along_dim": [(X, i(3, 2), 1)],
    "aten::scatter.src": [(X, 1, torch.tensor([[0, 1], [2, 3], [1, 0]]), f(3, 2))],
    "aten::scatter.value": [(X, 1, torch.tensor([[0, 1], [2, 3], [1, 0]]), 2.0)],
    "aten::index_put": [
        (X, [i(2, high=3)], f(2, 4)),
        (X, [MASK], torch.tensor(0.5)),
        (X, [b(3)], f(4)),
        (X, [None, b(4)], torch.tensor(0.5)),
        (X, [torch.tensor([-1, 0])], f(2, 4)),
        (X, [None, torch.tensor([-4, -1, 0])], f(3, 3)),
    ],
    "aten::index_add": [
        (X, 0, torch.tensor([2, 0, 2, 1]), f(4, 4)),
        (X, -1, torch.tensor([3, 0, 3], dtype=torch.int32), f(3, 3), 2),
        (f(5), 0, torch.tensor([4, 4]), f(2)),
        (torch.tensor(1.5), 0, torch.tensor([0]), torch.tensor(0.5)),
    ],
    "aten::scatter_add": [
        (X, 1, torch.tensor([[0, 0], [2, 3]]), f(3, 2)),
        (X, 0, torch.tensor([[2, 0, 2, 2]]), f(2, 4)),
        (X, 0, torch.tensor([2, 0, 2]).unsqueeze(1).expand(3, 4), f(3, 4)),
    ],
    "aten::scatter_reduce.two": [(X, 0, torch.tensor([[2, 0, 2, 2]]), f(2, 4), "sum")],
    # Shapes
    "aten::slice.Tensor": [(X, 1, 1, 3), (X, 0, None, None, 2), (X, 1, -2)],
    "aten::select.int": [(X, 0, 1), (X, 1, -1)],
    "aten::narrow": [(X, 1, 1, 2)],
    "aten::view": [(X, [2, 6]), (X, [-1]), (f(2, 3, 4), [6, 4]), (f(1, 1), [])],
    "aten::reshape": [(X.t(), [2, 6]), (X, [-1, 2, 2])],
    "aten::view_as": [(X, f(2, 6))],
    "aten::reshape_as": [(X, f(2, 6))],
    "aten::flatten.using_ints": [(IMAGE, 1), (IMAGE, 1, 2)],
    "aten::unflatten.int": [(X, 1, [2, 2])],
    "aten::permute": [(IMAGE, [0, 2, 3, 1])],
    "aten::transpose.int": [(IMAGE, 1, -1)],
    "aten::t": [(X,)],
    "aten::numpy_T": [(X,)],
    "aten::mT": [(f(2, 3, 4),)],
    "aten::movedim.int": [(IMAGE, 1, 3)],
    "aten::swapaxes": [(IMAGE, 1, 2)],
    "aten::expand": [(f(3, 1), [3, 4]), (ROW, [2, 3, -1])],
    "aten::expand_as": [(f(3, 1), X)],
    "aten::broadcast_to": [(ROW, [3, 4])],
    "aten::squeeze": [(f(1, 3, 1),)],
    "aten::squeeze.dim": [(f(1, 3, 1), 0), (X, 0)],
    "aten::squeeze.dims": [(f(1, 3, 1), [0, 2])],
    "aten::unsqueeze": [(X, 0), (X, -1)],
    "aten::unbind.int": [(X, 0), (X, 1)],
    "aten::split.Tensor": [(X, 2, 1), (X, 3, 1)],
    "aten::split_with_sizes": [(X, [1, 3], 1)],
    "aten::split.sizes": [(X, [1, 3], 1)],
    "aten::chunk": [(X, 2, 1), (X, 3, 1)],
    "aten::tensor_split.sections": [(X, 3, 1)],
    "aten::cat": [([X, f(2, 4)], 0), ([X, Y, f(3, 1)], 1)],
    "aten::concat": [([X, f(2, 4)], 0)],
    "aten::stack": [([X, Y], 0), ([X, Y], -1)],
    "aten::hstack": [([X, Y],)],
    "aten::vstack": [([X, Y],)],
    "aten::repeat": [(X, [2, 3]), (X, [2, 1, 1])],
    "aten::repeat_interleave.self_int": [(X, 2, 1), (X, 2)],
    "aten::tile": [(X, [2, 2])],
    "aten::roll": [(X, [1], [0]), (X, [1, -2], [0, 1]), (X, [7, -9], [0, -1]), (X, [5, 5], [0, 0]), (X, [-17])],
    "aten::flip": [(X, [0]), (X, [0, 1])],
    "aten::rot90": [(X,)],
    "aten::tril": [(X,), (X, 1)],
    "aten::triu": [(X,), (X, -1)],
    "aten::diagonal": [(X,), (f(2, 3, 3), 0, 1, 2)],
    "aten::diag_embed": [(X,)],
    "aten::unfold": [(SIGNAL, 2, 3, 2)],
    "aten::meshgrid": [([ROW, f(3)],)],
    "aten::meshgrid.indexing": [([ROW, f(3)], "xy")],
    "aten::select_scatter": [(X, ROW, 0, 1)],
    "aten::slice_scatter": [(X, f(3, 2), 1, 1, 3)],
    # Copies and casts
    "aten::clone": [(X,)],
    "aten::contiguous": [(X,)],
    "aten::detach": [(X,)],
    "aten::alias": [(X,)],
    "aten::to.dtype": [
        (X, torch.float64),
        (X, torch.int64),
        (MASK, torch.float32),
        (X, torch.float32),
        (X, torch.bool),
        (INTS, torch.float32),
        (X, torch.int32),
    ],
    "aten::to.dtype_layout": [(X, torch.float64)],
    "aten::to.device": [(X, "cpu", torch.float64)],
    "aten::to.other": [(X, INTS)],
    "aten::to.prim_dtype": [(X, 7)],
    "aten::_to_copy": [(X, torch.float64)],
    "aten::type_as": [(X, INTS)],
    # Factories
    "aten::zeros": [([2, 3],), ([2, 3], torch.int64)],
    "aten::ones": [([2, 3],)],
    "aten::full": [([2, 3], 1.5), ([2, 3], 2, torch.int64)],
    "aten::zeros_like": [(X,), (X, torch.int64)],
    "aten::ones_like": [(X,)],
    "aten::full_like": [(X, 1.5)],
    "aten::zero": [(X,)],
    "aten::fill.Scalar": [(X, 1.5), (INTS, 1.5)],
    "aten::fill.Tensor": [(X, torch.tensor(1.5)), (INTS, torch.tensor(1.5))],
    "aten::copy": [(X, ROW), (X, f(3, 1).double()), (INTS, INTS * 1.5)],
    "aten::new_zeros": [(X, [2, 2])],
    "aten::new_ones": [(X, [2, 2])],
    "aten::new_full": [(X, [2, 2], 1.5)],
    "aten::arange": [(5,), (5.0,)],
    "aten::arange.start": [(1, 5)],
    "aten::arange.start_step": [(1, 8, 2), (0.0, 1.0, 0.25)],
    "aten::linspace": [(0, 1, 5)],
    "aten::eye": [(3,)],
    "aten::scalar_tensor": [(2.5,), (3, torch.int64)],
    # Losses and pieces of training
    "aten::mse_loss": [(X, Y), (X, Y, 0), (X, Y, 2)],
    "aten::l1_loss": [(X, Y)],
    "aten::smooth_l1_loss": [(X, Y)],
    "aten::huber_loss": [(X, Y)],
    "aten::binary_cross_entropy": [(positive(3, 4) / 2, b(3, 4).float())],
    "aten::binary_cross_entropy_with_logits": [
        (X, b(3, 4).float()),
        (X, b(3, 4).float(), ROW, positive(4)),
        (X, positive(3, 4) / 2, None, positive(3, 1), 0),
        (X, b(3, 4).float(), positive(3, 4), None, 2),
    ],
    "aten::cross_entropy_loss": [
        (X, i(3)),
        (X, torch.softmax(Y, 1)),
        (X, i(3), None, 2),
        (X, i(3), positive(4), 1, -100, 0.0),
        (IMAGE, i(2, 7, 6)),
        (IMAGE, i(2, 7, 6), positive(4), 1, 2),
        (IMAGE, i(2, 7, 6), None, 0),
    ],
    "aten::nll_loss2d": [(torch.log_softmax(IMAGE, 1), i(2, 7, 6))],
    "aten::nll_loss2d_forward": [(torch.log_softmax(IMAGE, 1), i(2, 7, 6), None, 1, -100)],
    "aten::nll_loss2d_backward": [
        (torch.tensor(1.0), torch.log_softmax(IMAGE, 1), i(2, 7, 6), None, 1, -100, torch.tensor(84.0))
    ],
    "aten::nll_loss": [(torch.log_softmax(X, 1), i(3))],
    "aten::nll_loss_nd": [(torch.log_softmax(X, 1), i(3))],
    "aten::nll_loss_forward": [(torch.log_softmax(X, 1), i(3), None, 1, -100)],
    "aten::kl_div": [(X, positive(3, 4))],
    "aten::threshold_backward": [(X, Y, 0)],
    "aten::gelu_backward": [(X, Y), (X, Y, "tanh")],
    "aten::silu_backward": [(X, Y)],
    "aten::hardtanh_backward": [(X, Y, -0.5, 0.5)],
    "aten::hardswish_backward": [(X, Y)],
    "aten::leaky_relu_backward": [(X, Y, 0.1, False)],
    "aten::elu_backward": [(X, 1.0, 1.0, 1.0, False, Y)],
    "aten::tanh_backward": [(X, unit(3, 4))],
    "aten::sigmoid_backward": [(X, unit(3, 4))],
    "aten::_softmax_backward_data": [(X, torch.softmax(Y, 1), 1, torch.float32)],
    "aten::_log_softmax_backward_data": [(X, torch.log_softmax(Y, 1), 1, torch.float32)],
    "aten::convolution_backward": [
        (f(2, 6, 7, 6), IMAGE, f(6, 4, 3, 3), [6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]),
        (f(2, 6, 7, 6), IMAGE, f(6, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False]),
        (f(2, 6, 7, 6), IMAGE, f(6, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]),
        (f(2, 6, 4, 2), IMAGE, f(6, 2, 3, 2), [6], [2, 3], [1, 0], [1, 1], False, [0, 0], 2, [True, True, True]),
        (f(2, 8, 3, 4), IMAGE, f(8, 1, 3, 3), [8], [2, 1], [1, 1], [2, 2], False, [0, 0], 4, [True, True, True]),
        (f(2, 4, 1, 1), IMAGE, f(4, 4, 4, 5), [4], [4, 5], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]),
        (f(2, 6, 5), SIGNAL, f(6, 4, 3), [6], [2], [1], [1], False, [0], 1, [True, True, True]),
        (f(1, 3, 2, 2, 3), VOLUME, f(3, 2, 2, 2, 2), [3], [2], [0], [1], False, [0], 1, [True, True, True]),
        (f(2, 3, 14, 11), IMAGE, f(4, 3, 3, 3), [3], [2, 2], [1, 1], [1, 1], True, [1, 0], 1, [True, True, True]),
        (f(2, 6, 10), SIGNAL, f(4, 3, 4), [6], [1], [1], [1], True, [0], 2, [True, True, False]),
    ],
    "aten::max_pool2d_with_indices_backward": [
        max_pool_gradient(IMAGE, [3, 3], [2, 2], [1, 1], [1, 1], False),
        max_pool_gradient(IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], True),
        max_pool_gradient(IMAGE, [3, 2], [1, 1], [1, 0], [2, 1], False),
        max_pool_gradient(IMAGE, [2, 2], [3, 3], [0, 0], [1, 1], False),
    ],
    "aten::max_pool3d_with_indices_backward": [
        max_pool_gradient(VOLUME, [2, 3, 3], [2, 1, 2], [1, 1, 0], [1] * 3, True)
    ],
    "aten::avg_pool2d_backward": [
        (f(2, 4, 4, 3), IMAGE, [3, 3], [2, 2], [1, 1], False, True, None),
        (f(2, 4, 4, 3), IMAGE, [3, 3], [2, 2], [1, 1], False, False, None),
        (f(2, 4, 4, 3), IMAGE, [2, 2], [2, 2], [0, 0], True, True, 3),
    ],
    "aten::avg_pool3d_backward": [(f(1, 2, 2, 2, 3), VOLUME, [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None)],
    "aten::_adaptive_avg_pool2d_backward": [(f(2, 4, *size), IMAGE) for size in ((1, 1), (7, 3), (3, 4))],
    "aten::_adaptive_avg_pool3d_backward": [(f(1, 2, 1, 1, 1), VOLUME), (f(1, 2, 2, 3, 4), VOLUME)],
    "aten::nll_loss_backward": [(torch.tensor(1.0), torch.log_softmax(X, 1), i(3), None, 1, -100, torch.tensor(3.0))],
    "aten::mse_loss_backward": [(X, Y, f(3, 4), 1)],
    "aten::_scaled_dot_product_flash_attention_for_cpu": [
        (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4)),
        (f(2, 4, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4), 0.0, False, f(2, 1, 3, 5), 0.3),
        (f(1, 1, 769, 2), f(1, 1, 520, 2), f(1, 1, 520, 2), 0.0, True),
        (f(1, 1, 3, 2), f(1, 1, 4, 2), f(1, 1, 4, 2), 0.0, False, torch.ones(3, 4).tril(-1).log()),
    ],
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": [
        attention_gradients(f(2, 2, 3, 4), f(2, 2, 5, 4), False),
        attention_gradients(f(2, 4, 3, 4), f(2, 2, 5, 4), False, f(2, 1, 3, 5), 0.3),
        attention_gradients(f(1, 1, 769, 2), f(1, 1, 520, 2), True),
        attention_gradients(f(1, 1, 520, 2), f(1, 1, 600, 2), True),
        attention_gradients(f(1, 1, 3, 2), f(1, 1, 4, 2), False, torch.ones(3, 4).tril(-1).log()),
    ],
    "aten::_grad_sum_to_size": [(X, [1, 4]), (X, [4]), (X, None)],
    "aten::sum_to_size": [(X, [3, 1])],
}
