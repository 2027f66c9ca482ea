"""Inputs of a program that is captured but not run: tensors, specs of tensors, and which of their sizes vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# The size that a varying dimension has while the program is captured: large enough for most networks' strides. All have
# the same, so that sizes that have to be equal are.
_EXAMPLE_SIZE = 32


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor, in place of a tensor.

    Args:
        shape: sizes; ``None`` or ``-1`` where a size may vary.
        dtype: of the elements.

    Raises:
        ValueError: a size below -1.
    """

    shape: Sequence[int | None]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(None if size == -1 else size for size in self.shape))
        if any(size is not None and size < 0 for size in self.shape):
            raise ValueError(f"a size is a number from 0 on, None or -1; got {self.shape}")

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """A spec written as ``1x3x224x224``, ``?x128:int64`` or ``:bool`` (no dimensions); float32 where it says none.

        Raises:
            ValueError: it is not written so; says what is wrong.
        """
        sizes, _, dtype = text.partition(":")
        found = getattr(torch, dtype or "float32", None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{text!r}: there is no dtype {dtype!r}")
        try:
            shape = [None if size in ("?", "-1") else int(size) for size in sizes.split("x")] if sizes else []
            return cls(shape, found)
        except ValueError:
            raise ValueError(f"{text!r}: sizes are written as 1x3x224x224, with ? for one that varies") from None

    def example(self) -> torch.Tensor:
        """A tensor like it: ones, or zeros for integers, which may be indices."""
        sizes = [_EXAMPLE_SIZE if size is None else size for size in self.shape]
        return (torch.ones if self.dtype.is_floating_point else torch.zeros)(sizes, dtype=self.dtype)


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call.

    ``values`` has a tensor for every spec. ``dynamic_shapes`` says which sizes vary, as ``torch.export.export`` takes
    it for positional arguments; None if none does.
    """

    values: tuple[Any, ...]
    dynamic_shapes: Any = None

    def in_one_argument(self, names: Sequence[str]) -> Inputs:
        """The same inputs for a module that takes ``*inputs``, in place of one whose arguments have ``names``."""
        shapes = self.dynamic_shapes
        if isinstance(shapes, Mapping):
            shapes = tuple(shapes.get(name) for name in names[: len(self.values)])
        return Inputs(self.values, (shapes,))


def read_inputs(inputs: Sequence[Any], dynamic_shapes: Any = None) -> Inputs:
    """Makes tensors of specs, and collects the sizes that vary: of specs, and of marked tensors.

    Args:
        inputs: tensors, specs, and what else a call takes, nested.
        dynamic_shapes: as in ``torch.export.export``; then marks do not count.

    Raises:
        TypeError: there are both ``dynamic_shapes`` and specs with sizes that vary.
    """
    varying = pytree.tree_map(_varying, tuple(inputs))
    values = pytree.tree_map(lambda leaf: leaf.example() if isinstance(leaf, TensorSpec) else leaf, tuple(inputs))
    found = [leaf for leaf in pytree.tree_leaves(varying) if leaf]
    if dynamic_shapes is not None:
        if any(isinstance(leaf, TensorSpec) and None in leaf.shape for leaf in pytree.tree_leaves(tuple(inputs))):
            raise TypeError("either specs or dynamic_shapes say which sizes vary, not both")
        return Inputs(values, dynamic_shapes)
    if not found:
        return Inputs(values)
    return Inputs(values, pytree.tree_map(lambda dims: _dims(dims) if dims else None, varying))


def _varying(leaf: Any) -> frozenset[int]:
    """The dimensions of an input whose size varies."""
    if isinstance(leaf, TensorSpec):
        return frozenset(dim for dim, size in enumerate(leaf.shape) if size is None)
    # torch._dynamo.mark_dynamic leaves them on the tensor.
    return frozenset(getattr(leaf, "_dynamo_dynamic_indices", ()))


def _dims(dims: frozenset[int]) -> dict[int, Any]:
    return dict.fromkeys(dims, torch.export.Dim.DYNAMIC)
