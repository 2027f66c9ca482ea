"""Expressions with a scalar ``s``, in Python that TorchScript also supports.

The tensors ``x``, ``y``, ``w`` and ``z`` have the same dtype. ``x`` and ``y`` have 64 elements with special values.
``w`` has no zeros, and the values of ``z`` are moderate. ``m`` is a mask, ``i`` an index. An expression is left out
for dtypes and scalars that eager does not support.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.strip().splitlines())


EXACT = _lines("""
x + s
x - s
s - x
x * s
s * x
x / s
s / x
x % s
x // s
torch.add(x, y, alpha=s)
torch.sub(x, y, alpha=s)
torch.ops.aten.rsub(x, y, alpha=s)
torch.rsub(x, s, 2)
torch.div(x, s, rounding_mode="floor")
torch.div(x, s, rounding_mode="trunc")
torch.floor_divide(x, s)
torch.fmod(x, s)
x == s
x != s
x < s
x <= s
x > s
x >= s
s < x
s == x
torch.clamp(x, s, None)
torch.clamp(x, None, s)
torch.clamp(x, s, 3)
torch.clamp(x, -3, s)
torch.clamp_min(x, s)
torch.clamp_max(x, s)
torch.where(m, x, s)
torch.where(m, s, x)
torch.where(m, s, 3)
x.masked_fill(m, s)
torch.full([3], s)
torch.full([3], s, dtype=x.dtype)
torch.full_like(x, s)
torch.fill(x, s)
x.new_full([3], s)
torch.scalar_tensor(s, dtype=x.dtype)
torch.arange(s, s + 3, dtype=x.dtype)
torch.arange(0, s + s, s, dtype=x.dtype)
torch.arange(s % 7, dtype=x.dtype)
torch.addcmul(x, y, y, value=s)
torch.addcdiv(x, y, y, value=s)
torch.lerp(x, y, s)
x & s
x | s
x ^ s
x << s
x >> s
torch.bitwise_left_shift(x, s)
torch.bitwise_right_shift(x, s)
torch.scatter(x, 0, i, s)
torch.threshold(x, s, s)
torch.threshold(x, 0.3, s)
torch.ops.aten.threshold_backward(x, y, s)
torch.hardshrink(x, s)
torch.ops.aten.softshrink(x, s)
torch.ops.aten.hardtanh(x, -3, s)
torch.ops.aten.hardtanh(x, s, 3)
torch.ops.aten.hardtanh_backward(x, y, -3, s)
torch.ops.aten.hardtanh_backward(x, y, s, 3)
torch.ops.aten.leaky_relu(x, s)
torch.ops.aten.leaky_relu_backward(x, y, s, False)
torch.constant_pad_nd(x, [1, 1], s)
torch.ops.aten.pad(x, [1, 1], "constant", s)
torch.nan_to_num(x, s)
torch.nan_to_num(x, None, s)
torch.nan_to_num(x, None, None, s)
x + (s + 3)
x + (s - 3)
x + (s * 3)
x + (s / 3)
x + (s // 3)
x + (s % 3)
x + float(s)
x + int(s)
""")

# Expressions for 0-d tensors only.
EXACT_WITH_TENSORS = _lines("""
torch.add(x, s, alpha=3)
torch.sub(s, x, alpha=3)
torch.maximum(x, s)
torch.minimum(s, x)
torch.max(x, s)
torch.min(x, s)
torch.logical_and(x, s)
torch.logical_or(x, s)
torch.logical_xor(s, x)
torch.where(s > 1, x, y)
torch.where(m, x, s)
torch.clamp(x, s, s + 1)
torch.clamp(s, x, y)
torch.heaviside(x, s)
torch.addcmul(x, s, y)
torch.addcmul(x, y, s)
torch.addcmul(s, x, y)
torch.addcdiv(x, y, s)
torch.fmod(s, x)
torch.remainder(s, x)
torch.div(s, x, rounding_mode="floor")
torch.div(s, x, rounding_mode="trunc")
s // x
torch.fmod(s, w)
torch.remainder(s, w)
torch.div(s, w, rounding_mode="floor")
torch.div(s, w, rounding_mode="trunc")
s // w
s & x
s | x
s ^ x
s << x
s >> x
torch.bitwise_and(x, s)
torch.bitwise_or(x, s)
torch.bitwise_xor(x, s)
torch.bitwise_left_shift(s, x)
torch.bitwise_right_shift(s, x)
torch.lerp(x, y, s)
torch.lerp(x, s, 0.3)
torch.prelu(x, s)
torch.ops.aten.copy(x, s)
torch.select_scatter(x, s, 0, 1)
torch.index_put(x, [i], s)
torch.index_select(x, 0, s)
torch.gather(x, 0, s)
torch.embedding(z.view(8, 8), s)
torch.take_along_dim(x, s)
x.to(s)
s.to(x)
x.type_as(s)
s.type_as(x)
s.to(x.dtype)
s.expand_as(x)
torch.stack([s, s])
torch.ops.aten.threshold_backward(s, x, 1)
torch.ops.aten.leaky_relu_backward(s, x, 0.3, False)
torch.ops.aten.hardtanh_backward(s, x, -1, 1)
""")

# Vector maths with errors of a few units in the last place, and sums.
APPROXIMATE = _lines("""
x ** s
s ** x
torch.ops.aten.elu(x, s)
torch.ops.aten.elu(x, 1, s)
torch.ops.aten.elu(x, 1, 1, s)
torch.ops.aten.elu_backward(x, s, 1, 1, False, y)
torch.ops.aten.elu_backward(x, 1, s, 1, False, y)
torch.ops.aten.elu_backward(x, 1, 1, s, False, y)
torch.celu(x, s)
torch.ops.aten.softplus(x, s, 20)
torch.ops.aten.softplus(x, 1, s)
torch.ops.aten.softplus(x, 0.3, s)
torch.xlogy(x, s)
torch.logit(x, s)
torch.linspace(0, s, 5, dtype=x.dtype)
torch.linspace(s, 1, 5, dtype=x.dtype)
torch.addmm(z.view(8, 8), z.view(8, 8), z.view(8, 8), beta=s)
torch.addmm(z.view(8, 8), z.view(8, 8), z.view(8, 8), alpha=s)
torch.addmv(z[:8], z.view(8, 8), z[:8], beta=s)
torch.addmv(z[:8], z.view(8, 8), z[:8], alpha=s)
torch.baddbmm(z.view(2, 4, 8), z.view(2, 4, 8), z.view(1, 8, 8).expand(2, 8, 8), beta=s)
torch.baddbmm(z.view(2, 4, 8), z.view(2, 4, 8), z.view(1, 8, 8).expand(2, 8, 8), alpha=s)
torch.ops.aten.norm(z, s)
torch.ops.aten.norm(z, s, [0], False)
torch.ops.aten.linalg_vector_norm(z, s)
torch.var(z, [0], correction=s)
torch.std(z, [0], correction=s)
torch.var_mean(z, [0], correction=s)[0]
torch.layer_norm(z, [64], None, None, s)
torch.native_layer_norm(z, [64], None, None, s)[0]
torch.rms_norm(z, [64], None, s)
torch.group_norm(z.view(1, 8, 8), 2, None, None, s)
torch.native_group_norm(z.view(1, 8, 8), None, None, 1, 8, 8, 2, s)[0]
torch.instance_norm(z.view(1, 8, 8), None, None, None, None, True, 0.1, s, False)
torch.batch_norm(z.view(8, 8), None, None, z[:8], z[:8] * z[:8], False, 0.1, s, False)
torch.cosine_similarity(z, y.roll(5), 0, s)
torch.ops.aten.huber_loss(z, z.roll(5), 1, s)
torch.ops.aten.smooth_l1_loss(z, z.roll(5), 1, s)
torch.ops.aten.scaled_dot_product_attention(z.view(1, 8, 8), z.view(1, 8, 8), z.view(1, 8, 8), scale=s)
""")

APPROXIMATE_WITH_TENSORS = _lines("""
torch.atan2(x, s)
torch.atan2(s, x)
torch.hypot(x, s)
torch.hypot(s, x)
torch.logaddexp(x, s)
torch.logaddexp(s, x)
torch.xlogy(s, x)
torch.ops.aten.gelu_backward(s, x)
torch.ops.aten.gelu_backward(x, s)
torch.ops.aten.silu_backward(s, x)
torch.ops.aten.silu_backward(x, s)
torch.ops.aten.tanh_backward(s, x)
torch.ops.aten.tanh_backward(x, s)
torch.ops.aten.sigmoid_backward(s, x)
torch.ops.aten.sigmoid_backward(x, s)
torch.ops.aten.hardswish_backward(s, x)
torch.ops.aten.elu_backward(s, 1, 1, 1, False, x)
torch.ops.aten.mse_loss(z, s, 0)
torch.ops.aten.mse_loss(z, s)
torch.ops.aten.mse_loss_backward(s, z, z.roll(5), 1)
torch.ops.aten.mse_loss_backward(z, z, s, 0)
torch.ops.aten.l1_loss(z, s, 0)
torch.ops.aten.smooth_l1_loss(z, s, 0)
torch.ops.aten.huber_loss(z, s, 0)
torch.ops.aten.kl_div(z, s, 0)
torch.binary_cross_entropy_with_logits(z, z, s, None, 0)
torch.binary_cross_entropy_with_logits(z, z, None, s, 0)
torch.addmm(s, z.view(8, 8), z.view(8, 8))
torch.ops.aten.linear(z.view(8, 8), z.view(8, 8), s)
torch.addmv(s, z.view(8, 8), z[:8])
torch.baddbmm(s, z.view(2, 4, 8), z.view(1, 8, 8).expand(2, 8, 8))
""")

# Texts of calls for which eager rounds a product and a sum of float32 or float64 once, if the processor supports it.
# Compiled code rounds both, and a product that overflows is infinite.
FUSED = ("alpha=", "addcmul", "addcdiv", "lerp", "rsub")

# The tolerance of quantised integers. A value halfway between two integers may be rounded to either.
ROUNDED = 1
_QUANTISED = "torch.quantize_per_tensor(z, 0.1, 100, torch.quint8)"
QUANTISED = (
    "torch.quantize_per_tensor(z, s, 3, torch.quint8).int_repr()",
    f"torch.ops.quantized.elu({_QUANTISED}, 0.1, 3, s).int_repr()",
    f"torch.ops.quantized.leaky_relu({_QUANTISED}, s, False, 0.1, 3).int_repr()",
    *(
        f"torch.ops.quantized.{name}({_QUANTISED}, s).dequantize()"
        for form in ("add", "mul")
        for name in (form, f"{form}_relu", f"{form}_scalar", f"{form}_scalar_relu")
    ),
    *(f"torch.ops.quantized.{name}(s, {_QUANTISED}).dequantize()" for name in ("mul", "mul_relu")),
)


@dataclass(frozen=True)
class Exemption:
    """Results that are not compared.

    Attributes:
        text: a text that the expressions contain.
        reason: the reason for the difference from eager.
        way: the frontend. An empty text means any frontend.
        scalars: the scalars.
    """

    text: str
    reason: str
    way: str = ""
    scalars: Callable[[Any], bool] = lambda scalar: True

    def covers(self, way: str, text: str, scalar: Any) -> bool:
        return self.text in text and self.way in ("", way) and self.scalars(scalar)


EXEMPTIONS = (
    Exemption(
        "scaled_dot_product_attention",
        "eager's fused kernel, and it alone, makes zeros of rows that are NaN",
        scalars=lambda scalar: not math.isfinite(scalar),
    ),
    *(
        Exemption(
            "group_norm",
            "for devices PyTorch takes this operator apart, and rounds eps to the dtype",
            way=way,
            scalars=lambda scalar: scalar > 1e4,
        )
        for way in ("lazy:step", "acap:device")
    ),
    Exemption(
        "instance_norm",
        "PyTorch takes this operator apart, and rounds eps to float32",
        way="dynamo:compile",
        scalars=lambda scalar: scalar > 3.5e38,
    ),
    *(
        Exemption("quantize_per_tensor", "the device has no quantised tensors", way=way)
        for way in ("lazy:step", "acap:device")
    ),
    Exemption(
        "torch.where(m, ",
        "PyTorch's lazy device holds a number in float32, and refuses one beyond it",
        way="lazy:step",
        scalars=lambda scalar: abs(scalar) > 3.5e38 and math.isfinite(scalar),
    ),
    Exemption("sub(x, y, alpha", "eager adds, with an alpha of -0", scalars=lambda scalar: scalar == 0),
)

# Operators with numbers or 0-d tensors as arguments that no expression contains.
NOT_PROBED: Mapping[str, str] = {
    name: reason
    for reason, names in {
        "it has no tensor": (
            "aten::add aten::sub aten::mul aten::floordiv aten::remainder aten::Int.Scalar prim::NumToTensor.Scalar"
        ),
        "the number only says where elements are taken": (
            "aten::upsample_nearest1d aten::upsample_nearest2d aten::upsample_nearest3d aten::upsample_linear1d "
            "aten::upsample_bilinear2d aten::upsample_trilinear3d aten::upsample_bicubic2d "
            "aten::_upsample_nearest_exact1d aten::_upsample_nearest_exact2d aten::_upsample_nearest_exact3d"
        ),
        "the number is a probability, and the operator is in groups where nothing is drawn": (
            "aten::dropout aten::feature_dropout aten::alpha_dropout aten::lstm.input aten::gru.input "
            "aten::rnn_tanh.input aten::rnn_relu.input quantized::dropout "
            "aten::_scaled_dot_product_flash_attention_for_cpu "
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
        ),
        "its number has one value in groups": "aten::cross_entropy_loss",
        "it multiplies what it adds, as the number of add does": "aten::index_add",
        "a bias of a recurrent layer, which is a vector": (
            "torchmdla::lstm_steps torchmdla::gru_steps torchmdla::rnn_tanh_steps"
        ),
        "it is made of a layer norm and others": "aten::_transformer_encoder_layer_fwd",
        "a bias of a linear layer, which is added as that of linear is": (
            "aten::_native_multi_head_attention aten::lstm_cell aten::gru_cell aten::rnn_tanh_cell"
        ),
        "eager resizes its result, and warns": "aten::binary_cross_entropy",
        "eager reads beyond its 0-d tensor": "aten::_log_softmax_backward_data",
        "TorchScript makes sub of it": "aten::rsub.Tensor",
        "a gradient of a mean, which has no dimensions": "aten::nll_loss_backward aten::nll_loss2d_backward",
        "the numbers are constants of the type of a quantised tensor": (
            "quantized::add quantized::add_relu quantized::mul quantized::mul_relu quantized::cat quantized::cat_relu "
            "quantized::batch_norm quantized::batch_norm_relu quantized::batch_norm1d quantized::batch_norm1d_relu "
            "quantized::batch_norm2d quantized::batch_norm2d_relu quantized::batch_norm3d quantized::batch_norm3d_relu "
            "quantized::conv1d quantized::conv1d_relu quantized::conv2d.new quantized::conv2d_relu.new "
            "quantized::conv3d.new quantized::conv3d_relu.new quantized::linear quantized::linear_relu "
            "quantized::matmul quantized::hardswish quantized::sigmoid quantized::softmax quantized::layer_norm "
            "quantized_decomposed::choose_qparams.tensor quantized_decomposed::quantize_per_tensor "
            "quantized_decomposed::dequantize_per_tensor"
        ),
        "what has no dimensions there is what is quantised": (
            "quantized_decomposed::quantize_per_tensor.tensor quantized_decomposed::dequantize_per_tensor.tensor "
            "quantized_decomposed::dequantize_per_channel_group quantized_decomposed::dequantize_per_token"
        ),
    }.items()
    for name in names.split()
}
