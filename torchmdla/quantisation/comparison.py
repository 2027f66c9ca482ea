"""Errors of a model's results and of each layer's, against float."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree

from torchmdla.report.printed import Printable, new_table, sizes_text


@dataclass(frozen=True)
class LayerError:
    """Absolute errors of a layer's results, and the largest magnitude of the float results."""

    name: str
    kind: str
    shape: tuple[int, ...]
    mean: float
    maximum: float
    largest: float


@dataclass(frozen=True)
class Comparison(Printable):
    """Absolute errors of a model on a device, or of a quantised model.

    Attributes:
        mean: mean error of all elements of the results against PyTorch's.
        maximum: maximum error of these elements.
        largest: largest magnitude in PyTorch's results.
        agreement: fraction of the rows of the results (along the last dimension) whose largest element has the same
            index as PyTorch's. For a classifier this is top-1 agreement.
        layers: errors of each layer against the same layer in float, in the order in which they run. They include the
            errors of earlier layers.
    """

    mean: float
    maximum: float
    largest: float
    agreement: float
    layers: tuple[LayerError, ...]

    def table(self) -> Table:
        """Return the table of the layers."""
        layer_table = new_table(
            "Errors against float", "layer", "operation", "shape", "mean", "maximum", "largest value"
        )
        for layer in self.layers:
            errors = (f"{number:.3g}" for number in (layer.mean, layer.maximum, layer.largest))
            layer_table.add_row(layer.name, layer.kind, sizes_text(layer.shape), *errors)
        layer_table.caption = str(self)
        return layer_table

    def __str__(self) -> str:
        return f"Mean/max error compared to pytorch are {self.mean:.6g} {self.maximum:.6g}"


@dataclass
class _Errors:
    """Sum and extremes of the absolute errors of tensors that are compared one after the other."""

    total: float = 0.0
    count: int = 0
    maximum: float = 0.0
    largest: float = 0.0

    def add(self, actual: Tensor, expected: Tensor) -> None:
        if expected.numel():
            distance = (actual.double() - expected.double()).abs()
            self.total += float(distance.sum())
            self.count += distance.numel()
            self.maximum = max(self.maximum, float(distance.max()))
            self.largest = max(self.largest, float(expected.abs().max()))

    @property
    def mean(self) -> float:
        return self.total / (self.count or 1)


@dataclass
class ErrorCollector:
    """Errors of several calls of a model, which :meth:`comparison` sums up."""

    _results: _Errors = field(default_factory=_Errors)
    _rows: int = 0
    _agreeing: int = 0
    _layers: dict[tuple[int, str, str], tuple[tuple[int, ...], _Errors]] = field(default_factory=dict)

    def add_results(self, actual: Any, expected: Any) -> None:
        """Add the results of a call, which may be nested, and PyTorch's."""
        for result, other in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
            if isinstance(other, Tensor) and other.is_floating_point() and other.numel():
                self._results.add(result, other)
                same = torch.eq(*(torch.atleast_1d(tensor).argmax(-1).flatten() for tensor in (result, other)))
                self._rows += same.numel()
                self._agreeing += int(same.sum())

    def add_layer(self, place: int, name: str, kind: str, actual: Tensor, expected: Tensor) -> None:
        """Add the results of the layer at ``place`` in the order of the layers."""
        layer = self._layers.setdefault((place, name, kind), (tuple(expected.shape), _Errors()))
        layer[1].add(actual, expected)

    def comparison(self) -> Comparison:
        """Return the errors of all calls.

        Raises:
            ValueError: no floating-point results were added.
        """
        if not self._results.count:
            raise ValueError("the model has no floating-point results to compare")
        layers = (
            LayerError(name, kind, shape, errors.mean, errors.maximum, errors.largest)
            for (_, name, kind), (shape, errors) in self._layers.items()
        )
        return Comparison(
            self._results.mean,
            self._results.maximum,
            self._results.largest,
            self._agreeing / self._rows,
            tuple(layers),
        )
