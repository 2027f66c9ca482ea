"""Which weights an ONNX model needs, as recipes over a program's parameters: made by the compiler, carried out where
the parameters are.

A recipe is data (nested operations of the table below), so that an artifact can hold it.
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
    """``operation`` of the ``operands``' values, and of ``settings`` (numbers, or tuples of them)."""

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
        """The program's arguments that it is made of."""
        own = {self.settings[0]} if self.operation == "argument" else set()
        return own.union(*(operand.arguments() for operand in self.operands))


def evaluate(recipe: Recipe, arguments: Mapping[int, Array]) -> Array:
    """The weight: dense, float32. ``arguments`` are the program's parameters by their position among its arguments."""
    return np.ascontiguousarray(_value(recipe, arguments), dtype=np.float32)


def _value(recipe: Recipe, arguments: Mapping[int, Array]) -> Any:
    if recipe.operation == "argument":
        return arguments[recipe.settings[0]]
    operands = [_value(operand, arguments) for operand in recipe.operands]
    return _OPERATIONS[recipe.operation](*operands, *recipe.settings)


def _literal(values: Sequence[float], shape: Sequence[int]) -> Any:
    return np.array(values, dtype=np.float32).reshape(shape)


def _factor(variance: Any, *rest: Any) -> Any:
    """What a batch norm multiplies a channel by: ``weight / √(variance + eps)``; without a weight it is 1."""
    *weight, eps = rest
    factor = 1 / np.sqrt(variance.astype(np.float64) + eps)
    return factor * weight[0] if weight else factor


def _term(mean: Any, factor: Any, *bias: Any) -> Any:
    """What a batch norm adds to a channel then."""
    return (bias[0] if bias else 0) - mean * factor


def _scaled(weight: Any, factor: Any, axis: int) -> Any:
    """With each slice along ``axis`` multiplied by its factor."""
    return weight * factor.reshape([-1 if d == axis else 1 for d in range(weight.ndim)])


def _sliced(weight: Any, axis: int, start: int, stop: int, step: int) -> Any:
    return weight[(slice(None),) * axis + (slice(start, stop, step),)]


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "literal": _literal,
    "filled": np.full,
    "permuted": np.transpose,
    "reshaped": np.reshape,
    "expanded": np.broadcast_to,
    "sliced": _sliced,
    "sum": np.add,
    "difference": np.subtract,
    "product": np.multiply,
    "factor": _factor,
    "term": _term,
    "scaled": _scaled,
}


@dataclass(frozen=True)
class Weight:
    """A tensor of a program that depends on parameters alone."""

    shape: tuple[int, ...]
    recipe: Recipe

    @classmethod
    def of_argument(cls, position: int, shape: Sequence[int]) -> Weight:
        return cls(tuple(shape), Recipe("argument", (), (position,)))

    @classmethod
    def of_numbers(cls, values: Sequence[float], shape: Sequence[int]) -> Weight:
        return cls(tuple(shape), Recipe("literal", (), (tuple(values), tuple(shape))))

    @classmethod
    def filled(cls, value: float, shape: Sequence[int]) -> Weight:
        return cls(tuple(shape), Recipe("filled", (), (tuple(shape), value)))

    def permuted(self, order: Sequence[int]) -> Weight:
        shape = tuple(self.shape[axis] for axis in order)
        return Weight(shape, Recipe("permuted", (self.recipe,), (tuple(order),)))

    def reshaped(self, shape: Sequence[int]) -> Weight:
        return Weight(tuple(shape), Recipe("reshaped", (self.recipe,), (tuple(shape),)))

    def expanded(self, shape: Sequence[int]) -> Weight:
        return Weight(tuple(shape), Recipe("expanded", (self.recipe,), (tuple(shape),)))

    def sliced(self, axis: int, start: int, stop: int, step: int, shape: Sequence[int]) -> Weight:
        return Weight(tuple(shape), Recipe("sliced", (self.recipe,), (axis, start, stop, step)))

    def combined(self, operation: str, other: Weight, shape: Sequence[int]) -> Weight:
        """The ``"sum"``, ``"difference"`` or ``"product"`` of both, broadcast to ``shape``."""
        return Weight(tuple(shape), Recipe(operation, (self.recipe, other.recipe)))


@dataclass(frozen=True)
class BatchNorm:
    """A batch norm by running statistics: ``x · factor + term`` for each channel."""

    weight: Weight | None
    bias: Weight | None
    mean: Weight
    variance: Weight
    eps: float

    def _factor(self) -> Recipe:
        weight = () if self.weight is None else (self.weight.recipe,)
        return Recipe("factor", (self.variance.recipe, *weight), (self.eps,))

    def into_weight(self, weight: Weight, axis: int) -> Weight:
        """The weight of an anchor before the norm, whose output channels are along ``axis``."""
        return Weight(weight.shape, Recipe("scaled", (weight.recipe, self._factor()), (axis,)))

    def into_bias(self, bias: Weight | None) -> Weight:
        """Its bias."""
        factor = self._factor()
        own = () if self.bias is None else (self.bias.recipe,)
        term = Recipe("term", (self.mean.recipe, factor, *own))
        if bias is None:
            return Weight(self.mean.shape, term)
        return Weight(self.mean.shape, Recipe("sum", (Recipe("product", (bias.recipe, factor)), term)))
