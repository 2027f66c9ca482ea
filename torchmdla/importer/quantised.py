"""Operators on quantised tensors, written with operators on the floats that these represent.

In a program a quantised tensor consists of its integers. Its type holds the scale and the zero point. PyTorch's
kernels compute most results like floats and round once; this code does the same. Sums of products of integers are
exact in both, but the terms added to them are not. A result may be the neighbouring integer where rounding ties.
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
from torchmdla.importer.schemas import aten_names, call_in_order, overload_of
from torchmdla.importer.trace import leaves, map_structure
from torchmdla.importer.types import TensorMeta

# The ranges of integers: those of quint8 and qint8.
_RANGES = {torch.uint8: (0, 255), torch.int8: (-128, 127)}


def decompose_quantised(call: OpCall) -> tuple[Callable[..., object], Sequence[Operand]] | None:
    """Return a call on quantised tensors as a function of integers and numbers, and its operands.

    A call without quantised tensors gives ``None``.

    Raises:
        CompileError: If a scale is known only at run time.
    """
    metas: Sequence[Any] = list(leaves(call.metas))
    quantisations = _quantisations(call)
    if not quantisations and not any(isinstance(operand, PackedWeights) for operand in call.operands):
        return None
    if call.has_runtime_scalar or (call.name in _WITH_TENSORS and any(isinstance(o, Value) for o in call.operands[1:])):
        raise CompileError("its scale is known only at run time", scope="place")
    numbers = [scale for scale, _ in quantisations] + [scalar for scalar in call.operands if isinstance(scalar, float)]
    if not all(abs(number) <= torch.finfo(torch.float32).max for number in numbers):
        raise CompileError("of quantised tensors, numbers that float32 does not hold are not supported", scope="place")
    function = _float_function(call)
    moves = call.schema.name in _MOVING
    kind = _unit_scale_quantisation if _has_one_scale(call) else _quantisation
    kinds = map_structure(kind, list(call.operands))

    def compute(*arguments: Any) -> object:
        tensors = arguments if moves else _map_pairs(_dequantise, arguments, kinds)
        results = function(*tensors)
        result_list = results if isinstance(results, tuple | list) else (results,)
        return (
            list(result_list) if moves else [_quantise(r, m, kind(m)) for r, m in zip(result_list, metas, strict=True)]
        )

    return compute, [map_structure(_strip_quantisation, operand) for operand in call.operands]


def restore_types(results: Sequence[Any], metas: Sequence[Any]) -> list[Operand]:
    """Return results with eager's types, which hold the quantisation, and the strides that views inspect."""
    return [
        restore_types(result, meta) if isinstance(meta, list | tuple) else replace(result, meta=meta)
        for result, meta in zip(results, metas, strict=True)
    ]


def _quantisation(operand: Any) -> tuple[float, int] | None:
    meta = operand.meta if isinstance(operand, Value) else operand
    return meta.quantisation if isinstance(meta, TensorMeta) else None


def _quantisations(call: OpCall) -> list[tuple[float, int]]:
    """Return the scales and zero points of a call's operands and results."""
    quantisations = map(_quantisation, (*leaves(call.operands), *leaves(call.metas)))
    return [quantisation for quantisation in quantisations if quantisation is not None]


def _map_pairs(function: Callable[[Any, Any], Any], values: Sequence[Any], kinds: Any) -> list[Any]:
    """Apply ``function`` to each value and its quantisation, in nested lists."""
    return [
        _map_pairs(function, value, kind)
        if isinstance(kind, tuple) and isinstance(value, tuple | list)
        else function(value, kind)
        for value, kind in zip(values, kinds, strict=True)
    ]


def _dequantise(value: Any, quantisation: tuple[float, int] | None) -> Any:
    return value if quantisation is None else dequantize(value, *quantisation, 0, 0, value.dtype)


def _has_one_scale(call: OpCall) -> bool:
    """Return whether a call is homogeneous and all its tensors have one scale.

    Such a call may compute with differences of integers, exactly.
    """
    return call.schema.name in _HOMOGENEOUS and len(set(_quantisations(call))) == 1


def _unit_scale_quantisation(operand: Any) -> tuple[float, int] | None:
    quantisation = _quantisation(operand)
    return quantisation and (1.0, quantisation[1])


def _quantise(value: Tensor, meta: Any, quantisation: tuple[float, int] | None) -> Tensor:
    if quantisation is None:
        return value
    if meta.dtype not in _RANGES:
        raise CompileError(f"a quantised result of {meta.dtype} is not supported", scope="place")
    return quantize(value, *quantisation, *_RANGES[meta.dtype], meta.dtype)


def _strip_quantisation(operand: Any) -> Operand:
    """Return an operand without its quantisation. Packed weights become a tuple, so that their values are visible."""
    if isinstance(operand, PackedWeights):
        return operand.integers, operand.scales, operand.zero_points, operand.bias, operand.geometry
    if _quantisation(operand) is None:
        return operand
    return replace(operand, meta=replace(operand.meta, quantisation=None))


# Functions of operators on floats. An operator that is not in _FUNCTIONS computes on floats itself.


def _float_function(call: OpCall) -> Callable[..., object]:
    known = _FUNCTIONS.get(call.schema.name)
    if known is not None:
        return known
    if call.schema.name.startswith("quantized::"):
        raise CompileError("of quantised tensors it is not supported", scope="place")
    return lambda *arguments: call_in_order(overload_of(call.name), call.schema, arguments)


# Operators whose scale is a tensor.
_WITH_TENSORS = ("aten::quantize_per_tensor.tensor_qparams",)

# Operators that only move or select elements.
_MOVING = aten_names(
    "alias chunk clone contiguous detach dropout expand flatten narrow permute reshape select slice split "
    "split_with_sizes squeeze t transpose unbind unflatten unsqueeze view view_as"
) | {"quantized::dropout"}

# Operators whose results scale with their tensors by any positive factor.
_HOMOGENEOUS = aten_names(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d cat concat "
    "max_pool1d max_pool2d max_pool3d mean relu upsample_bilinear2d upsample_nearest1d upsample_nearest2d"
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
    # One-dimensional convolutions are packed as two-dimensional ones with one row.
    stride, padding, dilation = (
        numbers[-spatial:] for numbers in (geometry.stride, geometry.padding, geometry.dilation)
    )
    weight = _weight(weights)
    weight = weight.squeeze(2) if weight.dim() > x.dim() else weight
    arguments = (x, weight, weights[3], stride, padding, dilation, False, [0] * spatial, geometry.groups)
    return torch.ops.aten.convolution(*arguments)  # type: ignore[no-any-return]


def _linear(x: Tensor, weights: _Weights, *_: object) -> Tensor:
    return functional.linear(x, _weight(weights), weights[3])


def _linear_dynamic(x: Tensor, weights: _Weights, reduce_range: bool = False) -> Tensor:
    """Compute a linear layer after quantising the activations as a whole, with the best parameters for their range."""
    most = 127 if reduce_range else 255
    scale, zero_point = _choose_parameters(x, most)
    integers = quantize(x, scale, zero_point, 0, most, torch.uint8)
    return _linear(dequantize(integers, scale, zero_point, 0, most, torch.uint8), weights)


def _choose_parameters(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return scale and zero point as ``ChooseQuantizationParams`` chooses them.

    Source: aten/src/ATen/native/quantized/cpu/QuantUtils.h.
    """
    lowest, highest = torch.clamp(x.amin(), max=0.0), torch.clamp(x.amax(), min=0.0)
    scale = (highest - lowest) / most
    scale = torch.where((scale == 0) | torch.isinf(1.0 / scale), 0.1, scale)
    from_lowest, from_highest = -(lowest / scale), most - highest / scale
    is_lowest_closer = torch.abs(lowest / scale) < most + torch.abs(highest / scale)
    chosen = torch.where(is_lowest_closer, from_lowest, from_highest)
    return scale, torch.clamp(torch.round(chosen), 0, most).to(torch.int32)


def _with_relu(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments: torch.relu(function(*arguments))


def _sum(left: Any, right: Any, *_: object) -> Any:
    return left + right


def _product(left: Any, right: Any, *_: object) -> Any:
    return left * right


def _with_first_operands(count: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of the first operands only: the operands after them describe the result's quantisation."""
    return lambda *arguments: function(*arguments[:count])


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, epsilon: float, *_: object
) -> Tensor:
    return functional.batch_norm(x, mean, variance, weight, bias, False, 0.0, epsilon)


def _with_relu_variants(rows: Mapping[str, Callable[..., Tensor]]) -> dict[str, Callable[..., Tensor]]:
    """Return rows of operators, and of their variants that a rectifier follows."""
    rectified = {f"quantized::{name}_relu": _with_relu(function) for name, function in rows.items()}
    return {**{f"quantized::{name}": function for name, function in rows.items()}, **rectified}


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "aten::quantize_per_tensor": lambda x, *_: x,
    "aten::dequantize": lambda x: x,
    **_with_relu_variants(
        {
            **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
            "linear": _linear,
            "add": _sum,
            "mul": _product,
            "add_scalar": _sum,
            "mul_scalar": _product,
            "cat": lambda tensors, dim, *_: torch.cat(list(tensors), dim),
            **dict.fromkeys(("batch_norm", "batch_norm1d", "batch_norm2d", "batch_norm3d"), _batch_norm),
        }
    ),
    "quantized::linear_dynamic": _linear_dynamic,
    "quantized::linear_relu_dynamic": _with_relu(_linear_dynamic),
    "quantized::matmul": _with_first_operands(2, torch.matmul),
    "quantized::hardswish": _with_first_operands(1, functional.hardswish),
    "quantized::sigmoid": _with_first_operands(1, torch.sigmoid),
    "quantized::relu6": _with_first_operands(1, functional.relu6),
    "quantized::leaky_relu": _with_first_operands(2, functional.leaky_relu),
    "quantized::softmax": _with_first_operands(2, torch.softmax),
    "quantized::layer_norm": _with_first_operands(5, functional.layer_norm),
    "quantized::elu": lambda x, scale, zero_point, *numbers: torch.ops.aten.elu(x, *numbers),
    "quantized::dropout": lambda x, *_: x,
}
