"""What each layer costs on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from torchmdla.devices.mdla.network import Network
from torchmdla.mdla.arguments import arguments_of, options_with
from torchmdla.mdla.calls import recorded
from torchmdla.mdla.measuring import Networks, figures
from torchmdla.mdla.printed import Printed, new_table, sizes_text


@dataclass(frozen=True)
class LayerReport:
    """What a layer costs: clock ``cycles``, multiply-accumulates, the ``utilisation`` of all of the device's
    multipliers (0 to 1), bytes from and to the device's memory, and ``milliseconds``."""

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


@dataclass(frozen=True)
class Report(Printed):
    """The layers in the order in which they run. Sums are over all of them."""

    layers: tuple[LayerReport, ...]

    @property
    def cycles(self) -> int:
        return sum(layer.cycles for layer in self.layers)

    @property
    def milliseconds(self) -> float:
        return sum(layer.milliseconds for layer in self.layers)

    @property
    def utilisation(self) -> float:
        """The mean over the cycles."""
        return sum(layer.utilisation * layer.cycles for layer in self.layers) / (self.cycles or 1)

    def table(self) -> Table:
        """Layer by layer, with the sums."""
        names = "layer", "operation", "shape", "cycles", "MACs", "utilisation", "bytes in", "bytes out", "ms"
        made = new_table("Layers on the device", *names)
        for layer in self.layers:
            made.add_row(layer.name, layer.kind, sizes_text(layer.shape), *_costs(layer))
        made.add_section()
        macs, loaded, stored = (
            sum(getattr(layer, name) for layer in self.layers) for name in ("macs", "bytes_loaded", "bytes_stored")
        )
        whole = self.cycles, macs, self.utilisation, loaded, stored, self.milliseconds
        made.add_row("total", "", "", *_costs(LayerReport("total", "", (), *whole, clusters=0)))
        return made


def report(model: Any, inputs: Any, **options: Any) -> Report:
    """What each layer of a model costs on the device, by the library's own count (of the emulator: its model of the
    board). What runs in PyTorch's interpreter is not in it.

    Args:
        model, inputs, **options: as for :func:`compare`.

    Raises:
        ValueError: the model has nothing that the device computes.
        TypeError: not a model, or no such option.
        DeviceError: the library fails, or does not tell figures.
    """
    with Networks(options_with(options)) as networks:
        _, calls = recorded(model, arguments_of(inputs), networks.run)
        return Report(tuple(layer for call in calls for layer in report_of(networks.network(call.group))))


def report_of(network: Network) -> list[LayerReport]:
    """The network's layers.

    Raises:
        DeviceError: the library does not tell figures.
    """
    return [
        LayerReport(
            figure["name"],
            figure["type"],
            tuple(figure["shape"]),
            figure["cycles"],
            figure["macs"],
            figure["utilisation"],
            figure["bytes_loaded"],
            figure["bytes_stored"],
            figure["milliseconds"],
            figure["clusters"],
        )
        for figure in figures(network)
    ]


def _costs(layer: LayerReport) -> list[str]:
    counts = f"{layer.cycles:,}", f"{layer.macs:,}", f"{layer.utilisation:.1%}"
    return [*counts, f"{layer.bytes_loaded:,}", f"{layer.bytes_stored:,}", f"{layer.milliseconds:.4f}"]
