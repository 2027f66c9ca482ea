"""The registry of devices."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from torchmdla.devices.device import Device, LoadedCode, Node, NodeTypes, OpKind, OpSupport, TensorType

__all__ = [
    "Device",
    "LoadedCode",
    "Node",
    "NodeTypes",
    "OpKind",
    "OpSupport",
    "TensorType",
    "get",
    "in_use",
    "names",
    "register",
    "use",
]

ENTRY_POINT_GROUP = "torchmdla.devices"

# Imported when they are first asked for.
_BUILT_IN = {"cpu": "torchmdla.devices.cpu:CpuDevice", "mdla": "torchmdla.devices.mdla:MdlaDevice"}

_devices: dict[str, Device] = {}
_in_use = "cpu"


def register(device: Device) -> None:
    """Makes ``device`` known under ``device.name``; a later registration of a name replaces an earlier one.

    A compiler process makes a device of its own: it imports the module of the class, where there is no torch, and calls
    the class without arguments. What it cannot import, a class that is defined in a script or a function, compiles in
    the calling process, where other Python threads wait meanwhile and a crash is the program's.
    """
    _devices[device.name] = device


def use(device: Device) -> None:
    """Makes ``device`` the one that groups are for where nothing else is said."""
    global _in_use
    _in_use = device.name


def in_use() -> str:
    """The name of that device."""
    return _in_use


def names() -> list[str]:
    """Every name that :func:`get` knows."""
    return sorted({*_BUILT_IN, *_devices, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def get(name: str) -> Device:
    """The device registered under ``name``: built in, registered by :func:`register`, or found by entry point. A name
    with a colon is a class to import, ``"acme.npu:Npu"``, which needs no registration.

    Raises:
        ValueError: no such device; the message lists those there are.
    """
    if name not in _devices:
        _find(name)
    return _devices[name]


def _find(name: str) -> None:
    if name in _BUILT_IN:
        register(_made(_BUILT_IN[name]))
        return
    if ":" in name:
        device = _devices[name] = _made(name)
        register(device)
        return
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        register(entry.load()())
        return
    raise ValueError(f"no device named {name!r}; registered devices: {', '.join(names())}")


def _made(place: str) -> Device:
    """Return an instance of the class ``module:name``.

    Raises:
        ValueError: there is no such class, or it is not one of devices.
    """
    module, _, attribute = place.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no device {place!r}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Device)):
        raise ValueError(f"no device {place!r}: it is not a subclass of torchmdla.devices.Device")
    return cls()
