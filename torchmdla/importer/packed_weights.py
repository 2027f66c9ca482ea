"""Weights packed by PyTorch's quantised operators: objects of C++ classes that are constants of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Value

# The classes whose content can be read (aten/src/ATen/native/quantized/PackedParams.h), by kind of operator.
_CONVOLUTIONS = ("Conv2dPackedParamsBase", "Conv3dPackedParamsBase")
_LINEAR = "LinearPackedParamsBase"


@dataclass(frozen=True)
class Geometry:
    """Stride, padding, dilation and groups of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class UnpackedWeights:
    """Content of packed weights.

    Attributes:
        tensors: integers, scales, zero points and bias. There is one scale for each channel or a single one. Zero
            points are omitted if all are zero.
        has_zero_points: whether ``tensors`` includes zero points.
        has_bias: whether ``tensors`` includes a bias.
        geometry: the numbers of a convolution, None for a linear layer.
    """

    tensors: Sequence[Tensor]
    has_zero_points: bool
    has_bias: bool
    geometry: Geometry | None


@dataclass(frozen=True)
class PackedWeights:
    """Packed weights as values of a program."""

    integers: Value
    scales: Value
    zero_points: Value | None
    bias: Value | None
    geometry: Geometry | None

    @classmethod
    def of(cls, packed: UnpackedWeights, values: Sequence[Value]) -> PackedWeights:
        """Return the packed weights from the values of all tensors, in their order."""
        integers, scales, *others = values
        zero_points = others.pop(0) if packed.has_zero_points else None
        return cls(integers, scales, zero_points, others.pop(0) if packed.has_bias else None, packed.geometry)


def unpack_weights(value: object) -> UnpackedWeights | None:
    """Return the content of packed weights, or None for any other value.

    Raises:
        CompileError: If the weights are of a kind that cannot be read.
    """
    if not isinstance(value, torch.ScriptObject):
        return None
    packed: Any = value
    kind = packed._type().name()
    if kind not in (*_CONVOLUTIONS, _LINEAR):
        raise CompileError(f"weights packed as {kind} are not supported", scope="place")
    weight, bias = packed.unpack()
    if weight.dtype != torch.qint8:
        raise CompileError(f"packed weights of {weight.dtype} are not supported", scope="place")
    scales, zero_points = _parameters(weight)
    has_zero_points = bool(zero_points.any())
    tensors = [weight.int_repr(), scales]
    tensors += [zero_points] if has_zero_points else []
    tensors += [] if bias is None else [bias.detach()]
    return UnpackedWeights(tensors, has_zero_points, bias is not None, _geometry(packed) if kind != _LINEAR else None)


def _parameters(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales and zero points along the first dimension."""
    if weight.qscheme() == torch.per_channel_affine and weight.q_per_channel_axis() == 0:
        return weight.q_per_channel_scales().float(), weight.q_per_channel_zero_points().int()
    if weight.qscheme() == torch.per_tensor_affine:
        return torch.tensor([weight.q_scale()]), torch.tensor([weight.q_zero_point()], dtype=torch.int32)
    raise CompileError(f"packed weights quantised by {weight.qscheme()} are not supported", scope="place")


def _geometry(packed: Any) -> Geometry:
    if packed.transpose():
        raise CompileError("a quantised transposed convolution is not supported", scope="place")
    return Geometry(tuple(packed.stride()), tuple(packed.padding()), tuple(packed.dilation()), packed.groups())
