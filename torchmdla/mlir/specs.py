"""Inputs of a program that is captured but not run, and their sizes that vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchmdla.importer.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Inputs:
    """Inputs of one call.

    ``values`` has a tensor for every spec. ``dynamic_shapes`` specifies the sizes that vary, in the form of
    ``torch.export.export`` for positional arguments. It has the value None if no size varies.
    """

    values: tuple[Any, ...]
    dynamic_shapes: Any = None

    def pack_in_one_argument(self, names: Sequence[str]) -> Inputs:
        """Return the same inputs for a module with the parameter ``*inputs``.

        ``names`` are the parameters of the original module.
        """
        shapes = self.dynamic_shapes
        if isinstance(shapes, Mapping):
            shapes = tuple(shapes.get(name) for name in names[: len(self.values)])
        return Inputs(self.values, (shapes,))


def read_inputs(inputs: Sequence[Any], dynamic_shapes: Any = None) -> Inputs:
    """Replace specs by tensors, and collect the varying sizes of specs and marked tensors.

    Args:
        inputs: tensors, specs, and other arguments of a call, nested.
        dynamic_shapes: as in ``torch.export.export``; marks are then ignored.

    Raises:
        TypeError: there are both ``dynamic_shapes`` and specs with sizes that vary.
    """
    varying = pytree.tree_map(_dynamic_dims, tuple(inputs))
    values = pytree.tree_map(lambda leaf: leaf.example() if isinstance(leaf, TensorSpec) else leaf, tuple(inputs))
    dynamic = [leaf for leaf in pytree.tree_leaves(varying) if leaf]
    if dynamic_shapes is not None:
        if any(isinstance(leaf, TensorSpec) and None in leaf.shape for leaf in pytree.tree_leaves(tuple(inputs))):
            raise TypeError("use either specs or dynamic_shapes for sizes that vary, not both")
        return Inputs(values, dynamic_shapes)
    if not dynamic:
        return Inputs(values)
    return Inputs(values, pytree.tree_map(lambda dims: dict.fromkeys(dims, torch.export.Dim.DYNAMIC) or None, varying))


def _dynamic_dims(leaf: Any) -> frozenset[int]:
    """Return the dimensions of an input whose size varies."""
    if isinstance(leaf, TensorSpec):
        return frozenset(dim for dim, size in enumerate(leaf.shape) if size is None)
    # torch._dynamo.mark_dynamic stores them on the tensor.
    return frozenset(getattr(leaf, "_dynamo_dynamic_indices", ()))
