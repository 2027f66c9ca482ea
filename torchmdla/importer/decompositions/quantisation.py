"""Decompositions of the operators of ``quantized_decomposed`` and of torchao.

Exported programs describe quantised tensors with these operators. Integers of 8 bits or less represent the floats
``(integer - zero_point) * scale``. The reference is the operators' own kernels
(torch/ao/quantization/fx/_decomposed.py, torchao/quantization/quant_primitives.py). Floats of 16 bits are quantised as
float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def quantize(
    value: Tensor, scale: float | Tensor, zero_point: int | Tensor, least: int, most: int, dtype: torch.dtype
) -> Tensor:
    """Compute ``quantize_per_tensor``: ``round(value / scale) + zero_point``, clamped to ``least`` and ``most``."""
    # The reference reads the numbers from tensors, and divides in double precision.
    factor = 1.0 / scale if isinstance(scale, float) else (1.0 / scale.double()).float().reshape(())
    zero_point = zero_point.reshape(()) if isinstance(zero_point, Tensor) else zero_point
    return _round_and_clamp(value.float() * factor, zero_point, least, most, dtype)


def choose_parameters(
    value: Tensor, least: int, most: int, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute ``choose_qparams``: the best scale and zero point for the range of ``value``, each in a vector of one."""
    lowest, highest = torch.clamp(value.amin(), max=0.0), torch.clamp(value.amax(), min=0.0)
    scale = torch.clamp((highest - lowest) / float(most - least), min=epsilon)
    zero_point = torch.clamp(least - torch.round(lowest / scale).to(torch.int32), least, most)
    return scale.reshape(1).to(torch.float64), zero_point.reshape(1).to(torch.int64)


def quantize_per_channel(
    value: Tensor, scales: Tensor, zero_points: Tensor, axis: int, least: int, most: int, dtype: torch.dtype
) -> Tensor:
    """Quantise with one scale and one zero point for each index of dimension ``axis``."""
    sizes = _channel_shape(value, axis)
    return _round_and_clamp(value.float() * (1.0 / scales.view(sizes)), zero_points.view(sizes), least, most, dtype)


def quantize_per_token(
    value: Tensor, scales: Tensor, zero_points: Tensor, least: int, most: int, dtype: torch.dtype
) -> Tensor:
    """Quantise with one scale and one zero point for each row: ``[…, 1]``. The zero point is added before rounding."""
    return torch.clamp(torch.round(value * (1.0 / scales) + zero_points), least, most).to(dtype)


def _round_and_clamp(scaled: Tensor, zero_point: int | Tensor, least: int, most: int, dtype: torch.dtype) -> Tensor:
    """Round scaled values, and add the zero point.

    Clamping comes before rounding. The result equals clamping after the zero point is added, because the bounds are
    integers. NaN becomes 0, as in C++.
    """
    if isinstance(zero_point, Tensor):
        zero_point = zero_point.to(torch.int32)
        lowest, highest = (least - zero_point).float(), (most - zero_point).float()
    else:
        lowest, highest = (torch.full_like(scaled, bound - zero_point) for bound in (least, most))
    if least:
        scaled = torch.where(scaled == scaled, scaled, -zero_point)
    clamped = torch.minimum(torch.where(scaled > lowest, scaled, lowest), highest)
    return (torch.round(clamped).to(torch.int32) + zero_point).to(dtype)


def dequantize(
    value: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor,
    least: int,
    most: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute ``dequantize_per_tensor``. The reference reads the numbers from tensors."""
    if isinstance(scale, Tensor):
        scale = scale.reshape(()).to(out_dtype or torch.float32)
    if isinstance(zero_point, Tensor):
        zero_point = zero_point.reshape(()).to(torch.int32)
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
    sizes = _channel_shape(value, axis)
    points = None if zero_points is None else zero_points.view(sizes)
    return _scale_integers(value, scales.view(sizes), points).to(out_dtype or torch.float32)


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
    """Dequantise ``[rows, columns]`` with one scale and one zero point for each ``group_size`` elements of a row."""
    if group_size > value.shape[-1] and scales.shape[-1] == 1:
        group_size = value.shape[-1]
    points = None if zero_points is None else zero_points.reshape(-1, 1)
    groups = _scale_integers(value.reshape(-1, group_size), scales.reshape(-1, 1), points)
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
    return _scale_integers(value, scales, zero_points).to(output_dtype)


def product_of_integers(left: Tensor, right: Tensor) -> Tensor:
    """Compute ``_int_mm``, which the Torch dialect lacks: a product of 8-bit integers, accumulated in 32 bits."""
    return torch.mm(left.to(torch.int32), right.to(torch.int32))


# Operators of torchao: a scale and a zero point for each block of a tensor.


def choose_block_parameters(
    value: Tensor,
    mapping: str,
    block: Sequence[int],
    target: torch.dtype,
    least: float | None = None,
    most: float | None = None,
    epsilon: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute ``choose_qparams_affine``: the best scale and zero point for the range of each block."""
    least, most = _bounds(target, least, most)
    blocks = _split_blocks(value, block)
    within = [d for d in range(1, blocks.dim(), 2) if blocks.shape[d] > 1]
    lowest = torch.clamp(blocks.amin(within, keepdim=True), max=0.0)
    highest = torch.clamp(blocks.amax(within, keepdim=True), min=0.0)
    smallest = torch.finfo(value.dtype).smallest_normal if epsilon is None else epsilon
    if mapping == "ASYMMETRIC":
        scale = torch.clamp((highest - lowest) / float(most - least), min=smallest)
        zero_point = torch.clamp(least - torch.round(lowest / scale), least, most)
        zero_point_dtype = zero_point_dtype or torch.int32
    else:
        if mapping == "SYMMETRIC":
            scale = torch.maximum(-lowest, highest) / (float(most - least) / 2)
        else:
            scale = torch.maximum(lowest / float(least), highest / float(most))
        scale = torch.clamp(scale, min=smallest)
        zero_point = torch.full_like(scale, int((most + least + 1) / 2))
    counts = [size // length for size, length in zip(value.shape, block, strict=True)]
    sizes = counts if keepdim else [n for n, length in zip(counts, block, strict=True) if n > 1 or length == 1]
    return (
        scale.reshape(sizes).to(scale_dtype or value.dtype),
        zero_point.reshape(sizes).to(zero_point_dtype or scale.dtype),
    )


def quantize_blocks(
    value: Tensor,
    block: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    dtype: torch.dtype,
    least: float | None = None,
    most: float | None = None,
) -> Tensor:
    """Compute ``quantize_affine``."""
    least, most = map(int, _bounds(dtype, least, most))
    blocks = _split_blocks(value, block)
    scaled = blocks * (1.0 / _broadcast_to_blocks(scale, value, block))
    point = 0 if zero_point is None else _broadcast_to_blocks(zero_point, value, block)
    return _round_and_clamp(scaled, point, least, most, dtype).reshape(value.shape)


def dequantize_blocks(
    value: Tensor,
    block: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    dtype: torch.dtype,
    least: float | None = None,
    most: float | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute ``dequantize_affine``."""
    integers = _split_blocks(value, block).to(torch.int32)
    if zero_point is not None:
        integers = integers - _broadcast_to_blocks(zero_point, value, block).to(torch.int32)
    return (integers.to(out_dtype) * _broadcast_to_blocks(scale, value, block)).reshape(value.shape)


def _bounds(dtype: torch.dtype, least: float | None, most: float | None) -> tuple[float, float]:
    kind = torch.iinfo(dtype)
    return kind.min if least is None else least, kind.max if most is None else most


def _split_blocks(value: Tensor, block: Sequence[int]) -> Tensor:
    """Split each dimension into two: the number of blocks, and the length of a block."""
    return value.reshape([n for size, length in zip(value.shape, block, strict=True) for n in (size // length, length)])


def _broadcast_to_blocks(parameters: Tensor, value: Tensor, block: Sequence[int]) -> Tensor:
    """Reshape the parameters, one for each block, to broadcast over a tensor in blocks."""
    return parameters.reshape([n for size, length in zip(value.shape, block, strict=True) for n in (size // length, 1)])


def _scale_integers(value: Tensor, scales: Tensor, zero_points: Tensor | None) -> Tensor:
    return (value if zero_points is None else value - zero_points) * scales


def _channel_shape(value: Tensor, axis: int) -> Sequence[int]:
    """Return the shape in which a vector broadcasts along one dimension of ``value``."""
    sizes = [1] * value.dim()
    sizes[axis] = -1
    return sizes
