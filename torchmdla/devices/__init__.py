"""The registry of devices."""

from __future__ import annotations

from importlib.metadata import entry_points

from torchmdla.devices.device import Device, LoadedCode, OpKind, OpSupport

__all__ = ["Device", "LoadedCode", "OpKind", "OpSupport", "get", "names", "register"]

ENTRY_POINT_GROUP = "torchmdla.devices"

_devices: dict[str, Device] = {}


def register(device: Device) -> None:
    """Makes ``device`` known under ``device.name``; a later registration of a name replaces an earlier one."""
    _devices[device.name] = device


def names() -> list[str]:
    """Every name that :func:`get` knows."""
    return sorted({"cpu", *_devices, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def get(name: str) -> Device:
    """The device registered under ``name``: built in, registered by :func:`register`, or found by entry point.

    Raises:
        ValueError: no such device; the message lists those there are.
    """
    if name not in _devices:
        _find(name)
    return _devices[name]


def _find(name: str) -> None:
    if name == "cpu":
        from torchmdla.devices.cpu import CpuDevice

        register(CpuDevice())
        return
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        register(entry.load()())
        return
    raise ValueError(f"no device named {name!r}; registered devices: {', '.join(names())}")
