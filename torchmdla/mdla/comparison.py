"""Errors of each layer against float."""

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
from torchmdla.mdla.calls import arguments_of, options_with, record_calls
from torchmdla.mdla.measuring import FLOAT, Layer, Networks
from torchmdla.mdla.printed import Printable, new_table, sizes_text


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
    """Absolute errors of a model on the device.

    Attributes:
        mean: mean error of all elements of the results against PyTorch's.
        maximum: maximum error of these elements.
        largest: largest magnitude in PyTorch's results.
        agreement: fraction of the rows of the results (along the last dimension) whose largest element has the same
            index as PyTorch's. For a classifier this is top-1 agreement.
        layers: errors of each layer against the same layer in float32, in the order in which they run. They include the
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


def compare(model: Any, inputs: Any, **options: Any) -> Comparison:
    """Run a model on the device and in float, and return the errors of each layer and of the results.

    Layers are the nodes of the groups' ONNX models. A batch norm is part of the layer that it was folded into. A second
    binary has the results of the layers as outputs. They are compared with the emulator's float32 results. The results
    of the model are compared with PyTorch's.

    Args:
        model: as for :func:`calibrate`.
        inputs: a tensor, or a tuple or list of a call's arguments.
        **options: options of the device that replace those in use.

    Raises:
        ValueError: the device computes no part of the model, or the model has no floating-point results.
        TypeError: ``model`` is not a model, or an option does not exist.
        DeviceError: the library fails.
    """
    arguments = arguments_of(inputs)
    with torch.no_grad():
        actual, layers = _run_in_layers(model, arguments, options_with(options))
        _, float_layers = _run_in_layers(model, arguments, FLOAT)
        with api.enabled(False):
            expected = model(*arguments)
    errors = [_layer_error(result, other) for result, other in zip(layers, float_layers, strict=True)]
    pairs = [
        (result.double(), other.double())
        for result, other in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True)
        if isinstance(other, Tensor) and other.is_floating_point() and other.numel()
    ]
    if not pairs:
        raise ValueError("the model has no floating-point results to compare")
    distance = torch.cat([(result - other).abs().flatten() for result, other in pairs])
    # For each row, whether the largest element has the same index.
    places = ([torch.atleast_1d(tensor).argmax(-1).flatten() for tensor in pair] for pair in pairs)
    same = torch.cat([torch.eq(*pair) for pair in places])
    return Comparison(
        float(distance.mean()),
        float(distance.max()),
        max(float(other.abs().max()) for _, other in pairs),
        float(same.double().mean()),
        tuple(errors),
    )


def _run_in_layers(model: Any, inputs: Sequence[Any], options: Options) -> tuple[Any, list[Layer]]:
    """Return the results, computed with ``options``, and the results of each layer."""
    with Networks(options) as networks:
        results, calls = record_calls(model, inputs, networks.run)
        return results, [layer for call in calls for layer in networks.layers(call.group, call.inputs)]


def _layer_error(actual: Layer, expected: Layer) -> LayerError:
    error = np.abs(actual.value.astype(np.float64) - expected.value)
    largest = float(np.abs(expected.value).max())
    return LayerError(actual.name, actual.kind, actual.value.shape, float(error.mean()), float(error.max()), largest)
