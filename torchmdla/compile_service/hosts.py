"""Descriptions of this machine that devices need and that are slow to determine, stored beside the artifacts.

A process whose artifacts are on disk therefore gets the description without loading a compiler's libraries.
"""

from __future__ import annotations

import hashlib

from torchmdla.compile_service.service import default_service
from torchmdla.compiler.checksummed import Format
from torchmdla.devices.device import Device
from torchmdla.version import __version__


class DamagedHost(ValueError):
    """Error for bytes that are not a description of a machine, or have another version."""


_FORMAT = Format(b"mdla-host\n", 1, "a description of a machine", "it is made anew", DamagedHost)

_recalled: set[str] = set()


def recall(device: Device) -> None:
    """Give ``device`` the stored description of this machine, or compute and store the description."""
    if device.name in _recalled or not (identity := device.host_identity):
        return
    _recalled.add(device.name)
    cache = default_service().cache
    key = hashlib.sha256(f"host\n{__version__}\n{device.name}\n{identity}".encode()).hexdigest()
    data = cache.load_block("host", key)
    try:
        if data is not None:
            device.set_host(_FORMAT.open(data, lambda description, content: str(description["host"])))
            return
    except DamagedHost:
        pass
    cache.store_block("host", key, _FORMAT.seal({"host": device.host}, b""))
