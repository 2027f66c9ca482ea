"""Inputs of a program that is captured but not run, and which of their sizes vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchmdla.importer.tensor_spec import TensorSpec


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
