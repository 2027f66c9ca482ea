"""Device for integers only: quantised programs become lists of NumPy calls on integers.

The calls represent the instructions of an accelerator that multiplies and adds integers. Floats occur at its edges
only, where its memory transfers would convert them.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torchmdla.compiler.artifact import Artifact, Manifest
from torchmdla.compiler.mlir import forward_of, new_context
from torchmdla.compiler.program import Program, Target
from torchmdla.devices import (
    QUANTISED_FORMS,
    Device,
    Legalisation,
    LoadedCode,
    OpSupport,
    Quantisation,
    QuantisedType,
    quantised_patterns_of,
)
from torchmdla.errors import CompileError

Array = np.ndarray[Any, np.dtype[Any]]

ACTIVATIONS, WEIGHTS, BIASES = QuantisedType(8, symmetric=False), QuantisedType(8, axis=0), QuantisedType(32)

# Bits of the integers that represent ratios of scales.
_RATIO_BITS = 30


class Int8Device(Device, Legalisation, Quantisation):
    name = "int8"
    dtypes = frozenset({"float32", "int8", "int32", "int64"})
    ops: Mapping[str, OpSupport] = {
        **{name: OpSupport("cheap") for name in QUANTISED_FORMS},
        **{f"aten::{name}": OpSupport("compute") for name in ("conv2d", "linear", "max_pool2d", "mean.dim")},
        "aten::convolution": OpSupport("compute", {"transposed": False}),
        "aten::addmm": OpSupport("compute", {"alpha": 1, "beta": 1}),
        "aten::add.Tensor": OpSupport("cheap", {"alpha": 1}),
        "aten::relu": OpSupport("cheap"),
        **{f"aten::{name}": OpSupport("view") for name in ("t", "view")},
    }
    composite_ops = QUANTISED_FORMS | {"aten::linear", "aten::addmm"}
    quantised_patterns = (
        *quantised_patterns_of(
            "conv2d+relu conv2d linear+relu linear",
            activations=ACTIVATIONS,
            results=ACTIVATIONS,
            weights=WEIGHTS,
            bias=BIASES,
        ),
        *quantised_patterns_of("add.Tensor+relu add.Tensor mean.dim", activations=ACTIVATIONS, results=ACTIVATIONS),
        *quantised_patterns_of("max_pool2d view", activations=ACTIVATIONS, shares_scale=True),
    )

    def target(self) -> Target:
        return Target(self.name)

    def lower(self, program: Program) -> Artifact:
        """Return the operations as JSON; values are numbered, arguments first.

        This runs in a compiler process, without torch.
        """
        from torch_mlir import ir

        if program.symbols:
            raise CompileError("sizes that vary are not supported")
        with new_context():
            block = forward_of(ir.Module.parse(program.mlir)).regions[0].blocks[0]
            numbers = {value: number for number, value in enumerate(block.arguments)}
            kinds = ["float" if "f32" in str(value.type) else "integer" for value in block.arguments]
            *operations, end = block.operations
            code = []
            for operation in operations:
                operands = [numbers[value] for value in operation.operands]
                kinds.append(_kind_of(operation, [kinds[number] for number in operands]))
                code.append((operation.name, _constant(operation), operands))
                numbers[operation.results[0]] = len(numbers)
            results = [numbers[value] for value in end.operands]
        manifest = Manifest(program.key, "entry", program.arguments, program.results, workspace_bytes=0)
        return Artifact(json.dumps([code, results]).encode(), manifest)

    def load(self, artifact: Artifact) -> LoadedCode:
        """Return a C function over buffers (docs/design/abi.md).

        This runs in the user's process.
        """
        code, results = json.loads(artifact.object_code)
        arguments, outputs = artifact.manifest.arguments, artifact.manifest.results

        def run(buffers: Any) -> int:
            values: list[Any] = [_array(buffers[3 + k], argument) for k, argument in enumerate(arguments)]
            for name, constant, operands in code:
                inputs = [values[number] for number in operands]
                values.append(_OPERATIONS[name].run(*inputs) if name in _OPERATIONS else constant)
            for k, (number, output) in enumerate(zip(results, outputs, strict=True)):
                value = values[number]
                _array(buffers[3 + len(arguments) + k], output)[...] = (
                    value.to_float() if isinstance(value, Sum) else value
                )
            return 0

        entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(run)
        return LoadedCode(ctypes.cast(entry, ctypes.c_void_p).value or 0, (), owner=entry)


# --- values


@dataclass(frozen=True)
class Sum:
    """Sum of integers times scales, which is rounded when it is quantised; negative sums become 0 if it is rectified.

    ``terms`` are pairs of 64-bit integers and scales, which broadcast.
    """

    terms: tuple[tuple[Array, Array], ...]
    is_rectified: bool = False

    def map(self, function: Callable[[Array], Array]) -> Sum:
        return replace(self, terms=tuple((function(integers), scale) for integers, scale in self.terms))

    def to_float(self) -> Array:
        total = sum(integers.astype(np.float32) * scale.astype(np.float32) for integers, scale in self.terms)
        return np.maximum(total, 0) if self.is_rectified else np.asarray(total)

    def quantised(self, scale: float) -> Array:
        """Return the integers for another scale. Ratios of scales are integers and a shift, as in hardware."""
        ratios = [term_scale / scale for _, term_scale in self.terms]
        shift = _RATIO_BITS - math.frexp(max(float(ratio.max()) for ratio in ratios))[1]
        multipliers = [np.rint(ratio * 2.0**shift).astype(np.int64) for ratio in ratios]
        total = sum(integers * factor for (integers, _), factor in zip(self.terms, multipliers, strict=True))
        rounded = (np.asarray(total) + (1 << (shift - 1))) >> shift
        return np.maximum(rounded, 0) if self.is_rectified else rounded


# --- operations


def _quantize(value: Array | Sum, scale: float, zero_point: int, least: int, most: int, dtype: int) -> Array:
    if isinstance(value, Sum):
        integers = value.quantised(scale)
    else:
        integers = np.rint(value * np.float32(1.0 / scale)).astype(np.int64)
    return np.clip(integers + zero_point, least, most).astype(np.int8)


def _dequantize(value: Array, scale: float, zero_point: int, *_: Any) -> Sum:
    return Sum(((value.astype(np.int64) - zero_point, np.asarray(scale)),))


def _dequantize_channels(value: Array, scales: Array, zero_points: Array, axis: int, *_: Any) -> Sum:
    """Return the difference from the zero points, with one scale for each index of ``axis``, which is 0."""
    sizes = (-1, *(1 for _ in value.shape[1:]))
    return Sum(((value.astype(np.int64) - zero_points.reshape(sizes), scales.astype(np.float64).reshape(sizes)),))


def _product(left: Sum, right: Sum, bias: Sum | None, axis: int, multiply: Callable[[Array, Array], Array]) -> Sum:
    """Return a product of integers plus a bias of the same scale; ``axis`` has the channels of the result."""
    ((x, x_scale),), ((weight, weight_scale),) = left.terms, right.terms
    total = multiply(x, weight)
    sizes = [1] * total.ndim
    sizes[axis] = -1
    if bias is not None:
        total = total + bias.terms[0][0].reshape(sizes)
    return Sum(((total, x_scale * weight_scale.reshape(sizes)),))


def _linear(x: Sum, weight: Sum, bias: Sum | None) -> Sum:
    return _product(x, weight, bias, -1, lambda left, right: left @ right.T)


def _addmm(bias: Sum, x: Sum, weight: Sum, beta: int, alpha: int) -> Sum:
    return _linear(x, weight.map(np.transpose), bias)


def _convolution(
    x: Sum,
    weight: Sum,
    bias: Sum | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Sum:
    def convolve(image: Array, kernel: Array) -> Array:
        (height, width), (down, right) = padding, dilation
        padded = np.pad(image, ((0, 0), (0, 0), (height, height), (width, width)))
        sizes = [(size - 1) * step + 1 for size, step in zip(kernel.shape[2:], dilation, strict=True)]
        windows = sliding_window_view(padded, sizes, (2, 3))[:, :, :: stride[0], :: stride[1], ::down, ::right]
        parts = zip(np.split(windows, groups, 1), np.split(kernel, groups), strict=True)
        return np.concatenate([np.einsum("nchwij,ocij->nohw", *part, optimize=True) for part in parts], 1)

    return _product(x, weight, bias, 1, convolve)


def _max_pool(
    x: Sum, size: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> Sum:
    def pool(image: Array) -> Array:
        least = np.iinfo(np.int64).min
        (height, width), (down, right) = padding, stride or size
        padded = np.pad(image, ((0, 0), (0, 0), (height, height), (width, width)), constant_values=least)
        return np.asarray(sliding_window_view(padded, size, (2, 3))[:, :, ::down, ::right].max((4, 5)))

    return x.map(pool)


def _mean(x: Sum, dims: list[int], keepdim: bool, dtype: None) -> Sum:
    ((integers, scale),) = x.terms
    total = integers.sum(tuple(dims), keepdims=keepdim)
    return Sum(((total, scale * (total.size / integers.size)),))


@dataclass(frozen=True)
class _Operation:
    """Operation of the Torch dialect: its computation, and the kinds of its result by those of its tensors."""

    run: Callable[..., Any]
    kinds: Mapping[tuple[str, ...], str]


# A value is "float", "integer", a "sum" of products, or a "rectified" sum.
_SAME = {(kind,): kind for kind in ("sum", "rectified")}
_PRODUCT = {("sum", "sum"): "sum", ("sum", "sum", "sum"): "sum"}
_FORMS = "torch.quantized_decomposed"
_OPERATIONS: Mapping[str, _Operation] = {
    f"{_FORMS}.quantize_per_tensor": _Operation(
        _quantize, {(kind,): "integer" for kind in ("float", "sum", "rectified")}
    ),
    f"{_FORMS}.dequantize_per_tensor": _Operation(_dequantize, {("integer",): "sum"}),
    f"{_FORMS}.dequantize_per_channel": _Operation(_dequantize_channels, {("integer", "float", "integer"): "sum"}),
    "torch.aten.linear": _Operation(_linear, _PRODUCT),
    "torch.aten.addmm": _Operation(_addmm, _PRODUCT),
    "torch.aten.t": _Operation(lambda x: x.map(np.transpose), {("sum",): "sum"}),
    "torch.aten.convolution": _Operation(_convolution, _PRODUCT),
    "torch.aten.add.Tensor": _Operation(lambda x, y, alpha: Sum((*x.terms, *y.terms)), {("sum", "sum"): "sum"}),
    "torch.aten.relu": _Operation(lambda x: replace(x, is_rectified=True), {("sum",): "rectified"}),
    "torch.aten.max_pool2d": _Operation(_max_pool, _SAME),
    "torch.aten.mean.dim": _Operation(_mean, {("sum",): "sum"}),
    "torch.aten.view": _Operation(lambda x, sizes: x.map(lambda integers: integers.reshape(sizes)), _SAME),
    "torch.prim.ListConstruct": _Operation(lambda *elements: list(elements), {(): ""}),
}


def _kind_of(operation: Any, kinds: Sequence[str]) -> str:
    """Return the kind of the result; empty for what is not a tensor.

    Raises:
        CompileError: the device has no instruction for such tensors. The group is then compiled around this operation.
    """
    if operation.name.startswith("torch.constant."):
        return ""
    tensors = tuple(kind for kind in kinds if kind)
    known = _OPERATIONS.get(operation.name)
    if known is None or tensors not in known.kinds:
        what = f"{operation.name} of {' and '.join(tensors)} tensors"
        raise CompileError(f"the device has no instruction for {what}", diagnostic=str(operation.location))
    return known.kinds[tensors]


def _constant(operation: Any) -> int | float | bool | None:
    """Return a constant's value; None for operations."""
    has_value = operation.name.startswith("torch.constant.") and not operation.name.endswith("none")
    value: int | float | bool | None = operation.attributes["value"].value if has_value else None
    return value


def _array(address: int, spec: Any) -> Array:
    """Return the contiguous numbers of a tensor in memory, without a copy."""
    dtype = np.dtype(spec.dtype)
    data = (ctypes.c_char * (math.prod(spec.shape) * dtype.itemsize)).from_address(address)
    return np.frombuffer(data, dtype).reshape(spec.shape)
