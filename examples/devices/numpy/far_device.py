"""Device of this folder behind a slow link, with a cost model: only calls that earn their transfers run on it."""

from __future__ import annotations

from numpy_device import NumpyDevice

from torchmdla.devices import CostModel, Node, NodeTypes
from torchmdla.devices.roofline import operations

# Floating-point operations in a second, bytes of the link in a second, and seconds of a transfer and of a launch.
RATE, BANDWIDTH, LATENCY = 1e13, 1e10, 1e-5


class FarDevice(NumpyDevice, CostModel):
    name = "far"

    def call_seconds(self, node: Node, types: NodeTypes) -> float:
        return operations(node, types) / RATE

    @property
    def launch_seconds(self) -> float:
        return LATENCY

    @property
    def transfer_seconds(self) -> float:
        return LATENCY

    @property
    def transfer_bandwidth(self) -> float:
        return BANDWIDTH
