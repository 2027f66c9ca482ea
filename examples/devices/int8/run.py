"""Quantise a small network for a device that has integers only, and run it there by two frontends."""

from __future__ import annotations

import torch
from int8_device import Int8Device
from rich import print as show
from torch import Tensor, nn

import torchmdla


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.branch = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.relu(self.branch(x) + x).mean((2, 3)))


torch.manual_seed(0)
torchmdla.devices.register(Int8Device())
torchmdla.enable(device="int8")
model = Net().eval()
images, others = ([torch.randn(4, 3, 16, 16) for _ in range(8)] for _ in range(2))

quantised = torchmdla.quantise(model, images)
show(quantised)
show(quantised.compare(others))

x = others[0]
with torch.no_grad():
    expected = quantised.module(x)
    # The step of the results: the scale of the last layer.
    step = float(torch.diff(expected.unique()).min())
    frontends = {
        "torch.export": torchmdla.compile(quantised.module, x, frontend="export"),
        "torch.compile": torch.compile(quantised.module, backend="torchmdla", options={"device": "int8"}),
    }
    for name, compiled in frontends.items():
        steps = ((compiled(x) - expected) / step).abs().round()
        print(
            f"{name:<14} {(steps == 0).double().mean():.0%} as eager, others differ by {int(steps.max())} step at most"
        )
print(f"fallbacks: {torchmdla.stats().fallbacks or 'none'}, left out: {torchmdla.stats().left_out or 'none'}")
