"""Operators on quantised tensors, in terms of operators on the floats that these stand for.

A quantised tensor is its integers in a program, and what they stand for is in its type. PyTorch's kernels compute most
results as the floats would be computed, and round once; so does this. Sums of products of integers are exact in either,
what is added to them is not: a result may be the next integer where rounding ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchmdla.errors import CompileError
from torchmdla.importer.decompositions.quantisation import dequantize, quantize
from torchmdla.importer.emitter import Value
from torchmdla.importer.op_call import OpCall
from torchmdla.importer.operands import Operand
from torchmdla.importer.packed_weights import Geometry, PackedWeights
from torchmdla.importer.schemas import call_in_order, overload_of
from torchmdla.importer.trace import leaves, map_structure
from torchmdla.importer.types import TensorMeta

# What integers are kept within: those of quint8 and qint8.
_RANGES = {torch.uint8: (0, 255), torch.int8: (-128, 127)}


def in_floats(call: OpCall) -> tuple[Callable[..., object], Sequence[Operand]] | None:
    """What a call computes, if a tensor is quantised: a function of integers and numbers, and its operands.

    Raises:
        CompileError: not even the scales are known before the program runs.
    """
    metas: Sequence[Any] = list(leaves(call.metas))
    quantisations = _quantisations(call)
    if not quantisations and not any(isinstance(operand, PackedWeights) for operand in call.operands):
        return None
    if call.has_open_float or (call.name in _WITH_TENSORS and any(isinstance(o, Value) for o in call.operands[1:])):
        raise CompileError("its scale is known only at run time", scope="place")
    numbers = [scale for scale, _ in quantisations] + [one for one in call.operands if isinstance(one, float)]
    if not all(abs(number) <= torch.finfo(torch.float32).max for number in numbers):
        raise CompileError("of quantised tensors, numbers that float32 does not hold are not supported", scope="place")
    function = _function(call)
    moves = call.schema.name in _MOVING
    kind = _without_scale if _has_one_scale(call) else _quantisation
    kinds = map_structure(kind, list(call.operands))

    def compute(*given: Any) -> object:
        tensors = given if moves else _paired(_widened, given, kinds)
        results = function(*tensors)
        made = results if isinstance(results, tuple | list) else (results,)
        return list(made) if moves else [_narrowed(r, m, kind(m)) for r, m in zip(made, metas, strict=True)]

    return compute, [map_structure(_integers, operand) for operand in call.operands]


def marked(results: Sequence[Any], metas: Sequence[Any]) -> list[Operand]:
    """Results with their types as eager has them: what their integers stand for, and strides, which views look at."""
    return [
        marked(result, meta) if isinstance(meta, list | tuple) else replace(result, meta=meta)
        for result, meta in zip(results, metas, strict=True)
    ]


def _quantisation(operand: Any) -> tuple[float, int] | None:
    meta = operand.meta if isinstance(operand, Value) else operand
    return meta.quantisation if isinstance(meta, TensorMeta) else None


def _quantisations(call: OpCall) -> list[tuple[float, int]]:
    """Return the scales and zero points of a call's operands and results."""
    found = map(_quantisation, (*leaves(call.operands), *leaves(call.metas)))
    return [quantisation for quantisation in found if quantisation is not None]


def _paired(function: Callable[[Any, Any], Any], given: Sequence[Any], kinds: Any) -> list[Any]:
    """``function`` of each value and what it stands for, in nested lists."""
    return [
        _paired(function, value, kind)
        if isinstance(kind, tuple) and isinstance(value, tuple | list)
        else function(value, kind)
        for value, kind in zip(given, kinds, strict=True)
    ]


def _widened(value: Any, quantisation: tuple[float, int] | None) -> Any:
    return value if quantisation is None else dequantize(value, *quantisation, 0, 0, value.dtype)


def _has_one_scale(call: OpCall) -> bool:
    """Whether a call gives multiples of its results for multiples of its tensors, all of one scale: it may compute with
    differences of integers, exactly."""
    return call.schema.name in _HOMOGENEOUS and len(set(_quantisations(call))) == 1


def _without_scale(operand: Any) -> tuple[float, int] | None:
    quantisation = _quantisation(operand)
    return quantisation and (1.0, quantisation[1])


def _narrowed(value: Tensor, meta: Any, quantisation: tuple[float, int] | None) -> Tensor:
    if quantisation is None:
        return value
    if meta.dtype not in _RANGES:
        raise CompileError(f"a quantised result of {meta.dtype} is not supported", scope="place")
    return quantize(value, *quantisation, *_RANGES[meta.dtype], meta.dtype)


def _integers(operand: Any) -> Operand:
    """An operand without what its integers stand for; packed weights as a tuple, of which values can be seen."""
    if isinstance(operand, PackedWeights):
        return operand.integers, operand.scales, operand.zero_points, operand.bias, operand.geometry
    if _quantisation(operand) is None:
        return operand
    return replace(operand, meta=replace(operand.meta, quantisation=None))


# What operators compute of floats. Of those that are not here it is what they compute of floats themselves.


def _function(call: OpCall) -> Callable[..., object]:
    known = _FUNCTIONS.get(call.schema.name)
    if known is not None:
        return known
    if call.schema.name.startswith("quantized::"):
        raise CompileError("of quantised tensors it is not supported", scope="place")
    return lambda *given: call_in_order(overload_of(call.name), call.schema, given)


# Operators whose scale is a tensor.
_WITH_TENSORS = ("aten::quantize_per_tensor.tensor_qparams",)

# Operators that only move elements, or choose among them.
_MOVING = frozenset(
    f"aten::{name}"
    for name in [
        "alias",
        "chunk",
        "clone",
        "contiguous",
        "detach",
        "dropout",
        "expand",
        "flatten",
        "narrow",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
    ]
) | {"quantized::dropout"}

# Operators that give a positive multiple of their results for that of their tensors.
_HOMOGENEOUS = frozenset(
    f"aten::{name}"
    for name in [
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "cat",
        "concat",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "mean",
        "relu",
        "upsample_bilinear2d",
        "upsample_nearest1d",
        "upsample_nearest2d",
    ]
)

_Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Geometry | None]


def _weight(weights: _Weights) -> Tensor:
    integers, scales, zero_points, _, _ = weights
    sizes = (-1, *(1 for _ in integers.shape[1:]))
    differences = integers if zero_points is None else integers - zero_points.view(sizes)
    return differences.float() * scales.view(sizes)


def _convolution(x: Tensor, weights: _Weights, *_: object) -> Tensor:
    geometry = weights[4]
    assert geometry is not None
    spatial = x.dim() - 2
    # One-dimensional convolutions are packed as two-dimensional ones of one row.
    stride, padding, dilation = (own[-spatial:] for own in (geometry.stride, geometry.padding, geometry.dilation))
    weight = _weight(weights)
    weight = weight.squeeze(2) if weight.dim() > x.dim() else weight
    given = (x, weight, weights[3], stride, padding, dilation, False, [0] * spatial, geometry.groups)
    return torch.ops.aten.convolution(*given)  # type: ignore[no-any-return]


def _linear(x: Tensor, weights: _Weights, *_: object) -> Tensor:
    return functional.linear(x, _weight(weights), weights[3])


def _linear_dynamic(x: Tensor, weights: _Weights, reduce_range: bool = False) -> Tensor:
    """With activations that are quantised as a whole, as is best for their least and their largest value."""
    most = 127 if reduce_range else 255
    scale, zero_point = _chosen(x, most)
    integers = quantize(x, scale, zero_point, 0, most, torch.uint8)
    return _linear(dequantize(integers, scale, zero_point, 0, most, torch.uint8), weights)


def _chosen(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Scale and zero point, as ``ChooseQuantizationParams`` chooses them
    (aten/src/ATen/native/quantized/cpu/QuantUtils.h)."""
    lowest, highest = torch.clamp(x.amin(), max=0.0), torch.clamp(x.amax(), min=0.0)
    scale = (highest - lowest) / most
    scale = torch.where((scale == 0) | torch.isinf(1.0 / scale), 0.1, scale)
    from_lowest, from_highest = -(lowest / scale), most - highest / scale
    is_lowest_closer = torch.abs(lowest / scale) < most + torch.abs(highest / scale)
    chosen = torch.where(is_lowest_closer, from_lowest, from_highest)
    return scale, torch.clamp(torch.round(chosen), 0, most).to(torch.int32)


def _rectified(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: torch.relu(function(*given))


def _sum(left: Any, right: Any, *_: object) -> Any:
    return left + right


def _product(left: Any, right: Any, *_: object) -> Any:
    return left * right


def _joined(tensors: Sequence[Tensor], dim: int, *_: object) -> Tensor:
    return torch.cat(list(tensors), dim)


def _first(count: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of the first operands alone: those behind them say what the result stands for."""
    return lambda *given: function(*given[:count])


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, epsilon: float, *_: object
) -> Tensor:
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, epsilon)


def _elu(x: Tensor, scale: float, zero_point: int, *numbers: float) -> Tensor:
    return torch.ops.aten.elu(x, *numbers)  # type: ignore[no-any-return]


def _with_rectified(rows: Mapping[str, Callable[..., Tensor]]) -> dict[str, Callable[..., Tensor]]:
    """Rows of operators, and of those that are followed by a rectifier."""
    rectified = {f"quantized::{name}_relu": _rectified(function) for name, function in rows.items()}
    return {**{f"quantized::{name}": function for name, function in rows.items()}, **rectified}


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "aten::quantize_per_tensor": lambda x, *_: x,
    "aten::dequantize": lambda x: x,
    **_with_rectified(
        {
            **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
            "linear": _linear,
            "add": _sum,
            "mul": _product,
            "add_scalar": _sum,
            "mul_scalar": _product,
            "cat": _joined,
            "batch_norm": _batch_norm,
            "batch_norm1d": _batch_norm,
            "batch_norm2d": _batch_norm,
            "batch_norm3d": _batch_norm,
        }
    ),
    "quantized::linear_dynamic": _linear_dynamic,
    "quantized::linear_relu_dynamic": _rectified(_linear_dynamic),
    "quantized::matmul": _first(2, torch.matmul),
    "quantized::hardswish": _first(1, functional.hardswish),
    "quantized::sigmoid": _first(1, torch.sigmoid),
    "quantized::relu6": _first(1, functional.relu6),
    "quantized::leaky_relu": _first(2, functional.leaky_relu),
    "quantized::softmax": _first(2, torch.softmax),
    "quantized::layer_norm": _first(5, functional.layer_norm),
    "quantized::elu": _elu,
    "quantized::dropout": lambda x, *_: x,
}
