"""The operators of ``quantized_decomposed``, with which exported programs say how tensors are quantised: integers of 8
bits or less in the place of floats, ``(integer - zero_point) * scale``. PyTorch's own kernels of them
(torch/ao/quantization/fx/_decomposed.py) are the reference: floats of 16 bits are quantised as float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def quantize(
    value: Tensor, scale: float | Tensor, zero_point: int | Tensor, least: int, most: int, dtype: torch.dtype
) -> Tensor:
    """``quantize_per_tensor``: ``round(value / scale) + zero_point``, within ``least`` and ``most``."""
    # The reference takes the numbers out of tensors, and divides in double precision.
    factor = 1.0 / scale if isinstance(scale, float) else (1.0 / scale.double()).float()
    return _stored(value.float() * factor, zero_point, least, most, dtype)


def quantize_per_channel(
    value: Tensor, scales: Tensor, zero_points: Tensor, axis: int, least: int, most: int, dtype: torch.dtype
) -> Tensor:
    """With a scale and a zero point for each index of dimension ``axis``."""
    sizes = _along(value, axis)
    return _stored(value.float() * (1.0 / scales.view(sizes)), zero_points.view(sizes), least, most, dtype)


def quantize_per_token(
    value: Tensor, scales: Tensor, zero_points: Tensor, least: int, most: int, dtype: torch.dtype
) -> Tensor:
    """With a scale and a zero point for each row: ``[…, 1]``. Rounds behind the zero point is added."""
    return torch.clamp(torch.round(value * (1.0 / scales) + zero_points), least, most).to(dtype)


def _stored(scaled: Tensor, zero_point: int | Tensor, least: int, most: int, dtype: torch.dtype) -> Tensor:
    # The same as to clamp what is rounded and moved by the zero point: the bounds are integers.
    if isinstance(zero_point, Tensor):
        zero_point = zero_point.to(torch.int32)
        kept = torch.clamp(scaled, least - zero_point, most - zero_point)
    else:
        kept = torch.clamp(scaled, least - zero_point, most - zero_point)
    return (torch.round(kept).to(torch.int32) + zero_point).to(dtype)


def dequantize(
    value: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor,
    least: int,
    most: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``dequantize_per_tensor``."""
    return (value.to(out_dtype or torch.float32) - zero_point) * scale


def dequantize_per_channel(
    value: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    least: int,
    most: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    sizes = _along(value, axis)
    points = None if zero_points is None else zero_points.view(sizes)
    return _original(value, scales.view(sizes), points).to(out_dtype or torch.float32)


def dequantize_per_channel_group(
    value: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    least: int,
    most: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``[rows, columns]`` with a scale and a zero point for ``group_size`` elements of a row each."""
    if group_size > value.shape[-1] and scales.shape[-1] == 1:
        group_size = value.shape[-1]
    points = None if zero_points is None else zero_points.reshape(-1, 1)
    groups = _original(value.reshape(-1, group_size), scales.reshape(-1, 1), points)
    return groups.reshape(value.shape).to(output_dtype)


def dequantize_per_token(
    value: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    least: int,
    most: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    return _original(value, scales, zero_points).to(output_dtype)


def _original(value: Tensor, scales: Tensor, zero_points: Tensor | None) -> Tensor:
    return (value if zero_points is None else value - zero_points) * scales


def _along(value: Tensor, axis: int) -> Sequence[int]:
    """Sizes in which a vector runs along one dimension of ``value``."""
    sizes = [1] * value.dim()
    sizes[axis] = -1
    return sizes
