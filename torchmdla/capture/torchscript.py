"""TorchScript programs: the fusion pass forms groups from the op table of the device in use."""

from __future__ import annotations

import torch

from torchmdla import _C, devices


def use_device(device: devices.Device) -> None:
    """Forms groups by the op table of ``device`` from the next optimisation of a graph on."""
    add_device(device)
    _C.use_device(device.name)


def add_device(device: devices.Device) -> None:
    """Makes the op table of ``device`` known, for graphs that are for it and no other."""
    ops = []
    for name, support in device.ops.items():
        base, _, overload = name.partition(".")
        ops.append((base, overload, support.kind, dict(support.where)))
    _C.add_device(device.name, ops, [getattr(torch, dtype) for dtype in sorted(device.dtypes)])
