"""Save a model with the code of a device, and run it in PyTorch and in the runtime without PyTorch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from kernels_device import KernelsDevice
from torch import nn

import torchmdla
import torchmdla_runtime

device = KernelsDevice()
torchmdla.devices.register(device)
torchmdla.enable(device="kernels")
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
x = torch.randn(2, 8)
expected = model(x).detach()

with tempfile.TemporaryDirectory() as folder:
    package, native = Path(folder) / "model.pt", Path(folder) / "model.tmdla"
    info = torchmdla.save(model, package, [x], targets=["baseline", "avx2"])
    print("package:", "; ".join(f"{target.name} needs {', '.join(target.features)}" for target in info.targets))
    torch.testing.assert_close(torchmdla.load(package)(x), expected)
    print("groups with code of the package:", torchmdla.stats().packaged)

    torchmdla.export_native(model, x, native, ["baseline", "avx2"])
    torchmdla_runtime.load_device(device.library)
    (y,) = torchmdla_runtime.Model(native)(x.numpy())
    torch.testing.assert_close(torch.from_numpy(y), expected)
    print("without PyTorch: as eager")
