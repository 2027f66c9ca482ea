"""Run a model on two devices: the custom device where it supports the operator, the cpu device elsewhere."""

from __future__ import annotations

import torch
from far_device import FarDevice
from numpy_device import NumpyDevice
from torch import nn

import torchmdla

torchmdla.devices.register(NumpyDevice())
torchmdla.devices.register(FarDevice())


def build(width: int) -> nn.Module:
    layers = nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()
    return nn.Sequential(*layers, nn.Linear(width, 8)).eval()


def run(devices: str, width: int) -> None:
    """Compare a model of this width on ``devices`` with eager PyTorch, and print what each device did."""
    torch.manual_seed(0)
    torchmdla.enable(device=devices)
    torchmdla.reset_stats()
    model, x = build(width), torch.randn(4, width)
    with torch.no_grad():
        torch.testing.assert_close(torchmdla.compile(model, x)(x), model(x), rtol=1e-4, atol=1e-4)
    counts = torchmdla.stats().devices
    ran = ", ".join(f"{name} {count.parts} parts, {count.transfers} transfers" for name, count in counts.items())
    print(f"{devices}, width {width}: {ran}")


def train() -> None:
    """Train a model on two devices by ``torch.compile`` and compare its gradients with those of eager PyTorch."""
    torch.manual_seed(0)
    torchmdla.enable(device="numpy,cpu")
    torchmdla.reset_stats()
    model, x = build(16).train(), torch.randn(4, 16)
    compiled = torch.compile(model, backend="torchmdla")
    expected = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    for _ in range(2):  # the first step is recorded, then compiled
        actual = torch.autograd.grad(compiled(x).square().mean(), list(model.parameters()))
    torch.testing.assert_close(actual, expected)
    print(f"training on {' and '.join(torchmdla.stats().devices)}: gradients as eager")


run("numpy,cpu", 16)
run("far,cpu", 16)  # the transfers would take longer than the computation
run("far,cpu", 2048)
train()
