"""Pooling that upstream lacks: adaptive sizes, indices of the largest values, and gradients."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmdla.importer.decompositions.convolutions import interleave


def adaptive_average(spatial: int) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """Return a function that pools the last ``spatial`` dimensions to given sizes, one dimension at a time.

    This is exact, because the windows are boxes.
    """

    def pool(value: Tensor, sizes: Sequence[int]) -> Tensor:
        dims = range(value.dim() - spatial, value.dim())
        whole = [dim for dim, size in zip(dims, sizes, strict=True) if size == 1]
        if whole:
            value = value.mean(whole, keepdim=True)
        for dim, size in zip(dims, sizes, strict=True):
            value = _pool_dim(value, dim, size)
        return value

    return pool


# Maximum number of windows that are written as separate slices, which are faster than a lookup.
_MAX_SLICES = 32


def _pool_dim(value: Tensor, dim: int, size: int) -> Tensor:
    length = value.size(dim)
    if length == size:
        return value
    if length % size == 0:
        blocks = value.view([*value.shape[:dim], size, length // size, *value.shape[dim + 1 :]])
        return blocks.mean(dim + 1)
    if size > _MAX_SLICES:
        return _mean_of_places(value, dim, size)
    return torch.cat([value.narrow(dim, *window).mean(dim, keepdim=True) for window in _windows(length, size)], dim)


def _mean_of_places(value: Tensor, dim: int, size: int) -> Tensor:
    """Return the mean of each window by one lookup. The length of the program does not depend on the window count."""
    start, end = _bounds(value.size(dim), size, value.device)
    counts, places = end - start, _places(value.size(dim), size, value.device)
    windows = value.index_select(dim, places.flatten()).unflatten(dim, places.shape)
    behind = [1] * (value.dim() - dim - 1)
    inside = (torch.arange(places.size(1), device=value.device) < counts).view(*places.shape, *behind)
    return torch.where(inside, windows, 0).sum(dim + 1) / counts.view(size, *behind)


def _windows(length: int, size: int) -> list[tuple[int, int]]:
    """Return start and length of each window.

    Window i ranges from floor(i · length / size) to ceil((i + 1) · length / size).
    """
    bounds = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
    return [(start, end - start) for start, end in bounds]


def adaptive_maximum(spatial: int) -> Callable[[Tensor, Sequence[int]], tuple[Tensor, Tensor]]:
    """Return a function that finds the largest value of each window of the last ``spatial`` dimensions.

    The function also returns the flat index of that value in these dimensions. Among equal values it selects the
    first, and among NaNs the last, as in eager.
    """

    def pool(value: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        lengths, lead = value.shape[-spatial:], value.dim() - spatial
        places = [_places(length, size, value.device) for length, size in zip(lengths, sizes, strict=True)]
        for dim, place in enumerate(places):
            value = value.index_select(lead + dim, place.flatten())
        value = value.view([*value.shape[:lead], *(n for place in places for n in place.shape)])
        cells, inside = (range(lead + first, value.dim(), 2) for first in (0, 1))
        windows = value.permute([*range(lead), *cells, *inside]).flatten(lead + spatial)
        flat = _flat_places(places, lengths)
        largest = windows.amax(-1)
        first = torch.where(windows == largest.unsqueeze(-1), flat, math.prod(lengths)).amin(-1)
        last_nan = torch.where(torch.isnan(windows), flat, -1).amax(-1)
        return largest, torch.where(last_nan >= 0, last_nan, first)

    return pool


def _places(length: int, size: int, device: torch.device) -> Tensor:
    """Return the places in each window of one dimension, ``[size, widest]``. Shorter windows repeat the last place."""
    widest = max(inside for _, inside in _windows(length, size))
    start, end = _bounds(length, size, device)
    return torch.minimum(start + torch.arange(widest, device=device), end - 1)


def _bounds(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the starts and the ends of the windows of one dimension, ``[size, 1]`` each."""
    cell = torch.arange(size, device=device).unsqueeze(1)
    start = torch.div(cell * length, size, rounding_mode="trunc")
    return start, torch.div((cell + 1) * length + (size - 1), size, rounding_mode="trunc")


def _flat_places(places: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
    """Return the flat index of each place of each window, ``[*cells, places of a window]``."""
    rank = len(places)
    flat: Tensor | int = 0
    for dim, (place, length) in enumerate(zip(places, lengths, strict=True)):
        shape = [1] * (2 * rank)
        shape[dim], shape[rank + dim] = place.shape
        flat = flat * length + place.view(shape)
    assert isinstance(flat, Tensor)
    return flat.flatten(rank)


# Windows of one size.


class _Windows(NamedTuple):
    """Windows along one dimension of size ``length``."""

    length: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    ceil_mode: bool

    @property
    def results(self) -> int:
        """Return the number of windows. With ``ceil_mode``, the last one may leave the dimension, but begins in it."""
        steps = self.length + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        results = (steps + self.stride - 1 if self.ceil_mode else steps) // self.stride + 1
        leaves = self.ceil_mode and (results - 1) * self.stride >= self.length + self.padding
        return results - 1 if leaves else results

    @property
    def missing(self) -> int:
        """Return the elements that the last window needs after the end of the dimension."""
        reach = (self.results - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return max(0, reach - self.padding - self.length)

    def slice(self, padded: Tensor, dim: int, tap: int) -> Tensor:
        """Return the element of each window at ``tap``, from the padded tensor."""
        first = tap * self.dilation
        end = first + (self.results - 1) * self.stride + 1
        result: Tensor = torch.ops.aten.slice(padded, dim, first, end, self.stride)
        return result


def _windows_of(
    lengths: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[_Windows]:
    """Return the windows of each dimension. Without ``stride``, it is the kernel's size."""
    arguments = [list(n) * (len(lengths) // len(n)) for n in (kernel, stride or kernel, padding, dilation)]
    return [_Windows(n, k, s, p, d, ceil_mode) for n, k, s, p, d in zip(lengths, *arguments, strict=True)]


def maximum_with_indices(spatial: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function that computes ``aten::max_pool*d_with_indices`` of ``spatial`` dimensions.

    It pools one dimension at a time, the last one first. Among equal values it selects the first in memory, and among
    NaNs the last, as eager does.
    """

    def pool(
        value: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        index = torch.zeros((), dtype=torch.int32, device=value.device)
        step = 1
        every = _windows_of(value.shape[-spatial:], kernel, stride, padding, dilation, ceil_mode)
        for dim, windows in reversed(list(enumerate(every, -spatial))):
            index = index + step * _positions(windows.length, dim, value.device)
            value, index = _maximum_along(value, index, dim, windows)
            step = step * windows.length
        return value, index.to(torch.int64).expand(value.shape)

    return pool


def _positions(length: int, dim: int, device: torch.device) -> Tensor:
    """Return the positions along ``dim``, which is negative, in a shape that broadcasts."""
    return torch.arange(length, dtype=torch.int32, device=device).view([-1] + [1] * (-dim - 1))


def _maximum_along(value: Tensor, index: Tensor, dim: int, windows: _Windows) -> tuple[Tensor, Tensor]:
    """Return the largest value of each window along ``dim``, and its element of ``index``."""
    ends = [0, 0] * (-dim - 1) + [windows.padding, windows.missing]
    least = -math.inf if value.is_floating_point() else torch.iinfo(value.dtype).min
    value = torch.nn.functional.pad(value, ends, value=least)
    # A window of negative infinity selects its first element that is not padding.
    before = [index.narrow(dim, -place % windows.dilation, 1) for place in range(windows.padding, 0, -1)]
    after = [index.narrow(dim, 0, 1)] * windows.missing
    index = torch.cat([*before, index, *after], dim) if before or after else index
    largest, chosen = windows.slice(value, dim, 0), windows.slice(index, dim, 0)
    for tap in range(1, windows.kernel):
        other = windows.slice(value, dim, tap)
        is_chosen = (other > largest) | (other != other)
        largest = torch.where(is_chosen, other, largest)
        chosen = torch.where(is_chosen, windows.slice(index, dim, tap), chosen)
    return largest, chosen


def maximum_gradient(spatial: int) -> Callable[..., Tensor]:
    """Return a function that computes ``aten::max_pool*d_with_indices_backward`` of ``spatial`` dimensions."""

    def gradient_of(
        gradient: Tensor,
        value: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        lengths = value.shape[-spatial:]
        every = _windows_of(lengths, kernel, stride, padding, dilation, ceil_mode)
        # The index relative to the window's first element, which may be padding.
        steps = [math.prod(lengths[dim + 1 :]) for dim in range(spatial)]
        relative = indices.to(torch.int32)
        for dim, (windows, step) in enumerate(zip(every, steps, strict=True), -spatial):
            starts = _positions(windows.results, dim, value.device) * windows.stride - windows.padding
            relative = relative - step * starts

        def at_taps(taps: Sequence[int], parts: Sequence[Tensor]) -> Tensor:
            gradient, relative = parts
            place = sum(step * tap * w.dilation for step, tap, w in zip(steps, taps, every, strict=True))
            return torch.where(relative == place, gradient, 0)

        return _spread([gradient, relative], [0, -1], every, at_taps)

    return gradient_of


def average_gradient(spatial: int) -> Callable[..., Tensor]:
    """Return a function that computes ``aten::avg_pool*d_backward`` of ``spatial`` dimensions."""

    def gradient_of(
        gradient: Tensor,
        value: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        every = _windows_of(value.shape[-spatial:], kernel, stride, padding, [1], ceil_mode)
        counts = [_counts(w, dim, value.device, count_include_pad) for dim, w in enumerate(every, -spatial)]
        divisor = math.prod(counts) if divisor_override is None else divisor_override
        share = torch.div(gradient, divisor, rounding_mode=None if gradient.is_floating_point() else "trunc")
        return _spread([share], [0], every, lambda _, parts: parts[0])

    return gradient_of


def _counts(windows: _Windows, dim: int, device: torch.device, includes_padding: bool) -> Tensor:
    """Return the number of elements of each window along ``dim``."""
    start = _positions(windows.results, dim, device) * windows.stride - windows.padding
    end = (start + windows.kernel).clamp(max=windows.length + windows.padding)
    return end - start if includes_padding else end.clamp(max=windows.length) - start.clamp(min=0)


def _spread(
    parts: Sequence[Tensor],
    paddings: Sequence[int],
    every: Sequence[_Windows],
    at_taps: Callable[[Sequence[int], Sequence[Tensor]], Tensor],
) -> Tensor:
    """Return a tensor of the pooled size, each element the sum of ``at_taps`` over the windows that contain it.

    Elements with the same remainder of position and stride are in the same taps of their windows. They are one block.

    Args:
        parts: tensors with an element for each window.
        paddings: for each part, the element of windows that do not exist.
        every: the windows of each dimension.
        at_taps: a function of a tap of each dimension, and of the parts of the windows.
    """
    spatial = len(every)
    # Windows before the first one and after the last one that an element could be in.
    behind = [(w.kernel - 1) * w.dilation // w.stride for w in every]
    counts = [-(-(w.length + w.padding) // w.stride) for w in every]
    ends = [(b, max(0, n - w.results)) for b, n, w in zip(behind, counts, every, strict=True)]
    flat_ends = [n for pair in reversed(ends) for n in pair]
    padded = [torch.nn.functional.pad(part, flat_ends, value=p) for part, p in zip(parts, paddings, strict=True)]

    def block(remainders: Sequence[int]) -> Tensor:
        taps = [
            [t for t in range(w.kernel) if t * w.dilation % w.stride == r]
            for w, r in zip(every, remainders, strict=True)
        ]
        terms = []
        for chosen in itertools.product(*taps):
            moved = list(padded)
            for dim, (tap, w) in enumerate(zip(chosen, every, strict=True), -spatial):
                start = behind[dim] - tap * w.dilation // w.stride
                moved = [part.narrow(dim, start, counts[dim]) for part in moved]
            terms.append(at_taps(chosen, moved))
        shape = [*parts[0].shape[:-spatial], *counts]
        return functools.reduce(torch.add, terms) if terms else parts[0].new_zeros(shape)

    blocks = [block(remainders) for remainders in itertools.product(*(range(w.stride) for w in every))]
    lead, strides = blocks[0].dim() - spatial, [w.stride for w in every]
    result = interleave(torch.stack(blocks, lead).unflatten(lead, strides), lead, strides)
    for dim, w in enumerate(every, -spatial):
        result = result.narrow(dim, w.padding, w.length)
    return result


def adaptive_average_gradient(spatial: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that computes ``aten::_adaptive_avg_pool*d_backward``, one dimension at a time."""

    def gradient_of(gradient: Tensor, value: Tensor) -> Tensor:
        for dim in range(-spatial, 0):
            gradient = _spread_adaptive(gradient, dim, value.size(dim))
        return gradient

    return gradient_of


def _spread_adaptive(gradient: Tensor, dim: int, length: int) -> Tensor:
    size, place = gradient.size(dim), gradient.dim() + dim
    if length % size == 0:
        shape = [*gradient.shape[: place + 1], length // size, *gradient.shape[place + 1 :]]
        return (gradient / (length // size)).unsqueeze(place + 1).expand(shape).flatten(place, place + 1)
    start, end = _bounds(length, size, gradient.device)
    places = torch.arange(length, device=gradient.device)
    shares = ((places >= start) & (places < end)).to(gradient.dtype) / (end - start)
    return (gradient.movedim(dim, -1) @ shares).movedim(-1, dim)
