"""Run the same model on a custom device, through five frontends."""

from __future__ import annotations

import torch
from numpy_device import NumpyDevice
from torch import nn

import torchmdla
from torchmdla import lazy

torchmdla.devices.register(NumpyDevice())
torchmdla.enable(device="numpy")
model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), torch.randn(2, 8)

with torch.no_grad():
    expected = model(x)
    frontends = {
        "torch.jit": torchmdla.compile(model, x),
        "torch.compile": torch.compile(model, backend="torchmdla", options={"device": "numpy"}),
        "torch.export": torchmdla.compile(model, x, frontend="export"),
    }
    for name, compiled in frontends.items():
        torch.testing.assert_close(compiled(x), expected)
        print(f"{name:<14} as eager")

    builder = torchmdla.ModuleBuilder()
    with builder.capture_function("forward", [x]) as function:
        function.returns([model(x)])
    (result,) = builder.compile(device="numpy")["forward"](x)
    torch.testing.assert_close(result, expected)
    print(f"{'ModuleBuilder':<14} as eager")

    lazy.initialize("numpy")
    on_lazy, arguments = model.to("lazy"), x.to("lazy")
    for _ in range(3):  # a graph is interpreted when it is new, then compiled
        result = on_lazy(arguments).cpu()
    torch.testing.assert_close(result, expected)
    print(f"{'lazy':<14} as eager")

print(f"fallbacks: {torchmdla.stats().fallbacks or 'none'}")
