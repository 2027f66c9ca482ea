"""Errors of each layer against float."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchmdla import api
from torchmdla.devices.mdla.options import Options
from torchmdla.mdla.calls import options_with, record_calls
from torchmdla.mdla.measuring import FLOAT, Layer, Networks
from torchmdla.quantisation.comparison import Comparison, ErrorCollector
from torchmdla.quantisation.data import arguments_of


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
    errors = ErrorCollector()
    errors.add_results(actual, expected)
    for place, (layer, other) in enumerate(zip(layers, float_layers, strict=True)):
        errors.add_layer(place, layer.name, layer.kind, torch.from_numpy(layer.value), torch.from_numpy(other.value))
    return errors.comparison()


def _run_in_layers(model: Any, inputs: Sequence[Any], options: Options) -> tuple[Any, list[Layer]]:
    """Return the results, computed with ``options``, and the results of each layer."""
    with Networks(options) as networks:
        results, calls = record_calls(model, inputs, networks.run)
        return results, [layer for call in calls for layer in networks.layers(call.group, call.inputs)]
