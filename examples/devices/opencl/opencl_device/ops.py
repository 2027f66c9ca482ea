"""Operators that the opencl device supports."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.devices import OpKind, OpSupport

_COMPUTE = """
sum sum.dim_IntList nansum mean mean.dim var var.dim var.correction std std.dim std.correction
var_mean var_mean.dim var_mean.correction amax amin aminmax max min max.dim min.dim argmax argmin prod prod.dim_int
all all.dim any any.dim any.dims norm.Scalar norm.ScalarOpt_dim linalg_vector_norm frobenius_norm.dim
logsumexp count_nonzero
softmax.int log_softmax.int _softmax _log_softmax layer_norm native_layer_norm rms_norm group_norm native_group_norm
cosine_similarity
mm matmul bmm mv dot outer addmm addmv baddbmm linear bilinear einsum tensordot
conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding convolution _convolution
conv_transpose1d conv_transpose2d.input conv_transpose3d.input
max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d max_pool2d_with_indices max_pool3d_with_indices
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
upsample_trilinear3d upsample_nearest2d.vec upsample_bilinear2d.vec upsample_bicubic2d.vec grid_sampler
lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward kl_div
max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward
_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
_softmax_backward_data _log_softmax_backward_data convolution_backward nll_loss_backward nll_loss2d_backward
"""

_CHEAP = """
abs neg relu relu6 sigmoid tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square
sin cos tan asin acos atan sinh cosh asinh acosh atanh erf floor ceil round trunc frac sign sgn
silu mish gelu hardswish hardsigmoid log_sigmoid selu leaky_relu elu celu softplus hardtanh hardshrink softshrink
threshold prelu glu logit nan_to_num isnan isinf isfinite logical_not bitwise_not
clamp clamp.Tensor clamp_min clamp_max clamp_min.Tensor clamp_max.Tensor
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
div.Tensor_mode div.Scalar_mode floor_divide floor_divide.Scalar remainder.Tensor remainder.Scalar fmod.Tensor
pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar atan2 maximum minimum max.other min.other
lerp.Tensor lerp.Scalar addcmul addcdiv heaviside hypot logaddexp sinc xlogy.Tensor deg2rad rad2deg
eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor ge.Scalar
logical_and logical_or logical_xor bitwise_and.Tensor bitwise_and.Scalar bitwise_or.Tensor bitwise_xor.Tensor
__and__.Tensor __or__.Tensor __xor__.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor
where.self where.ScalarSelf where.ScalarOther where.Scalar masked_fill.Scalar masked_fill.Tensor
threshold_backward gelu_backward silu_backward hardtanh_backward hardswish_backward leaky_relu_backward elu_backward
tanh_backward sigmoid_backward mse_loss_backward
clone _to_copy cat stack hstack vstack repeat repeat_interleave.self_int tile roll flip rot90 tril triu
constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
pixel_shuffle pixel_unshuffle channel_shuffle embedding index_select gather index.Tensor take_along_dim diag_embed
select_scatter slice_scatter scatter.src scatter.value scatter_add index_put index_add
zeros_like ones_like full_like new_zeros new_ones new_full zeros ones full copy fill.Scalar fill.Tensor zero
"""

_VIEW = """
slice.Tensor select.int narrow view reshape view_as reshape_as flatten.using_ints unflatten.int permute transpose.int t
numpy_T mT movedim.int expand expand_as broadcast_to squeeze squeeze.dim squeeze.dims unsqueeze unbind.int
split.Tensor split.sizes split_with_sizes chunk tensor_split.sections diagonal unfold
contiguous detach alias positive to.dtype to.other type_as
"""


def _rows(names: str, kind: OpKind) -> dict[str, OpSupport]:
    return {f"aten::{name}": OpSupport(kind) for name in names.split()}


OPS: Mapping[str, OpSupport] = {
    **_rows(_COMPUTE, "compute"),
    **_rows(_CHEAP, "cheap"),
    **_rows(_VIEW, "view"),
    "aten::dropout": OpSupport("view", {"train": False}),
    "aten::batch_norm": OpSupport("compute", {"training": False}),
    "aten::instance_norm": OpSupport("compute", {"running_mean": None}),
    "aten::scaled_dot_product_attention": OpSupport("compute", {"dropout_p": 0.0}),
    "aten::scatter_reduce.two": OpSupport("cheap", {"reduce": "sum", "include_self": True}),
    "aten::cross_entropy_loss": OpSupport("compute", {"label_smoothing": 0.0}),
    # Programs contain their results, which the importer knows from the recorded run.
    **_rows("size size.int dim numel", "shape"),
    **_rows("Int.Tensor Float.Tensor", "item"),
    "prim::NumToTensor.Scalar": OpSupport("shape"),
}
