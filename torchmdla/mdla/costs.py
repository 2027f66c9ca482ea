"""Cost of each layer on the device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from rich.table import Table

from torchmdla.devices.mdla.network import Network
from torchmdla.mdla.calls import options_with, record_calls
from torchmdla.mdla.measuring import Networks, figures
from torchmdla.quantisation.data import arguments_of
from torchmdla.report.printed import Printable, new_table, sizes_text


@dataclass(frozen=True)
class LayerReport:
    """Cost of a layer.

    ``cycles`` are clock cycles, and ``macs`` are multiply-accumulates. ``utilisation`` is the fraction of the device's
    multipliers in use (0 to 1). ``bytes_loaded`` and ``bytes_stored`` are the bytes from and to the device's memory.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    cycles: int
    macs: int
    utilisation: float
    bytes_loaded: int
    bytes_stored: int
    milliseconds: float
    clusters: int


# The figures that follow the shape.
_FIGURES = tuple(field.name for field in fields(LayerReport))[3:]


@dataclass(frozen=True)
class Report(Printable):
    """Layers in the order in which they run; sums are over all layers."""

    layers: tuple[LayerReport, ...]

    @property
    def cycles(self) -> int:
        return sum(layer.cycles for layer in self.layers)

    @property
    def milliseconds(self) -> float:
        return sum(layer.milliseconds for layer in self.layers)

    @property
    def utilisation(self) -> float:
        """Return the mean over the cycles."""
        return sum(layer.utilisation * layer.cycles for layer in self.layers) / (self.cycles or 1)

    def table(self) -> Table:
        """Return the table of the layers, with the sums."""
        names = "layer", "operation", "shape", "cycles", "MACs", "utilisation", "bytes in", "bytes out", "ms"
        layer_table = new_table("Layers on the device", *names)
        for layer in self.layers:
            layer_table.add_row(layer.name, layer.kind, sizes_text(layer.shape), *_costs(layer))
        layer_table.add_section()
        macs, loaded, stored = (
            sum(getattr(layer, name) for layer in self.layers) for name in ("macs", "bytes_loaded", "bytes_stored")
        )
        whole = self.cycles, macs, self.utilisation, loaded, stored, self.milliseconds
        layer_table.add_row("total", "", "", *_costs(LayerReport("total", "", (), *whole, clusters=0)))
        return layer_table


def report(model: Any, inputs: Any, **options: Any) -> Report:
    """Return the cost of each layer of a model on the device, as counted by the library.

    The emulator counts with its model of the board. Operators that run in PyTorch's interpreter are not included.

    Args:
        model: as for :func:`compare`.
        inputs: as for :func:`compare`.
        **options: as for :func:`compare`.

    Raises:
        ValueError: the device computes no part of the model.
        TypeError: ``model`` is not a model, or an option does not exist.
        DeviceError: the library fails, or does not report figures.
    """
    with Networks(options_with(options)) as networks:
        _, calls = record_calls(model, arguments_of(inputs), networks.run)
        return Report(tuple(layer for call in calls for layer in report_of(networks.network(call.group))))


def report_of(network: Network) -> list[LayerReport]:
    """Return the reports of the network's layers.

    Raises:
        DeviceError: the library does not report figures.
    """
    return [
        LayerReport(figure["name"], figure["type"], tuple(figure["shape"]), *(figure[name] for name in _FIGURES))
        for figure in figures(network)
    ]


def _costs(layer: LayerReport) -> list[str]:
    counts = f"{layer.cycles:,}", f"{layer.macs:,}", f"{layer.utilisation:.1%}"
    return [*counts, f"{layer.bytes_loaded:,}", f"{layer.bytes_stored:,}", f"{layer.milliseconds:.4f}"]
