"""What devices know of this machine and are slow to learn, kept beside the artifacts: so a process whose artifacts are
on disk learns it without a compiler's libraries."""

from __future__ import annotations

import hashlib

from torchmdla.compile_service.service import default_service
from torchmdla.compiler.checksummed import Format
from torchmdla.devices.device import Device
from torchmdla.version import __version__


class DamagedHost(ValueError):
    """The bytes are no description of a machine, or one of another version."""


_FORMAT = Format(b"mdla-host\n", 1, "a description of a machine", "it is made anew", DamagedHost)

_recalled: set[str] = set()


def recall(device: Device) -> None:
    """Tells ``device`` what is kept of this machine; has it learn that, and keeps it, where nothing is."""
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
