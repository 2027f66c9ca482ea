"""Operators that the mdla device supports: those of convolutional and recurrent networks.

The following uses are refused, so that their group runs in PyTorch's interpreter:

- adaptive pooling whose sizes do not divide the input's sizes
- averages over axes other than all the spatial ones
- average pooling that counts padding and has windows cut short by ``ceil_mode``
- numbers known only at run time
- tensors without elements as inputs or results
"""

from __future__ import annotations

from collections.abc import Mapping

from torchmdla.devices.device import OpSupport
from torchmdla.devices.shape_ops import SHAPE_OPS, entries

_COMPUTE = """
conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding convolution _convolution _convolution.deprecated
_convolution_mode conv_transpose1d conv_transpose2d.input conv_transpose3d.input
linear addmm mm matmul
max_pool1d max_pool2d max_pool3d avg_pool1d
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d
upsample_nearest1d upsample_nearest2d upsample_nearest1d.vec upsample_nearest2d.vec
upsample_bilinear2d upsample_bilinear2d.vec
"""

_ELEMENTWISE = """
relu leaky_relu hardtanh relu6 clamp clamp_min clamp_max tanh sigmoid mul.Tensor mul.Scalar
"""

_MOVING = "cat concat constant_pad_nd zeros"

_VIEW = """
slice.Tensor select.int narrow view reshape flatten.using_ints unflatten.int permute transpose.int t
squeeze squeeze.dim squeeze.dims unsqueeze unbind.int split split.Tensor split.sizes split_with_sizes chunk
contiguous detach alias
"""

# Operators that the device supports only with these arguments.
_CONDITIONAL: Mapping[str, OpSupport] = {
    "aten::dropout": OpSupport("view", {"train": False}),
    "aten::feature_dropout": OpSupport("view", {"train": False}),
    "aten::batch_norm": OpSupport("compute", {"training": False}),
    "aten::lstm.input": OpSupport("compute", {"train": False}),
    "aten::avg_pool2d": OpSupport("compute", {"divisor_override": None}),
    "aten::avg_pool3d": OpSupport("compute", {"divisor_override": None}),
    "aten::softmax.int": OpSupport("compute", {"dtype": None}),
    "aten::_softmax": OpSupport("compute", {"half_to_float": False}),
    "aten::mean.dim": OpSupport("compute", {"dtype": None}),
    "aten::pad": OpSupport("cheap", {"mode": "constant"}),
    **{
        f"aten::{name}.{overload}": OpSupport("cheap", {"alpha": 1})
        for name in ("add", "sub")
        for overload in ("Tensor", "Scalar")
    },
}

OPS: Mapping[str, OpSupport] = {
    **entries("aten", _COMPUTE, "compute"),
    **entries("aten", _ELEMENTWISE, "cheap"),
    **entries("aten", _MOVING, "cheap"),
    **entries("aten", _VIEW, "view"),
    **entries("prim", "ConstantChunk", "view"),
    **SHAPE_OPS,
    **_CONDITIONAL,
}
