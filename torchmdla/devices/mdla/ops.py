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
from torchmdla.devices.quantisation import QuantisedPattern, QuantisedType, quantised_patterns_of
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

_PRODUCTS = """
conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding
conv_transpose1d conv_transpose2d.input conv_transpose3d.input linear
"""

# Operators that round their results, and operators whose results are numbers of their arguments.
_ROUNDING = """
matmul avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mean.dim
upsample_bilinear2d.vec batch_norm leaky_relu tanh sigmoid softmax.int
add.Tensor sub.Tensor mul.Tensor add.Scalar sub.Scalar mul.Scalar
"""
_SELECTING = """
relu relu6 hardtanh max_pool1d max_pool2d max_pool3d upsample_nearest1d.vec upsample_nearest2d.vec cat constant_pad_nd
slice.Tensor select.int view permute transpose.int t squeeze.dim squeeze.dims unsqueeze clone
"""


def quantised_patterns(precision: str, headroom: int | None) -> list[QuantisedPattern]:
    """Return the fixed-point formats of a precision, which the device applies by itself to programs in float.

    ``headroom`` is the option; None is the emulator's default.
    """
    calibrated = QuantisedType(16, fraction="calibrated", headroom=1 if headroom is None else headroom)
    formats = {
        "fixed16": (QuantisedType(16, fraction=8), QuantisedType(16, fraction=8)),
        "fixed8": (QuantisedType(8, fraction=4), QuantisedType(8, fraction="calibrated")),
        "variable": (calibrated, QuantisedType(16, fraction="calibrated")),
    }
    if precision not in formats:
        return []
    values, weights = formats[precision]
    # Accumulators hold the bias with the fractions of both factors.
    bias = QuantisedType(32)
    return [
        *quantised_patterns_of(_PRODUCTS, activations=values, results=values, weights=weights, bias=bias),
        *quantised_patterns_of(_ROUNDING, activations=values, results=values),
        *quantised_patterns_of(_SELECTING, activations=values, shares_scale=True),
    ]
