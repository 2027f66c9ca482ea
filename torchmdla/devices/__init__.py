"""Registry of devices."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from torchmdla.devices.capabilities import (
    Arithmetic,
    Asynchronous,
    CallSelection,
    Composition,
    CostModel,
    CrossCompilation,
    HostProcessor,
    Legalisation,
    LibraryLoading,
    Tuning,
)
from torchmdla.devices.device import Device, LoadedCode, Node, NodeTypes, OpKind, OpSupport, TensorType
from torchmdla.devices.levels import Layouts, LegalProgram, Level
from torchmdla.devices.quantisation import (
    QUANTISED_FORMS,
    Quantisation,
    QuantisedPattern,
    QuantisedType,
    quantised_patterns_of,
)
from torchmdla.version import __version__

__all__ = [
    "QUANTISED_FORMS",
    "Arithmetic",
    "Asynchronous",
    "CallSelection",
    "Composition",
    "CostModel",
    "CrossCompilation",
    "Device",
    "HostProcessor",
    "Layouts",
    "LegalProgram",
    "Legalisation",
    "Level",
    "LibraryLoading",
    "LoadedCode",
    "Node",
    "NodeTypes",
    "OpKind",
    "OpSupport",
    "Quantisation",
    "QuantisedPattern",
    "QuantisedType",
    "TensorType",
    "Tuning",
    "address_of_call",
    "get",
    "in_use",
    "names",
    "parts_of",
    "precision_of",
    "quantised_patterns_of",
    "register",
    "require",
    "use",
]

ENTRY_POINT_GROUP = "torchmdla.devices"

CAPABILITIES = (
    Arithmetic,
    Asynchronous,
    CallSelection,
    Composition,
    CostModel,
    CrossCompilation,
    HostProcessor,
    Legalisation,
    LibraryLoading,
    Quantisation,
    Tuning,
)

# Built-in devices, imported at the first use.
_BUILT_IN = {"cpu": "torchmdla.devices.cpu:CpuDevice", "mdla": "torchmdla.devices.mdla:MdlaDevice"}

# Class of several devices that share programs, whose name is a list of theirs.
_COMPOSED = "torchmdla.devices.heterogeneous:HeterogeneousDevice"

Capability = TypeVar("Capability")

_devices: dict[str, Device] = {}
_in_use = "cpu"


def register(device: Device) -> None:
    """Register ``device`` under ``device.name``; a later registration of a name replaces an earlier one.

    A compiler process creates its own device object. It imports the module of the class, without torch, and calls the
        class without arguments. A class that is defined in a script or a function cannot be imported. Such a device
        compiles in the calling process: other Python threads wait meanwhile, and a crash ends the program.

    Raises:
        TypeError: the class has a member of a capability from which it does not inherit, so that nothing would use it.
    """
    for capability in CAPABILITIES:
        members = {name for name in vars(capability) if not name.startswith("_") and hasattr(type(device), name)}
        if members and not isinstance(device, capability):
            raise TypeError(
                f"device {device.name!r} has {min(members)!r}, but its class does not inherit from "
                f"torchmdla.devices.{capability.__name__}: add it to the bases of {type(device).__name__}"
            )
    if hasattr(type(device), "supports"):
        raise TypeError(
            f"device {device.name!r} has 'supports': inherit from torchmdla.devices.CallSelection, and let "
            "refusal(node, types) return why a call is refused"
        )
    _devices[device.name] = device


def use(device: Device) -> None:
    """Make ``device`` the default device of groups."""
    global _in_use
    _in_use = device.name


def in_use() -> str:
    """Return the name of the default device."""
    return _in_use


def names() -> list[str]:
    """Return every name that :func:`get` accepts."""
    return sorted({*_BUILT_IN, *_devices, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def get(name: str) -> Device:
    """Return the device registered under ``name``.

    A device is built in, registered by :func:`register`, or defined by an entry point. A name with a colon is a class
    to import, ``"acme.npu:Npu"``, which does not need a registration. Names with commas between them, ``"npu,cpu"``,
    are the device that divides each program between these devices (:mod:`torchmdla.devices.heterogeneous`).

    Raises:
        ValueError: the device does not exist; the message lists the registered devices. Or its package requires another
            version of torchmdla.
    """
    if name not in _devices:
        _find(name)
    return _devices[name]


def require(device: Device, capability: type[Capability]) -> Capability:
    """Return ``device`` as an object of ``capability``.

    Raises:
        TypeError: its class does not inherit from the capability.
    """
    if not isinstance(device, capability):
        raise TypeError(
            f"device {device.name!r} cannot do this: its class does not inherit from "
            f"torchmdla.devices.{capability.__name__}"
        )
    return device


def address_of_call(name: str) -> int:
    """Return the address of a device call (``docs/design/abi.md``), such as ``"mdla_record_event"``.

    Raises:
        ValueError: there is not a call of this name.
    """
    from torchmdla import _C

    address = _C.address_of_symbol(name) if name.startswith("mdla_") else 0
    if not address:
        raise ValueError(f"device call {name!r} does not exist")
    return address


def precision_of(device: Device) -> str | None:
    """Return the number format of a device's computations; None means the format of the tensors."""
    return device.precision if isinstance(device, Arithmetic) else None


def parts_of(device: Device) -> tuple[Device, ...]:
    """Return the devices that run the programs of ``device``: those of a :class:`Composition`, or itself."""
    return device.components if isinstance(device, Composition) else (device,)


def _find(name: str) -> None:
    if name in _BUILT_IN:
        register(_instantiate(_BUILT_IN[name]))
        return
    if "," in name:
        device = _class_at(_COMPOSED)([get(part.strip()).name for part in name.split(",")])  # type: ignore[call-arg]
        register(device)
        _devices[name] = device
        return
    if ":" in name:
        device = _instantiate(name)
        register(device)
        _devices[name] = device
        return
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        _check_version(entry)
        register(entry.load()())
        return
    raise ValueError(f"no device named {name!r}; registered devices: {', '.join(names())}")


def _check_version(entry: EntryPoint) -> None:
    """Check that the distribution of a device is for this version of torchmdla.

    Raises:
        ValueError: it requires another version.
    """
    # Not at the top: each start imports this module, and few have a device of a package.
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for requirement in map(Requirement, (entry.dist and entry.dist.requires) or ()):
        is_ours = canonicalize_name(requirement.name) == "torchmdla"
        if entry.dist and is_ours and not requirement.specifier.contains(__version__, prereleases=True):
            package = entry.dist.name
            raise ValueError(
                f"device {entry.name!r} of {package} {entry.dist.version} is for torchmdla{requirement.specifier}, and "
                f"torchmdla {__version__} is installed: pip install --upgrade {package}, or pip install "
                f"'{requirement.name}{requirement.specifier}'"
            )


def _instantiate(place: str) -> Device:
    """Return an instance of the class ``module:name``.

    Raises:
        ValueError: as for :func:`_class_at`.
    """
    return _class_at(place)()


def _class_at(place: str) -> type[Device]:
    """Return the class ``module:name``.

    Raises:
        ValueError: the class does not exist, or is not a subclass of Device.
    """
    module, _, attribute = place.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no device {place!r}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Device)):
        raise ValueError(f"no device {place!r}: it is not a subclass of torchmdla.devices.Device")
    return cls
