"""Number formats from data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table
from tqdm import tqdm

from torchmdla.devices.mdla import calibration
from torchmdla.mdla.calls import check_any, copy_of, options_with
from torchmdla.mdla.measuring import FLOAT, Networks, figures
from torchmdla.mdla.recording import Group, recording
from torchmdla.quantisation.data import arguments_of, batches_of, positions_of
from torchmdla.report.printed import Printable, new_table, sizes_text


@dataclass(frozen=True)
class LayerFormat:
    """Number format of a layer's results: ``fraction`` of the ``8 * element_bytes`` bits are after the point."""

    name: str
    kind: str
    shape: tuple[int, ...]
    element_bytes: int
    fraction: int


@dataclass(frozen=True)
class Calibration(Printable):
    """Formats that the library chose.

    Attributes:
        samples: number of group calls that the formats were chosen from.
        layers: layers of all groups, in the order in which they run.
    """

    samples: int
    layers: tuple[LayerFormat, ...]

    def table(self) -> Table:
        """Return the table of the layers."""
        layer_table = new_table(
            f"Number formats from {self.samples} samples", "layer", "operation", "shape", "bits", "fraction"
        )
        for layer in self.layers:
            bits = str(8 * layer.element_bytes)
            layer_table.add_row(layer.name, layer.kind, sizes_text(layer.shape), bits, str(layer.fraction))
        return layer_table


def calibrate(model: Any, data: Iterable[Any], *, batches: int | None = None, **options: Any) -> Calibration:
    """Choose the formats of ``precision="variable"`` from the values that a model computes for ``data``.

    Copies of the inputs of the groups are kept in this process. All later compilations of these groups with that
    precision use them. Formats are valid for inputs of the sizes that they were chosen with. The batches therefore need
    the size that the model runs with. A further calibration adds to the existing inputs.

    Args:
        model: ``nn.Module`` in eval mode, function, or TorchScript program, as for :func:`torchmdla.compile`.
        data: a ``DataLoader`` or other iterable of batches. A batch is a float32 tensor, or a tuple or list of a call's
            arguments. Extra arguments that the model does not have (labels) are ignored.
        batches: largest number of batches to use.
        **options: options of the device that replace those in use.

    Returns:
        The formats of each layer.

    Raises:
        ValueError: there is not any batch, or the device computes no part of the model.
        TypeError: ``model`` is not a model, or an option does not exist.
        DeviceError: the library fails.
    """
    chosen = replace(options_with(options), precision="variable")
    groups: dict[tuple[str, bytes], Group] = {}
    samples = 0
    taken = positions_of(model)
    with Networks(FLOAT) as networks, recording(networks.run) as recorder, torch.no_grad():
        scripted = None
        for batch in batches_of(data, batches, "calibrating"):
            inputs = arguments_of(batch)[:taken]
            if scripted is None:
                scripted = copy_of(model, inputs)
            calls = recorder.calls_of(scripted, inputs)[1]
            for call in calls:
                calibration.add_sample(call.group.program, call.inputs)
                groups[call.group.program.model_key, call.group.model] = call.group
            samples += len(calls)
    check_any(groups)
    layers: list[LayerFormat] = []
    with Networks(chosen) as networks:
        for group in tqdm(groups.values(), desc="torchmdla: choosing formats", unit="group", disable=None, leave=False):
            layers += [
                LayerFormat(
                    figure["name"], figure["type"], tuple(figure["shape"]), figure["element_bytes"], figure["fraction"]
                )
                for figure in figures(networks.network(group))
            ]
    return Calibration(samples, tuple(layers))
