"""Declarations of program inputs: each call of a program draws its inputs from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Draw:
    """Declaration of a tensor that is drawn later."""

    make: Callable[[torch.Generator], Tensor]

    def then(self, change: Callable[[Tensor], Tensor]) -> Draw:
        """Return a declaration that applies ``change`` to the drawn tensor, for example another memory layout."""
        return Draw(lambda generator: change(self.make(generator)))


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Declare normally distributed floats."""
    return Draw(lambda generator: torch.randn(shape, generator=generator, dtype=dtype))


def between(low: float, high: float, *shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Declare floats from ``low`` to ``high``."""
    return Draw(lambda generator: torch.rand(shape, generator=generator, dtype=dtype) * (high - low) + low)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> Draw:
    """Declare floats from 0.5 to 1.5."""
    return between(0.5, 1.5, *shape, dtype=dtype)


def integers(*shape: int, low: int = 0, high: int = 4, dtype: torch.dtype = torch.int64) -> Draw:
    """Declare integers from ``low`` to ``high - 1``."""
    return Draw(lambda generator: torch.randint(low, high, shape, generator=generator, dtype=dtype))


def booleans(*shape: int) -> Draw:
    """Declare True and False with equal probability."""
    return Draw(lambda generator: torch.rand(shape, generator=generator) > 0.5)


def booleans_of_any_byte(*shape: int) -> Draw:
    """Declare True and False with equal probability. True is any byte but 0, as in a view of other memory."""
    return Draw(
        lambda generator: (
            (torch.randint(1, 256, shape, generator=generator) * torch.randint(2, shape, generator=generator))
            .to(torch.uint8)
            .view(torch.bool)
        )
    )


def permutation(count: int) -> Draw:
    """Declare 0 to ``count - 1`` in random order."""
    return Draw(lambda generator: torch.randperm(count, generator=generator))


def channels_last(draw: Draw) -> Draw:
    """Make channels innermost in memory, for 4 or 5 dimensions."""
    return draw.then(
        lambda x: x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    )


def transposed(draw: Draw) -> Draw:
    """Exchange the first and the last dimension in memory."""
    return draw.then(lambda x: x.transpose(0, -1).contiguous().transpose(0, -1))


def strided(draw: Draw) -> Draw:
    """Use every second element of memory."""
    return draw.then(lambda x: torch.stack([x, x], -1)[..., 1])


def offset(draw: Draw) -> Draw:
    """Drop the first row, so that the tensor starts at an offset into its storage."""
    return draw.then(lambda x: x[1:])


def repeated(draw: Draw) -> Draw:
    """Repeat the first row, without a copy."""
    return draw.then(lambda x: x[:1].expand(x.shape) if x.dim() else x)


def overlapping(draw: Draw) -> Draw:
    """Make elements share memory: a step along any dimension moves by one element."""
    return draw.then(lambda x: x.flatten().as_strided(x.shape, [1] * x.dim()) if x.numel() else x)


def varied(draw: Draw) -> Draw:
    """Use a random memory layout for each call."""
    layouts = [draw, transposed(draw), strided(draw), strided(transposed(draw))]

    def make(generator: torch.Generator) -> Tensor:
        place = int(torch.randint(len(layouts), (), generator=generator))
        return layouts[place].make(generator)

    return Draw(make)


def expanded(draw: Draw, *sizes: int) -> Draw:
    """Broadcast to ``sizes`` without a copy."""
    return draw.then(lambda x: x.expand(sizes))


def draw_inputs(inputs: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Return the inputs of one call.

    Declarations are drawn, tensors are copied with their strides, other values are unchanged.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Draw):
            return leaf.make(generator)
        return copy_tensor(leaf) if isinstance(leaf, Tensor) else leaf

    result: tuple[Any, ...] = tree_map(draw_leaf, inputs)
    return result


def copy_tensor(tensor: Tensor) -> Tensor:
    """Return the values in new memory with the same layout, including gaps and repeated elements."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_quantized or not tensor.numel():
        return tensor.clone()
    memory = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    whole = tensor.as_strided((memory,), (1,)).clone()
    result = whole.as_strided(tensor.shape, tensor.stride())
    return result if tensor.is_conj() == result.is_conj() else tensor.clone()
