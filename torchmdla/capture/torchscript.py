"""TorchScript programs: the fusion pass forms groups from the op table of the device in use."""

from __future__ import annotations

import torch

from torchmdla import _C, devices


def use_device(device: devices.Device) -> None:
    """Forms groups by the op table of ``device`` from the next optimisation of a graph on."""
    ops = []
    for name, support in device.ops.items():
        base, _, overload = name.partition(".")
        ops.append((base, overload, support.kind, dict(support.where)))
    _C.set_device(device.name, ops, [getattr(torch, dtype) for dtype in sorted(device.dtypes)])
