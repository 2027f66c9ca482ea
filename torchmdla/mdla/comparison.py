"""Errors against float, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree

from torchmdla import api
from torchmdla.devices.mdla.options import Options
from torchmdla.mdla.arguments import arguments_of, options_with
from torchmdla.mdla.calls import recorded
from torchmdla.mdla.measuring import FLOAT, Layer, Networks
from torchmdla.mdla.printed import Printed, new_table, sizes_text


@dataclass(frozen=True)
class LayerError:
    """Absolute errors of a layer's results, and the largest magnitude that float has there."""

    name: str
    kind: str
    shape: tuple[int, ...]
    mean: float
    maximum: float
    largest: float


@dataclass(frozen=True)
class Comparison(Printed):
    """Errors of a model on the device. All are absolute.

    Attributes:
        mean, maximum: of the results against PyTorch's, over all elements.
        largest: the largest magnitude in PyTorch's results.
        agreement: the part of the rows of the results (along the last dimension) whose largest element is where
            PyTorch's is: of a classifier, top-1 agreement.
        layers: of each layer against the same layers in float32, in the order in which they run. They include what
            comes from the layers before.
    """

    mean: float
    maximum: float
    largest: float
    agreement: float
    layers: tuple[LayerError, ...]

    def table(self) -> Table:
        """Layer by layer."""
        made = new_table("Errors against float", "layer", "operation", "shape", "mean", "maximum", "largest value")
        for layer in self.layers:
            errors = (f"{number:.3g}" for number in (layer.mean, layer.maximum, layer.largest))
            made.add_row(layer.name, layer.kind, sizes_text(layer.shape), *errors)
        made.caption = str(self)
        return made

    def __str__(self) -> str:
        return f"Mean/max error compared to pytorch are {self.mean:.6g} {self.maximum:.6g}"


def compare(model: Any, inputs: Any, **options: Any) -> Comparison:
    """Runs a model on the device and in float, and tells how far each layer and the results are apart.

    Layers are the nodes of the groups' ONNX models, a batch norm being part of the layer that it was folded into. Their
    results are read from a second binary, which has them as outputs. What they are compared with is the emulator's
    float32; the results of the model are compared with PyTorch's.

    Args:
        model: as for :func:`calibrate`.
        inputs: a tensor, or a tuple or list of a call's arguments.
        **options: options of the device that are to be others than those in use.

    Raises:
        ValueError: the model has nothing that the device computes, or no floating-point results.
        TypeError: not a model, or no such option.
        DeviceError: the library fails.
    """
    given = arguments_of(inputs)
    with torch.no_grad():
        made, layers = _run_in_layers(model, given, options_with(options))
        _, float_layers = _run_in_layers(model, given, FLOAT)
        with api.enabled(False):
            expected = model(*given)
    errors = [_layer_error(one, other) for one, other in zip(layers, float_layers, strict=True)]
    pairs = [
        (one.double(), other.double())
        for one, other in zip(pytree.tree_leaves(made), pytree.tree_leaves(expected), strict=True)
        if isinstance(other, Tensor) and other.is_floating_point() and other.numel()
    ]
    if not pairs:
        raise ValueError("the model has no floating-point results to compare")
    distance = torch.cat([(one - other).abs().flatten() for one, other in pairs])
    same = torch.cat([_same_place(one, other) for one, other in pairs])
    return Comparison(
        float(distance.mean()),
        float(distance.max()),
        max(float(other.abs().max()) for _, other in pairs),
        float(same.double().mean()),
        tuple(errors),
    )


def _same_place(one: Tensor, other: Tensor) -> Tensor:
    """Row by row, whether the largest element is at the same place."""
    places = [torch.atleast_1d(tensor).argmax(-1).flatten() for tensor in (one, other)]
    return torch.eq(places[0], places[1])


def _run_in_layers(model: Any, inputs: Sequence[Any], options: Options) -> tuple[Any, list[Layer]]:
    """The results, computed with ``options``, and those of each layer."""
    with Networks(options) as networks:
        results, calls = recorded(model, inputs, networks.run)
        return results, [layer for call in calls for layer in networks.layers(call.group, call.inputs)]


def _layer_error(made: Layer, expected: Layer) -> LayerError:
    error = np.abs(made.value.astype(np.float64) - expected.value)
    largest = float(np.abs(expected.value).max())
    return LayerError(made.name, made.kind, made.value.shape, float(error.mean()), float(error.max()), largest)
