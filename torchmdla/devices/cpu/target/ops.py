"""Operators that the CPU device supports.

Every entry lowers through torch-mlir to linalg and was compared with eager by ``tests/cpu/test_cpu_ops.py``. Operators
that draw random numbers are not supported.

Some uses of these operators are rejected, so their group runs in PyTorch's interpreter:

- ``copy``, ``select_scatter`` and ``slice_scatter`` whose result has gaps in memory (eager's results have the gaps,
  too);
- powers of integers, except with a constant exponent or with base 2;
- ``mse_loss_backward`` and ``max_pool3d`` of integers;
- bicubic ``grid_sampler``;
- scatters that add booleans.

The gradient of an embedding runs outside of groups: nothing in a graph uses it, and a group would allocate the gradient
of a large table while all activations are alive.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.devices.device import OpSupport
from torchmdla.devices.quantisation import QuantisedType, quantised_patterns_of
from torchmdla.devices.shape_ops import SHAPE_OPS, entries

# The dtypes of tensors in groups. float16 is supported too where the processor converts it.
_DTYPES = "float32 float64 bfloat16 int64 int32 int16 int8 uint8 bool qint8 quint8"
DTYPES = frozenset(_DTYPES.split())

# Anchors: each of them justifies a kernel.
_COMPUTE = """
sum sum.dim_IntList nansum mean mean.dim var var.dim var.correction std std.dim std.correction
var_mean var_mean.dim var_mean.correction amax amin aminmax max min max.dim min.dim argmax argmin prod prod.dim_int
all all.dim any any.dim any.dims norm.Scalar norm.ScalarOpt_dim linalg_vector_norm frobenius_norm.dim
cumsum cumprod logsumexp count_nonzero
softmax.int log_softmax.int _softmax _log_softmax layer_norm native_layer_norm rms_norm group_norm native_group_norm
cosine_similarity
mm matmul bmm mv dot outer _int_mm addmm addmv baddbmm linear bilinear einsum tensordot
conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding convolution _convolution _convolution.deprecated
_convolution_mode conv_transpose1d conv_transpose2d.input conv_transpose3d.input
max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d max_pool2d_with_indices max_pool3d_with_indices
upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_linear1d upsample_bicubic2d
upsample_nearest3d upsample_trilinear3d
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
_upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec
upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_linear1d.vec upsample_bilinear2d.vec
upsample_bicubic2d.vec upsample_trilinear3d.vec grid_sampler
_transformer_encoder_layer_fwd _native_multi_head_attention lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward kl_div
max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward
_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
_softmax_backward_data _log_softmax_backward_data convolution_backward nll_loss_backward nll_loss2d_backward
"""

# One pass over memory: worth a kernel together with another operator.
_ELEMENTWISE = """
abs neg relu relu6 sigmoid tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square
sin cos tan asin acos atan sinh cosh asinh acosh atanh erf floor ceil round trunc frac sign sgn
silu mish gelu hardswish hardsigmoid log_sigmoid selu leaky_relu elu celu softplus hardtanh hardshrink softshrink
threshold prelu glu logit nan_to_num isnan isinf isfinite logical_not bitwise_not
clamp clamp.Tensor clamp_min clamp_max clamp_min.Tensor clamp_max.Tensor
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
div.Tensor_mode div.Scalar_mode floor_divide floor_divide.Scalar remainder.Tensor remainder.Scalar fmod.Tensor
pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar atan2 maximum minimum max.other min.other
lerp.Tensor lerp.Scalar addcmul addcdiv heaviside
hypot logaddexp sinc xlogy.Tensor deg2rad rad2deg
eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor ge.Scalar
logical_and logical_or logical_xor
bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_xor.Tensor
__and__.Tensor __or__.Tensor __xor__.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor
where.self where.ScalarSelf where.ScalarOther where.Scalar masked_fill.Scalar masked_fill.Tensor
threshold_backward gelu_backward silu_backward hardtanh_backward hardswish_backward
leaky_relu_backward elu_backward tanh_backward sigmoid_backward mse_loss_backward
"""

_MOVING = """
clone _to_copy cat concat stack hstack vstack repeat repeat_interleave.self_int tile roll flip rot90 tril triu
constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
pixel_shuffle pixel_unshuffle channel_shuffle
embedding index_select gather index.Tensor take_along_dim diag_embed select_scatter slice_scatter
scatter.src scatter.value scatter_add index_put index_add
zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange arange.start arange.start_step
linspace eye scalar_tensor copy fill.Scalar fill.Tensor zero
"""

# These include operators that return their argument when there is nothing to do: casts, contiguous, sum_to_size.
_VIEW = """
slice.Tensor select.int narrow view reshape view_as reshape_as flatten.using_ints unflatten.int permute transpose.int t
numpy_T mT movedim.int swapaxes expand expand_as broadcast_to squeeze squeeze.dim squeeze.dims unsqueeze unbind.int
split split.Tensor split.sizes split_with_sizes chunk tensor_split.sections diagonal unfold meshgrid meshgrid.indexing
contiguous detach alias positive to.dtype to.dtype_layout to.device to.other to.prim_dtype type_as
_autocast_to_reduced_precision _autocast_to_full_precision
_grad_sum_to_size sum_to_size
"""

# All steps of a recurrent layer in one direction (importer/decompositions/recurrent_steps.py).
_RECURRENT_STEPS = """
lstm_steps gru_steps rnn_tanh_steps rnn_relu_steps
lstm_steps_backward gru_steps_backward rnn_tanh_steps_backward rnn_relu_steps_backward
"""

# Operators of torch.ops.quantized_decomposed: exported programs use them for quantised integers.
_QUANTISED = """
quantize_per_tensor quantize_per_tensor.tensor quantize_per_channel quantize_per_token
dequantize_per_tensor dequantize_per_tensor.tensor dequantize_per_channel dequantize_per_channel_group
dequantize_per_token
"""

_PRODUCTS_OF_QUANTISED = """
conv1d conv1d_relu conv2d.new conv2d_relu.new conv3d.new conv3d_relu.new
linear linear_relu linear_dynamic linear_relu_dynamic matmul
batch_norm batch_norm_relu batch_norm1d batch_norm1d_relu batch_norm2d batch_norm2d_relu batch_norm3d batch_norm3d_relu
layer_norm softmax
"""

_ELEMENTWISE_OF_QUANTISED = """
add add_relu mul mul_relu
add.Scalar add_relu.Scalar mul.Scalar mul_relu.Scalar mul.Scalar2 mul_relu.Scalar2
add_scalar add_scalar_relu mul_scalar mul_scalar_relu cat cat_relu
hardswish sigmoid elu
"""

# Operators that draw random numbers, update statistics or have no decomposition, unless these arguments are constants.
_CONDITIONAL: Mapping[str, OpSupport] = {
    "aten::dropout": OpSupport("view", {"train": False}),
    "aten::feature_dropout": OpSupport("view", {"train": False}),
    "aten::alpha_dropout": OpSupport("view", {"train": False}),
    "aten::batch_norm": OpSupport("compute", {"training": False}),
    "aten::instance_norm": OpSupport("compute", {"running_mean": None}),
    "aten::scaled_dot_product_attention": OpSupport("compute", {"dropout_p": 0.0}),
    "aten::_scaled_dot_product_flash_attention_for_cpu": OpSupport("compute", {"dropout_p": 0.0}),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": OpSupport("compute", {"dropout_p": 0.0}),
    "aten::scatter_reduce.two": OpSupport("cheap", {"reduce": "sum", "include_self": True}),
    "aten::cross_entropy_loss": OpSupport("compute", {"label_smoothing": 0.0}),
    "aten::lstm.input": OpSupport("compute", {"train": False}),
    "aten::gru.input": OpSupport("compute", {"train": False}),
    "aten::rnn_tanh.input": OpSupport("compute", {"train": False}),
    "aten::rnn_relu.input": OpSupport("compute", {"train": False}),
}


# Operators on PyTorch's quantised tensors and on packed weights. Eager-mode and FX quantisation leave these in
# TorchScript.
QUANTISED_TENSORS: Mapping[str, OpSupport] = {
    **entries("aten", "quantize_per_tensor quantize_per_tensor.tensor_qparams dequantize.self", "cheap"),
    **entries("quantized", _PRODUCTS_OF_QUANTISED, "compute"),
    **entries("quantized", _ELEMENTWISE_OF_QUANTISED, "cheap"),
    "quantized::dropout": OpSupport("view", {"training": False}),
    "quantized::relu6": OpSupport("cheap", {"inplace": False}),
    "quantized::leaky_relu": OpSupport("cheap", {"inplace": False}),
}


OPS: Mapping[str, OpSupport] = {
    **entries("aten", _COMPUTE, "compute"),
    **entries("aten", _ELEMENTWISE, "cheap"),
    **entries("aten", _MOVING, "cheap"),
    **entries("aten", _VIEW, "view"),
    **entries("torchmdla", _RECURRENT_STEPS, "compute"),
    **entries("quantized_decomposed", _QUANTISED, "cheap"),
    **entries("quantized_decomposed", "choose_qparams.tensor", "compute"),
    **entries("torchao", "choose_qparams_affine", "compute"),
    **entries("torchao", "quantize_affine dequantize_affine", "cheap"),
    **QUANTISED_TENSORS,
    **entries("prim", "ConstantChunk", "view"),
    **SHAPE_OPS,
    **_CONDITIONAL,
}

# Products of 8-bit integers are sums of u8 × s8 in the instructions of AVX512_VNNI and AVX_VNNI. A result is quantised
# where a later product reads it. The addend of a convolution is read as integers too.
_ACTIVATIONS = QuantisedType(8, signed=False, symmetric=False)
_WEIGHTS = QuantisedType(8, axis=0)
QUANTISED_PATTERNS = [
    *quantised_patterns_of(
        "conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding linear conv2d+add.Tensor",
        activations=_ACTIVATIONS,
        weights=_WEIGHTS,
    ),
    *quantised_patterns_of("max_pool1d max_pool2d max_pool3d cat", activations=_ACTIVATIONS, shares_scale=True),
]
