"""Run a convolutional network on a custom device that gets its programs in TOSA, and change its weights."""

from __future__ import annotations

import torch
from torch import nn
from tosa_device import TosaDevice

import torchmdla

torchmdla.devices.register(TosaDevice())
torchmdla.enable(device="numpy_tosa")
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10), nn.Softmax(-1),
).eval()  # fmt: skip
x = torch.randn(2, 3, 32, 32)

with torch.no_grad():
    compiled = torch.compile(model, backend="torchmdla", options={"device": "numpy_tosa"})
    torch.testing.assert_close(compiled(x), model(x))
    print("as eager")
    model[0].weight.mul_(2)  # The packs run again for the new version of the weight.
    torch.testing.assert_close(compiled(x), model(x))
    print("as eager with other weights")

stats = torchmdla.stats()
print(f"groups compiled: {stats.specialisations}, fallbacks: {stats.fallbacks or 'none'}")
