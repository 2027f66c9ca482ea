"""Transposed convolutions and gradients of convolutions, as plain convolutions of stride 1.

The definition of a transposed convolution inserts zeros between input elements, and multiplies them. Here the results
with the same offset from the grid of strides form a *phase*. A phase is a convolution with the taps that meet the
grid. If there are few phases, each is a separate convolution. Otherwise, phases with equally many taps become the
channels of one convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmdla.importer.decompositions.paddings import crop

Sizes = Sequence[int]


def convolution(
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    """Compute ``aten::convolution`` with plain convolutions."""
    spatial = value.dim() - 2
    stride, padding, dilation = (_repeat(n, spatial) for n in (stride, padding, dilation))
    if not transposed:
        return _convolve(value, weight, bias, stride, padding, dilation, groups)
    sizes = result_sizes(value.shape[2:], weight.shape[2:], stride, padding, dilation, transposed, output_padding)
    result = _convolve_transposed(value, weight, sizes, stride, padding, dilation, groups)
    return result if bias is None else result + bias.view([-1] + [1] * spatial)


def convolution_of_script(*arguments: Any) -> Tensor:
    """Compute ``aten::_convolution``. The arguments after the groups choose among eager's implementations."""
    return convolution(*arguments[:9])


def convolution_backward(
    gradient: Tensor,
    value: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of a convolution's input, weight and bias, or None where ``output_mask`` is false."""
    spatial = value.dim() - 2
    stride, padding, dilation = (_repeat(n, spatial) for n in (stride, padding, dilation))
    of_value = of_weight = of_bias = None
    if output_mask[0] and transposed:
        whole = _convolve(gradient, weight, None, stride, padding, dilation, groups)
        of_value = _pad(whole, [(0, n - m) for n, m in zip(value.shape[2:], whole.shape[2:], strict=True)])
    elif output_mask[0]:
        of_value = _convolve_transposed(gradient, weight, value.shape[2:], stride, padding, dilation, groups)
    if output_mask[1]:
        wide, narrow = (gradient, value) if transposed else (value, gradient)
        of_weight = _weight_gradient(wide, narrow, weight.shape[2:], stride, padding, dilation, groups)
    if output_mask[2]:
        of_bias = gradient.sum([0, *range(2, value.dim())])
    return of_value, of_weight, of_bias


def _convolve(
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """Compute a convolution that is not transposed.

    Compilers do not support grouped convolutions in three dimensions. Such a convolution becomes a sum over the taps
    of the first dimension. Each term is a convolution in two dimensions, whose batch includes the results along the
    first dimension.
    """
    spatial = len(stride)
    if groups == 1 or spatial < 3:
        return torch.convolution(value, weight, bias, stride, padding, dilation, False, [0] * spatial, groups)
    step, border, spread = stride[0], padding[0], dilation[0]
    (depth,) = result_sizes(value.shape[2:3], weight.shape[2:3], [step], [border], [spread], False, [0])
    frames = _pad(value, [(border, border), (0, 0), (0, 0)]).transpose(1, 2)

    def at_tap(tap: int) -> Tensor:
        images = frames[:, tap * spread : tap * spread + (depth - 1) * step + 1 : step].flatten(0, 1)
        tap_bias = bias if tap == 0 else None
        return _convolve(images, weight.select(2, tap), tap_bias, stride[1:], padding[1:], dilation[1:], groups)

    result = reduce(torch.add, map(at_tap, range(weight.size(2))))
    return result.view([value.size(0), depth, *result.shape[1:]]).transpose(1, 2)


def result_sizes(
    sizes: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool, output_padding: Sizes
) -> list[int]:
    """Return the last dimensions of a convolution's result, from those of its input and its weight."""
    spatial = len(sizes)
    arguments = (_repeat(n, spatial) for n in (stride, padding, dilation, output_padding))
    results = []
    for size, taps, step, border, spread, more in zip(sizes, kernel, *arguments, strict=True):
        reach = spread * (taps - 1)
        if transposed:
            results.append((size - 1) * step - 2 * border + reach + more + 1)
        else:
            results.append((size + 2 * border - reach - 1) // step + 1)
    return results


def result_shape(
    value: Sizes,
    weight: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> list[int]:
    """Return the shape of the result of ``aten::convolution``, from the shapes of its input and its weight."""
    channels = weight[1] * groups if transposed else weight[0]
    return [
        value[0],
        channels,
        *result_sizes(value[2:], weight[2:], stride, padding, dilation, transposed, output_padding),
    ]


def _repeat(numbers: Sizes, count: int) -> list[int]:
    """Return ``numbers`` repeated to ``count``: one number applies to all dimensions."""
    return list(numbers) * (count // len(numbers))


class _Phases(NamedTuple):
    """Phases ``start`` to ``stop`` of one dimension, each with ``taps`` taps that are a stride apart."""

    start: int
    stop: int
    taps: int


# A separate convolution for each phase allows layouts to propagate, but it takes time to compile.
_MAX_SEPARATE_PHASES = 8


def _phases(kernel: Sizes, stride: Sizes) -> list[list[_Phases]]:
    """Return all phases of each dimension. The phases before the remainder have one tap more."""
    if math.prod(stride) <= _MAX_SEPARATE_PHASES:
        return [
            [_Phases(n, n + 1, (k - n - 1) // s + 1) for n in range(s)] for k, s in zip(kernel, stride, strict=True)
        ]
    ends = [(k // s, k % s, s) for k, s in zip(kernel, stride, strict=True)]
    joined = [[_Phases(0, rest, taps + 1), _Phases(rest, s, taps)] for taps, rest, s in ends]
    return [[phases for phases in some if phases.stop > phases.start] for some in joined]


def _convolve_transposed(
    value: Tensor, weight: Tensor, sizes: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    """Compute a transposed convolution.

    Result ``i`` is the sum of ``value[j] · weight[k]`` over ``i + padding = j · stride + k · dilation``.

    Args:
        value: (N, in, …).
        weight: (in, out / groups, kernel…).
        sizes: the last dimensions of the result.
        stride: one number for each of the last dimensions.
        padding: likewise.
        dilation: likewise.
        groups: the number of groups of channels.
    """
    spatial = len(sizes)
    # Dilated taps do not meet the grid of strides in a simple order.
    for dim in range(spatial):
        if stride[dim] > 1 and dilation[dim] > 1:
            value = _insert_zeros(value, 2 + dim, stride[dim])
    stride = [1 if d > 1 else s for s, d in zip(stride, dilation, strict=True)]
    weight = _transpose_channels(weight, groups)
    blocks = [-(-(n + p % s) // s) for n, p, s in zip(sizes, padding, stride, strict=True)]

    def compute_phases(chosen: Sequence[_Phases]) -> Tensor:
        counts = [phases.stop - phases.start for phases in chosen]
        shape = [value.size(0), weight.size(0), *counts, *blocks]
        if not all(phases.taps for phases in chosen):
            return value.new_zeros(shape)
        pads = []
        for dim, phases in enumerate(chosen):
            skipped, reach = padding[dim] // stride[dim], dilation[dim] * (phases.taps - 1)
            pads.append((reach - skipped, blocks[dim] - 1 + skipped - (value.size(2 + dim) - 1)))
        return _convolve_padded(value, _taps(weight, chosen, stride), pads, dilation, groups).view(shape)

    result = interleave(_map_phases(_phases(weight.shape[2:], stride), compute_phases), 2, stride)
    return _pad(
        result,
        [(-(p % s), p % s + n - m) for n, m, p, s in zip(sizes, result.shape[2:], padding, stride, strict=True)],
    )


def _taps(weight: Tensor, chosen: Sequence[_Phases], stride: Sizes) -> Tensor:
    """Return the taps of the chosen phases in reverse order: (out · phases, in / groups, taps…)."""
    spatial = len(chosen)
    kernel = weight.shape[2:]
    blocks = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    weight = _pad(weight, [(0, b * s - k) for b, s, k in zip(blocks, stride, kernel, strict=True)])
    weight = weight.reshape([*weight.shape[:2], *(n for pair in zip(blocks, stride, strict=True) for n in pair)])
    for dim, phases in enumerate(chosen):
        weight = weight.narrow(2 + 2 * dim, 0, phases.taps).narrow(
            3 + 2 * dim, phases.start, phases.stop - phases.start
        )
    weight = weight.permute([0, *range(3, 3 + 2 * spatial, 2), 1, *range(2, 2 + 2 * spatial, 2)])
    weight = weight.reshape([-1, *weight.shape[1 + spatial :]])
    reversed_dims = [2 + dim for dim, phases in enumerate(chosen) if phases.taps > 1]
    return weight.flip(reversed_dims) if reversed_dims else weight


def _weight_gradient(
    wide: Tensor, narrow: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    """Compute the gradient of a convolution's weight.

    Tap ``k`` is the sum of ``narrow[j] · wide[j · stride + k · dilation - padding]`` over the batch and ``j``.

    Args:
        wide: (N, in, …), the larger side: the convolution's input, or the gradient of a transposed convolution.
        narrow: (N, out, …).
        kernel: the last dimensions of the weight.
        stride: one number for each of the last dimensions.
        padding: likewise.
        dilation: likewise.
        groups: the number of groups of channels.

    Returns:
        The gradient, (out, in / groups, kernel…).
    """
    reach = [
        (n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(narrow.shape[2:], stride, kernel, dilation, strict=True)
    ]
    wide = _pad(wide, [(p, r - p - n) for p, r, n in zip(padding, reach, wide.shape[2:], strict=True)])
    # (N, groups · in / groups, …) → (in / groups, groups · N, …)
    wide = wide.unflatten(1, [groups, -1]).movedim(0, 2).transpose(0, 1).flatten(1, 2)
    # The narrow side is a filter whose taps are a stride apart.
    return _convolve(wide, narrow.transpose(0, 1), None, dilation, [0] * len(kernel), stride, groups).transpose(0, 1)


def _map_phases(
    every: Sequence[Sequence[_Phases]],
    compute_phases: Callable[[Sequence[_Phases]], Tensor],
    chosen: tuple[_Phases, ...] = (),
) -> Tensor:
    """Apply ``compute_phases`` to each combination of phases.

    The results are concatenated along the dimensions of the phases, which begin at the third.
    """
    if len(chosen) == len(every):
        return compute_phases(chosen)
    parts = [_map_phases(every, compute_phases, (*chosen, phases)) for phases in every[len(chosen)]]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2 + len(chosen))


def interleave(value: Tensor, lead: int, phases: Sizes) -> Tensor:
    """Rearrange (lead…, phases…, blocks…) to (lead…, blocks · phases…)."""
    if math.prod(phases) == 1:
        return value.view([*value.shape[:lead], *value.shape[lead + len(phases) :]])
    spatial = len(phases)
    blocks = value.shape[lead + spatial :]
    order = [dim for d in range(spatial) for dim in (lead + spatial + d, lead + d)]
    sizes = [b * s for b, s in zip(blocks, phases, strict=True)]
    return value.permute([*range(lead), *order]).reshape([*value.shape[:lead], *sizes])


def _convolve_padded(
    value: Tensor, weight: Tensor, pads: Sequence[tuple[int, int]], dilation: Sizes, groups: int
) -> Tensor:
    """Convolve ``value`` after padding both ends of each dimension with zeros. Negative pads crop."""
    spatial = len(pads)
    common = [max(0, min(pair)) for pair in pads]
    value = _pad(value, [(a - n, b - n) for (a, b), n in zip(pads, common, strict=True)])
    return _convolve(value, weight, None, [1] * spatial, common, dilation, groups)


def _pad(value: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    """Pad both ends of each of the last dimensions with zeros. Negative pads crop."""
    sizes = [n for pair in reversed(pads) for n in pair]
    value = crop(value, sizes)
    added = [max(0, n) for n in sizes]
    return torch.nn.functional.pad(value, added) if any(added) else value


def _insert_zeros(value: Tensor, dim: int, stride: int) -> Tensor:
    """Insert ``stride - 1`` zeros between neighbours along ``dim``."""
    pairs = torch.nn.functional.pad(value.unsqueeze(dim + 1), [0, 0] * (value.dim() - 1 - dim) + [0, stride - 1])
    flat = pairs.flatten(dim, dim + 1)
    return flat.narrow(dim, 0, flat.size(dim) - stride + 1)


def _transpose_channels(weight: Tensor, groups: int) -> Tensor:
    """Rearrange (in, out / groups, …) to (out, in / groups, …)."""
    if groups == 1:
        return weight.transpose(0, 1)
    split = weight.reshape([groups, weight.size(0) // groups, *weight.shape[1:]])
    return split.transpose(1, 2).reshape([groups * weight.size(1), weight.size(0) // groups, *weight.shape[2:]])
