"""Operators that the cuda device supports: those that upstream lowers to linalg without checks of indices."""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.devices import OpKind, OpSupport

_COMPUTE = """
sum sum.dim_IntList mean mean.dim var.correction var_mean.correction amax amin
softmax.int log_softmax.int _softmax _log_softmax layer_norm native_layer_norm rms_norm group_norm native_group_norm
mm matmul bmm mv dot addmm baddbmm linear
conv1d conv2d conv3d conv2d.padding convolution _convolution
max_pool2d avg_pool2d adaptive_avg_pool2d max_pool2d_with_indices
mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits
max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward
_softmax_backward_data _log_softmax_backward_data convolution_backward
"""

_CHEAP = """
abs neg relu relu6 sigmoid tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square
sin cos tan erf floor ceil round trunc frac silu mish gelu hardswish hardsigmoid log_sigmoid leaky_relu elu softplus
hardtanh threshold logical_not maximum minimum clamp clamp_min clamp_max
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
pow.Tensor_Scalar lerp.Scalar addcmul addcdiv
eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor ge.Scalar
logical_and logical_or logical_xor where.self where.ScalarSelf where.ScalarOther masked_fill.Scalar
threshold_backward gelu_backward silu_backward hardtanh_backward hardswish_backward leaky_relu_backward elu_backward
tanh_backward sigmoid_backward mse_loss_backward
clone _to_copy cat stack constant_pad_nd pad
zeros_like ones_like full_like zeros ones full
"""

_VIEW = """
slice.Tensor select.int narrow view reshape flatten.using_ints unflatten.int permute transpose.int t mT
expand expand_as squeeze squeeze.dim squeeze.dims unsqueeze split.Tensor split.sizes split_with_sizes chunk
contiguous detach alias to.dtype
"""


def _rows(names: str, kind: OpKind) -> dict[str, OpSupport]:
    return {f"aten::{name}": OpSupport(kind) for name in names.split()}


OPS: Mapping[str, OpSupport] = {
    **_rows(_COMPUTE, "compute"),
    **_rows(_CHEAP, "cheap"),
    **_rows(_VIEW, "view"),
    "aten::dropout": OpSupport("view", {"train": False}),
    "aten::batch_norm": OpSupport("compute", {"training": False}),
    "aten::scaled_dot_product_attention": OpSupport("compute", {"dropout_p": 0.0}),
    # Programs contain their results, which the importer knows from the recorded run.
    **_rows("size size.int dim numel", "shape"),
    **_rows("Int.Tensor Float.Tensor", "item"),
    "prim::NumToTensor.Scalar": OpSupport("shape"),
}
