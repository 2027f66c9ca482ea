"""Number formats from data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table
from tqdm import tqdm

from torchmdla.devices.mdla import calibration
from torchmdla.mdla.arguments import arguments_of, options_with, positions_of
from torchmdla.mdla.calls import check_any, copy_of
from torchmdla.mdla.measuring import FLOAT, Networks, figures
from torchmdla.mdla.printed import Printed, new_table, sizes_text
from torchmdla.mdla.recording import Group, recording


@dataclass(frozen=True)
class LayerFormat:
    """The number format of a layer's results: ``fraction`` bits of ``8 * element_bytes`` are behind the point."""

    name: str
    kind: str
    shape: tuple[int, ...]
    element_bytes: int
    fraction: int


@dataclass(frozen=True)
class Calibration(Printed):
    """The formats that the library chose.

    Attributes:
        samples: calls of groups that they were chosen from.
        layers: the layers of all groups, in the order in which they run.
    """

    samples: int
    layers: tuple[LayerFormat, ...]

    def table(self) -> Table:
        """Layer by layer."""
        made = new_table(
            f"Number formats from {self.samples} samples", "layer", "operation", "shape", "bits", "fraction"
        )
        for layer in self.layers:
            bits = str(8 * layer.element_bytes)
            made.add_row(layer.name, layer.kind, sizes_text(layer.shape), bits, str(layer.fraction))
        return made


def calibrate(model: Any, data: Iterable[Any], *, batches: int | None = None, **options: Any) -> Calibration:
    """Chooses the formats of ``precision="variable"`` by what a model computes from ``data``.

    The inputs of its groups are kept in this process, copied, for all later compilations of these groups with that
    precision; formats hold for inputs of the sizes that they were chosen with, so the batches need the size that the
    model is run with. Calibrating again adds to what is there.

    Args:
        model: ``nn.Module`` in eval mode, function, or TorchScript program, as :func:`torchmdla.compile` takes it.
        data: a ``DataLoader`` or other iterable of batches: a float32 tensor, or a tuple or list of a call's arguments
            of which those that the model does not take (labels) are left out.
        batches: take no more than so many.
        **options: options of the device that are to be others than those in use.

    Returns:
        The formats of each layer.

    Raises:
        ValueError: there is no batch, or the model has nothing that the device computes.
        TypeError: not a model, or no such option.
        DeviceError: the library fails.
    """
    chosen = replace(options_with(options), precision="variable")
    groups: dict[tuple[str, bytes], Group] = {}
    samples = 0
    with Networks(FLOAT) as networks, recording(networks.run) as recorder, torch.no_grad():
        scripted = None
        for inputs in _batches(model, data, batches):
            if scripted is None:
                scripted = copy_of(model, inputs)
            calls = recorder.calls_of(scripted, inputs)[1]
            for call in calls:
                calibration.add_sample(call.group.program, call.inputs)
                groups[call.group.program.model_key, call.group.model] = call.group
            samples += len(calls)
    if scripted is None:
        raise ValueError("there is nothing to calibrate with: no batches")
    check_any(groups)
    layers: list[LayerFormat] = []
    with Networks(chosen) as networks:
        for group in tqdm(groups.values(), desc="torchmdla: choosing formats", unit="group", disable=None, leave=False):
            layers += [_format(figure) for figure in figures(networks.network(group))]
    return Calibration(samples, tuple(layers))


def _batches(model: Any, data: Iterable[Any], batches: int | None) -> Iterable[tuple[Any, ...]]:
    taken = positions_of(model)
    bar = tqdm(data, desc="torchmdla: calibrating", unit="batch", disable=None, leave=False)
    for number, batch in enumerate(bar):
        if number == batches:
            return
        yield arguments_of(batch)[:taken]


def _format(figure: dict[str, Any]) -> LayerFormat:
    return LayerFormat(
        figure["name"], figure["type"], tuple(figure["shape"]), figure["element_bytes"], figure["fraction"]
    )
