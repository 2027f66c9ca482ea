"""Table of writers that convert an op of the Torch dialect to ONNX nodes, by op name.

A writer receives the op and its operands by position, in the order of ATen's schema. Tensors are values of the graph.
All other operands are Python values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchmdla.devices.levels.onnx.graph import OnnxGraph, Tensor, Value
from torchmdla.devices.levels.onnx.weights import BatchNorm, Weight
from torchmdla.errors import CompileError


@dataclass(frozen=True)
class Op:
    """Context of an op for its writer: the graph, and the shape and uses of the result."""

    graph: OnnxGraph
    shape: tuple[int, ...]
    used_once: bool

    def node(self, kind: str, *operands: Value | str | None, **attributes: Any) -> Tensor:
        """Add and return the node that computes the op's result."""
        return self.graph.node(kind, operands, self.shape, self.used_once, **attributes)


Writer = Callable[..., Value]


def _broadcast_to_axes(numbers: Sequence[int], count: int) -> list[int]:
    return list(numbers) * count if len(numbers) == 1 else list(numbers)


# Convolutions and products


def _convolution(
    op: Op,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: object,
) -> Value:
    rank = len(op.shape) - 2
    if isinstance(bias, Tensor):
        unbiased = replace(op, used_once=True)
        convolved = _convolution(
            unbiased, x, weight, None, stride, padding, dilation, transposed, output_padding, groups
        )
        return op.node("Add", convolved, _reshape_to_channels(op, bias))
    if isinstance(weight, Tensor):
        if transposed or groups != 1:
            kind = "transposed" if transposed else "grouped"
            raise CompileError(
                f"a {kind} convolution with a weight that depends on inputs is not supported", scope="place"
            )
        sizes = (_broadcast_to_axes(numbers, rank) for numbers in (stride, padding, dilation))
        convolved = _convolution_as_product(op, x, weight, *sizes)
        return convolved if bias is None else op.node("Add", convolved, _reshape_to_channels(op, bias))
    attributes: dict[str, Any] = {
        "kernel_shape": list(weight.shape[2:]),
        "strides": _broadcast_to_axes(stride, rank),
        "pads": _broadcast_to_axes(padding, rank) * 2,
        "dilations": _broadcast_to_axes(dilation, rank),
        "group": groups,
    }
    if transposed:
        attributes["output_padding"] = _broadcast_to_axes(output_padding, rank)
    result = op.node("ConvTranspose" if transposed else "Conv", x, weight, bias, **attributes)
    if transposed and groups != 1:
        return result  # The output channels are spread over two axes of the weight.
    return op.graph.anchor(result, weight, bias, axis=1 if transposed else 0)


def _reshape_to_channels(op: Op, values: Value) -> Value:
    """Reshape one number per channel so that it broadcasts to the op's result."""
    return _reshape_value(op.graph, values, (values.shape[0], *[1] * (len(op.shape) - 2)))


def _convolution_as_product(
    op: Op, x: Value, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Value:
    """Write a convolution as a product of the weight and the unfolded input (im2col).

    The input slices for the kernel elements are concatenated along the channels. ONNX compilers of accelerators
    support only constant weights of convolutions.
    """
    graph, kernel, new = op.graph, weight.shape[2:], op.shape[2:]
    images, channels = x.shape[:2]
    if any(padding):
        shape = (images, channels, *(size + 2 * pad for size, pad in zip(x.shape[2:], padding, strict=True)))
        borders = graph.integers([0, 0, *padding] * 2)
        x = graph.node("Pad", [x, borders, Weight.of_numbers([0.0], ())], shape, mode="constant")
    axes, steps = graph.integers(range(2, len(op.shape))), graph.integers(stride)
    slices = []
    for place in itertools.product(*map(range, kernel)):
        first = [index * step for index, step in zip(place, dilation, strict=True)]
        last = [start + (size - 1) * step + 1 for start, size, step in zip(first, new, stride, strict=True)]
        bounds = [graph.integers(first), graph.integers(last)]
        slices.append(graph.node("Slice", [x, *bounds, axes, steps], (images, channels, *new)))
    length = channels * len(slices)
    columns = slices[0] if len(slices) == 1 else graph.node("Concat", slices, (images, length, *new), axis=1)
    flat = _reshape_value(graph, columns, (images, length, math.prod(new)))
    transposed = graph.node(
        "Transpose", [weight], (weight.shape[0], *kernel, channels), perm=[0, *range(2, len(op.shape)), 1]
    )
    rows = _reshape_value(graph, transposed, (weight.shape[0], length))
    product = graph.node("MatMul", [rows, flat], (images, weight.shape[0], math.prod(new)))
    return _reshape_value(graph, product, op.shape, op.used_once)


def _linear(op: Op, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """Write a linear layer as one product, with all leading dimensions flattened into rows."""
    rows = (math.prod(x.shape[:-1]), x.shape[-1])
    flat = op if len(op.shape) == 2 else replace(op, shape=(rows[0], weight.shape[0]))
    result = flat.node("Gemm", _reshape_value(op.graph, x, rows), weight, bias, transB=1)
    return _reshape_value(op.graph, op.graph.anchor(result, weight, bias, axis=0), op.shape, op.used_once)


def _mm(op: Op, left: Value, right: Value) -> Value:
    if not isinstance(right, Weight):
        return op.node("MatMul", left, right)
    return _linear(op, left, right.permute((1, 0)))


def _addmm(op: Op, bias: Value, left: Value, right: Value, beta: float, alpha: float) -> Value:
    if isinstance(right, Tensor) and not alpha == beta == 1:
        product = _scale(op, _mm(replace(op, used_once=True), left, right), alpha)
        return op.node("Add", product, _scale(op, bias, beta))
    per_column = bias.shape in (right.shape[1:], (1, *right.shape[1:]))
    if isinstance(right, Weight) and alpha == beta == 1 and per_column:
        return _linear(op, left, right.permute((1, 0)), bias)
    return op.node("Gemm", left, right, bias, alpha=float(alpha), beta=float(beta))


def _scale(op: Op, x: Value, factor: float) -> Value:
    """Return ``x · factor``."""
    scaled = _arithmetic("Mul", "product")
    return x if factor == 1 else scaled(replace(op, shape=x.shape, used_once=True), x, float(factor))


# Pooling


def _ends(
    op: Op, x: Value, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int] | None = None
) -> list[int]:
    """Return how far the last windows extend beyond the input, at least by the padding.

    With ``ceil_mode``, they may extend further.
    """
    rank = len(kernel)
    dilation = dilation or [1] * rank
    lengths, new = x.shape[-rank:], op.shape[-rank:]
    reach = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(new, stride, dilation, kernel, strict=True)]
    return [max(p, r - p - n) for p, r, n in zip(padding, reach, lengths, strict=True)]


def _max_pool(rank: int) -> Writer:
    def write(
        op: Op,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> Value:
        sizes = [_broadcast_to_axes(numbers, rank) for numbers in (kernel, stride or kernel, padding, dilation)]
        ends = _ends(op, x, *sizes)
        return op.node(
            "MaxPool", x, kernel_shape=sizes[0], strides=sizes[1], pads=[*sizes[2], *ends], dilations=sizes[3]
        )

    return write


def _average_pool(rank: int) -> Writer:
    def write(
        op: Op,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None = None,
    ) -> Value:
        sizes = [_broadcast_to_axes(numbers, rank) for numbers in (kernel, stride or kernel, padding)]
        ends = _ends(op, x, *sizes)
        if divisor is not None:
            raise CompileError("an average pool with a divisor of its own is not supported")
        if ends != sizes[2] and count_include_pad and any(sizes[2]):
            reason = "an average pool that counts padding beside windows cut short is not supported"
            raise CompileError(reason, scope="sizes")
        counted = count_include_pad and ends == sizes[2]
        pads = [*sizes[2], *ends]
        return op.node(
            "AveragePool", x, kernel_shape=sizes[0], strides=sizes[1], pads=pads, count_include_pad=int(counted)
        )

    return write


def _adaptive_average_pool(op: Op, x: Value, sizes: Sequence[int]) -> Value:
    new = _broadcast_to_axes(sizes, len(x.shape) - 2)
    lengths = x.shape[2:]
    if all(size == 1 for size in new):
        return op.node("GlobalAveragePool", x)
    if any(length % size for length, size in zip(lengths, new, strict=True)):
        raise CompileError(f"adaptive pooling from sizes {list(lengths)} to {new} is not supported", scope="sizes")
    kernel = [length // size for length, size in zip(lengths, new, strict=True)]
    return op.node("AveragePool", x, kernel_shape=kernel, strides=kernel)


def _mean(op: Op, x: Value, axes: Sequence[int] | None, keepdim: bool, dtype: object) -> Value:
    rank = len(x.shape)
    spatial = list(range(2, rank))
    if not spatial or sorted(axis % rank for axis in axes or range(rank)) != spatial:
        raise CompileError("a mean over other axes than all the spatial ones is not supported")
    pooled = op.graph.node("GlobalAveragePool", [x], (*x.shape[:2], *[1] * len(spatial)), op.used_once)
    return _reshape_value(op.graph, pooled, op.shape, op.used_once)


# Elementwise


def _arithmetic(kind: str, operation: str) -> Writer:
    """Return a writer of an operation such as ``x + y``.

    A third operand (``alpha``) multiplies ``y``, which may be a number.
    """

    def write(op: Op, x: Value, y: Value | float, alpha: float = 1) -> Value:
        other = y if isinstance(y, Weight | Tensor) else Weight.of_numbers([float(y)], ())
        other = _scale(op, other, alpha)
        if isinstance(x, Weight) and isinstance(other, Weight):
            return x.combine(operation, other, op.shape)
        return op.node(kind, x, other)

    return write


def _clip(op: Op, x: Value, smallest: float | None = None, largest: float | None = None) -> Value:
    limits = [None if limit is None else Weight.of_numbers([float(limit)], ()) for limit in (smallest, largest)]
    return op.node("Clip", x, *limits)


def _batch_norm(
    op: Op,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Value:
    """Fold the norm into the weights of the preceding node, if the norm is the only use of that node.

    Otherwise write nodes for the norm.
    """
    if training:
        raise CompileError("a batch norm in training is not supported")
    parameters = (weight, bias, mean, variance)
    if isinstance(x, Tensor) and not any(isinstance(value, Tensor) for value in parameters):
        assert isinstance(mean, Weight) and isinstance(variance, Weight)
        norm = BatchNorm(weight, bias, mean, variance, eps)  # type: ignore[arg-type]
        folded = op.graph.fold(x, norm)
        if folded is not None:
            return replace(folded, used_once=op.used_once)
    if isinstance(mean, Tensor) or isinstance(variance, Tensor):
        raise CompileError("a batch norm by statistics that depend on inputs is not supported", scope="place")
    if isinstance(weight, Tensor) or isinstance(bias, Tensor):
        inner = replace(op, used_once=True)
        normalised = _batch_norm(inner, x, None, None, mean, variance, training, momentum, eps, cudnn)
        if weight is not None:
            normalised = inner.node("Mul", normalised, _reshape_to_channels(op, weight))
        return normalised if bias is None else op.node("Add", normalised, _reshape_to_channels(op, bias))
    channels = mean.shape
    affine = [weight or Weight.full(1.0, channels), bias or Weight.full(0.0, channels)]
    return op.node("BatchNormalization", x, *affine, mean, variance, epsilon=eps)


# Views and moves


def _reshape_value(graph: OnnxGraph, x: Value, shape: Sequence[int], used_once: bool = True) -> Value:
    if x.shape == tuple(shape):
        return x
    if isinstance(x, Weight):
        return x.reshape(shape)
    return graph.node("Reshape", [x, graph.integers(shape)], shape, used_once)


def _permute(op: Op, x: Value, order: Sequence[int]) -> Value:
    axes = [axis % len(x.shape) for axis in order]
    return x.permute(axes) if isinstance(x, Weight) else op.node("Transpose", x, perm=axes)


def _transpose(op: Op, x: Value, dim0: int = 0, dim1: int = 1) -> Value:
    axes = list(range(len(x.shape)))
    if len(axes) < 2:
        return x
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return _permute(op, x, axes)


def _expand(op: Op, x: Value, *_: object) -> Value:
    if x.shape == op.shape:
        return x
    if isinstance(x, Weight):
        return x.expand(op.shape)
    raise CompileError("an expansion of what depends on inputs is not supported", scope="place")


def _slice(op: Op, x: Value, dim: int, start: int | None, end: int | None, step: int) -> Value:
    axis = dim % len(x.shape)
    if x.shape == op.shape:
        return x
    first, last, _ = slice(start, end, step).indices(x.shape[axis])
    if isinstance(x, Weight):
        return x.slice(axis, first, last, step, op.shape)
    bounds = [op.graph.integers([number]) for number in (first, last, axis, step)]
    return op.node("Slice", x, *bounds)


def _select(op: Op, x: Value, dim: int, index: int) -> Value:
    axis = dim % len(x.shape)
    place = index % x.shape[axis]
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    part = _slice(replace(op, shape=shape, used_once=True), x, axis, place, place + 1, 1)
    return _reshape_value(op.graph, part, op.shape, op.used_once)


def _concatenate(op: Op, values: Sequence[Value], dim: int) -> Value:
    if len(values) == 1:
        return values[0]
    return op.node("Concat", *values, axis=dim % len(op.shape))


def _pad(op: Op, x: Value, sizes: Sequence[int], number: float) -> Value:
    """Pad with a constant. ``sizes`` are pairs (before, after), the last dimension's pair first."""
    pairs = [(sizes[k], sizes[k + 1]) for k in range(0, len(sizes), 2)]
    by_axis = [(0, 0)] * (len(x.shape) - len(pairs)) + pairs[::-1]
    before, after = zip(*by_axis, strict=True)
    if min(*before, *after) < 0:
        raise CompileError("a padding that crops is not supported")
    value = Weight.of_numbers([float(number)], ())
    return op.node("Pad", x, op.graph.integers([*before, *after]), value, mode="constant")


def _resize(op: Op, x: Value, scales: Sequence[float | None], **attributes: Any) -> Value:
    """Resize to the op's shape. ``scales`` are the user's scale factors, which determine the sample positions."""
    ratios = [scale if scale else new / old for scale, new, old in zip(scales, op.shape[2:], x.shape[2:], strict=True)]
    single = [float(np.float32(ratio)) for ratio in ratios]
    if [math.floor(old * scale) for old, scale in zip(x.shape[2:], single, strict=True)] == list(op.shape[2:]):
        return op.node("Resize", x, None, Weight.of_numbers([1.0, 1.0, *single], (len(op.shape),)), **attributes)
    # Use sizes, because the rounded ratio would lose an element.
    return op.node("Resize", x, None, None, op.graph.integers(op.shape), **attributes)


_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _nearest_vec(op: Op, x: Value, sizes: object, scales: Sequence[float] | None) -> Value:
    return _resize(op, x, scales or [None] * (len(op.shape) - 2), **_NEAREST)


def _bilinear(op: Op, x: Value, sizes: object, align: bool, *scales: float | None) -> Value:
    mode = "align_corners" if align else "half_pixel"
    factors = [None] * len(scales) if align else scales
    return _resize(op, x, factors, mode="linear", coordinate_transformation_mode=mode)


def _bilinear_vec(op: Op, x: Value, sizes: object, align: bool, scales: Sequence[float] | None) -> Value:
    factors: Sequence[float | None] = scales or [None] * (len(op.shape) - 2)
    return _bilinear(op, x, sizes, align, *factors)


WRITERS: Mapping[str, Writer] = {
    **dict.fromkeys(["convolution", "_convolution", "_convolution.deprecated"], _convolution),
    "linear": _linear,
    "mm": _mm,
    "bmm": lambda op, left, right: op.node("MatMul", left, right),
    "addmm": _addmm,
    **{f"max_pool{rank}d": _max_pool(rank) for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": _average_pool(rank) for rank in (1, 2, 3)},
    **{f"adaptive_avg_pool{rank}d": _adaptive_average_pool for rank in (1, 2, 3)},
    "_adaptive_avg_pool2d": _adaptive_average_pool,
    "mean.dim": _mean,
    **dict.fromkeys(["add.Tensor", "add.Scalar"], _arithmetic("Add", "sum")),
    **dict.fromkeys(["sub.Tensor", "sub.Scalar"], _arithmetic("Sub", "difference")),
    **dict.fromkeys(["mul.Tensor", "mul.Scalar"], _arithmetic("Mul", "product")),
    "relu": lambda op, x: op.node("Relu", x),
    "tanh": lambda op, x: op.node("Tanh", x),
    "sigmoid": lambda op, x: op.node("Sigmoid", x),
    "leaky_relu": lambda op, x, slope: op.node("LeakyRelu", x, alpha=float(slope)),
    "relu6": lambda op, x: _clip(op, x, 0.0, 6.0),
    **dict.fromkeys(["hardtanh", "clamp", "clamp_min"], _clip),
    "clamp_max": lambda op, x, largest: _clip(op, x, None, largest),
    **dict.fromkeys(["softmax.int", "_softmax"], lambda op, x, dim, *_: op.node("Softmax", x, axis=dim % len(x.shape))),
    "batch_norm": _batch_norm,
    **dict.fromkeys(
        ["view", "flatten.using_ints", "unsqueeze", "squeeze.dim"],
        lambda op, x, *_: _reshape_value(op.graph, x, op.shape, op.used_once),
    ),
    "permute": _permute,
    **dict.fromkeys(["transpose.int", "t"], _transpose),
    "expand": _expand,
    "slice.Tensor": _slice,
    "select.int": _select,
    "cat": _concatenate,
    "constant_pad_nd": _pad,
    "zeros": lambda op, *_: Weight.full(0.0, op.shape),
    **dict.fromkeys(
        ["upsample_nearest1d", "upsample_nearest2d"], lambda op, x, sizes, *scales: _resize(op, x, scales, **_NEAREST)
    ),
    **dict.fromkeys(["upsample_nearest1d.vec", "upsample_nearest2d.vec"], _nearest_vec),
    "upsample_bilinear2d": _bilinear,
    "upsample_bilinear2d.vec": _bilinear_vec,
}
