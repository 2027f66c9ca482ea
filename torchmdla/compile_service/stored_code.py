"""Code of devices in files: the targets of a device, what their code needs, and its form.

An image is stored as it is, and its features are those of the processor. Other code is stored in a block with the name
of its device, which loads it (``src/package/device_code.cpp``). Its features are ``device=NAME`` and, after ``NAME:``,
what the device needs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from torchmdla import _C, devices
from torchmdla.compile_service.versions import producers
from torchmdla.compiler.artifact import ABI_VERSION, Artifact, Manifest
from torchmdla.compiler.checksummed import Format
from torchmdla.compiler.program import Target


class DamagedCode(ValueError):
    """Error for a device's code that is altered, or is of another version."""


# The same values as in src/base/device_library.cpp.
_FORMAT = Format(b"torchmdla-code", 1, "a device's code", "make the file anew", DamagedCode)

# A number, as src/base/byte_reader.h reads it.
_NUMBER = struct.Struct("<q")

NATIVE = "native"


def target_of(device: devices.Device, name: str) -> Target:
    """Return the target with the user-level name ``name``.

    Raises:
        ValueError: the device does not have such a target.
    """
    if isinstance(device, devices.CrossCompilation):
        return device.target_for(name)
    if name != NATIVE:
        raise ValueError(
            f"device {device.name!r} compiles for this machine only: its target is {NATIVE!r}, not {name!r} "
            "(a device has others by torchmdla.devices.CrossCompilation)"
        )
    return device.target()


def freestanding_target_of(device: devices.Device, name: str) -> Target:
    """Return the target of code that runs without libtorch and Python.

    Raises:
        TypeError: the device does not have such code.
        ValueError: the device does not have the target.
    """
    if isinstance(device, devices.Composition):
        raise TypeError(
            f"device {device.name!r} divides each program, and a file for the runtime without Python has the code of "
            f"one device: call torchmdla.enable(device={devices.parts_of(device)[-1].name!r}) before the export"
        )
    target = target_of(device, name)
    if isinstance(device, devices.LibraryLoading):
        return target
    if isinstance(device, devices.CrossCompilation):
        return device.freestanding(target)
    raise TypeError(
        f"Python loads the code of device {device.name!r}, and the runtime does not have Python: its class must "
        "inherit from torchmdla.devices.LibraryLoading, or from CrossCompilation with the method freestanding"
    )


def packing_target_of(device: devices.Device, target: Target) -> Target:
    """Return the target of code that packs constants on this machine, for code for ``target``."""
    return device.packing(target) if isinstance(device, devices.CrossCompilation) else target


def features_of(device: devices.Device, target: Target, artifacts: Iterable[Artifact]) -> tuple[str, ...]:
    """Return the features that the code of ``artifacts`` for ``target`` needs."""
    if isinstance(device, devices.CrossCompilation) and all(artifact.is_image for artifact in artifacts):
        return device.features(target)
    features = (f"{device.name}:{feature}" for feature in _own_features(device, target))
    return (f"device={device.name}", *sorted(features))


def _own_features(device: devices.Device, target: Target) -> set[str]:
    """Return what code for ``target`` needs, in the device's own words, and the version that made it."""
    library = _C.DeviceLibrary(device.library).features if isinstance(device, devices.LibraryLoading) else None
    if library is None:
        # The library states the version of the code that it loads. Python's devices do not.
        makers = dict(producers(device))
        versions = sorted(f"{name} {makers[name]}" for name in makers if name not in _COMMON)
        version = {f"version={', '.join(versions) or makers['torchmdla']}"}
    else:
        version = {feature for feature in library if feature.startswith("format=")}
    if isinstance(device, devices.CrossCompilation):
        return version | set(device.features(target))
    return version | (set(library) if library is not None else {f"target={_describe(target)}"})


# Producers of all programs. A package does not depend on their versions, because it has a format of its own.
_COMMON = frozenset({"torchmdla", "torch-mlir", "llvmlite"})


def _describe(target: Target) -> str:
    return " ".join(filter(None, (target.triple, target.cpu, target.features))) or target.device


def stored_code(artifact: Artifact, device: str) -> bytes:
    """Return the code of an artifact in the form of files."""
    if artifact.is_image:
        return artifact.object_code
    manifest = artifact.manifest
    names = [device, manifest.entry, manifest.workspace, manifest.fault]
    packs = [pack.symbol for pack in manifest.packs]
    head = b"".join(map(_text, names)) + _NUMBER.pack(len(packs)) + b"".join(map(_text, packs))
    head += _NUMBER.pack(len(artifact.object_code))
    description = {"abi": ABI_VERSION, "manifest": asdict(manifest), "object_code": len(head)}
    return _FORMAT.seal(description, head + artifact.object_code)


def _text(text: str) -> bytes:
    data = text.encode()
    return _NUMBER.pack(len(data)) + data


def _artifact_of(block: bytes) -> Artifact:
    """Return the artifact in a block that :func:`stored_code` wrote.

    Raises:
        DamagedCode: the block is altered, or is of another version.
    """

    def read(description: dict[str, Any], content: bytes) -> Artifact:
        if description["abi"] != ABI_VERSION:
            raise ValueError(f"its ABI is version {description['abi']}, and {ABI_VERSION} is needed")
        return Artifact(content[description["object_code"] :], Manifest.of(description["manifest"]))

    return _FORMAT.open(block, read)


def _features_of_machine(name: str) -> set[str] | None:
    """Return what the code of a device needs to run here; None if the device does not exist."""
    try:
        device = devices.get(name)
    except ValueError:
        return None
    return _own_features(device, device.target())


def _load(name: str, block: bytes) -> tuple[Any, ...]:
    """Load a block of a package, for ``_C.set_python_devices``."""
    device = devices.get(name)
    loaded = device.load(_artifact_of(block))
    competes = isinstance(device, devices.HostProcessor) and device.competes_with_eager
    return (
        loaded.entry,
        loaded.packs,
        loaded.releases,
        loaded.workspace,
        loaded.fault,
        competes,
        loaded.context,
        loaded.wait,
        loaded.forget,
        loaded,
    )


def install() -> None:
    """Let packages load the code of Python's devices."""
    _C.set_python_devices(_features_of_machine, _load)
