"""Recipes of the weights of an ONNX model, in terms of a program's parameters.

The compiler creates recipes; the process that has the parameters evaluates them. A recipe is data (nested operations of
the table below), so that an artifact can contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """Operation on the values of ``operands``, with ``settings`` (numbers, or tuples of numbers)."""

    operation: str
    operands: tuple[Recipe, ...] = ()
    settings: tuple[Any, ...] = ()

    def to_json(self) -> list[object]:
        return [self.operation, [operand.to_json() for operand in self.operands], list(self.settings)]

    @classmethod
    def from_json(cls, raw: Sequence[Any]) -> Recipe:
        operation, operands, settings = raw
        frozen = (tuple(setting) if isinstance(setting, list) else setting for setting in settings)
        return cls(operation, tuple(cls.from_json(operand) for operand in operands), tuple(frozen))

    def arguments(self) -> set[int]:
        """Return the positions of the program's arguments that the recipe uses."""
        positions = {self.settings[0]} if self.operation == "argument" else set()
        return positions.union(*(operand.arguments() for operand in self.operands))


def evaluate(recipe: Recipe, arguments: Mapping[int, Array]) -> Array:
    """Return the weight as a dense float32 array.

    ``arguments`` are the program's parameters by their position among its arguments.
    """
    return np.ascontiguousarray(_value(recipe, arguments), dtype=np.float32)


def _value(recipe: Recipe, arguments: Mapping[int, Array]) -> Any:
    if recipe.operation == "argument":
        return arguments[recipe.settings[0]]
    operands = [_value(operand, arguments) for operand in recipe.operands]
    return _OPERATIONS[recipe.operation](*operands, *recipe.settings)


def _factor(variance: Any, *rest: Any) -> Any:
    """Return the factor of a batch norm for each channel: ``weight / √(variance + eps)``.

    A missing weight counts as 1.
    """
    *weight, eps = rest
    factor = 1 / np.sqrt(variance.astype(np.float64) + eps)
    return factor * weight[0] if weight else factor


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "literal": lambda values, shape: np.array(values, dtype=np.float32).reshape(shape),
    "filled": np.full,
    "permuted": np.transpose,
    "reshaped": np.reshape,
    "expanded": np.broadcast_to,
    "sliced": lambda weight, axis, *bounds: weight[(slice(None),) * axis + (slice(*bounds),)],
    "sum": np.add,
    "difference": np.subtract,
    "product": np.multiply,
    "factor": _factor,
    # The term that a batch norm adds to each scaled channel.
    "term": lambda mean, factor, bias=0: bias - mean * factor,
    # Each slice of the weight along the axis is multiplied by its factor.
    "scaled": lambda weight, factor, axis: (
        weight * factor.reshape([-1 if d == axis else 1 for d in range(weight.ndim)])
    ),
}


@dataclass(frozen=True)
class Weight:
    """Tensor of a program that depends only on parameters."""

    shape: tuple[int, ...]
    recipe: Recipe

    @classmethod
    def of_argument(cls, position: int, shape: Sequence[int]) -> Weight:
        return cls(tuple(shape), Recipe("argument", (), (position,)))

    @classmethod
    def of_numbers(cls, values: Sequence[float], shape: Sequence[int]) -> Weight:
        return cls(tuple(shape), Recipe("literal", (), (tuple(values), tuple(shape))))

    @classmethod
    def full(cls, value: float, shape: Sequence[int]) -> Weight:
        return cls(tuple(shape), Recipe("filled", (), (tuple(shape), value)))

    def permute(self, order: Sequence[int]) -> Weight:
        shape = tuple(self.shape[axis] for axis in order)
        return Weight(shape, Recipe("permuted", (self.recipe,), (tuple(order),)))

    def reshape(self, shape: Sequence[int]) -> Weight:
        return Weight(tuple(shape), Recipe("reshaped", (self.recipe,), (tuple(shape),)))

    def expand(self, shape: Sequence[int]) -> Weight:
        return Weight(tuple(shape), Recipe("expanded", (self.recipe,), (tuple(shape),)))

    def slice(self, axis: int, start: int, stop: int, step: int, shape: Sequence[int]) -> Weight:
        return Weight(tuple(shape), Recipe("sliced", (self.recipe,), (axis, start, stop, step)))

    def combine(self, operation: str, other: Weight, shape: Sequence[int]) -> Weight:
        """Return the ``"sum"``, ``"difference"`` or ``"product"`` of both, broadcast to ``shape``."""
        return Weight(tuple(shape), Recipe(operation, (self.recipe, other.recipe)))


@dataclass(frozen=True)
class BatchNorm:
    """Batch norm with running statistics: ``x · factor + term`` for each channel."""

    weight: Weight | None
    bias: Weight | None
    mean: Weight
    variance: Weight
    eps: float

    def _factor(self) -> Recipe:
        weight = () if self.weight is None else (self.weight.recipe,)
        return Recipe("factor", (self.variance.recipe, *weight), (self.eps,))

    def fold_into_weight(self, weight: Weight, axis: int) -> Weight:
        """Return the weight of the preceding anchor with the norm folded in; its output channels are along ``axis``."""
        return Weight(weight.shape, Recipe("scaled", (weight.recipe, self._factor()), (axis,)))

    def fold_into_bias(self, bias: Weight | None) -> Weight:
        """Return the bias of the preceding anchor with the norm folded in."""
        factor = self._factor()
        norm_bias = () if self.bias is None else (self.bias.recipe,)
        term = Recipe("term", (self.mean.recipe, factor, *norm_bias))
        if bias is None:
            return Weight(self.mean.shape, term)
        return Weight(self.mean.shape, Recipe("sum", (Recipe("product", (bias.recipe, factor)), term)))
