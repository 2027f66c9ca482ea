"""Storage of measurements of kernels and of the machine, and of its description, beside the artifacts.

There is one block of :mod:`torchmdla.compiler.records` for each machine. Records are data, and each user of a record
checks it again. A damaged block is ignored. Invalid records of an intact block are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.service import default_service
from torchmdla.compiler.checksummed import Format
from torchmdla.compiler.records import Constant, Record, option_of, option_of_machine
from torchmdla.devices.device import Device
from torchmdla.support import logs
from torchmdla.version import __version__


class DamagedRecords(ValueError):
    """Error for bytes that are not a block of records, or have another version."""


_FORMAT = Format(b"mdla-records\n", 1, "a block of records", "python -m torchmdla tune measures anew", DamagedRecords)


class Records:
    """Records of a device on this machine, by kernel, in a cache.

    The default is the cache of the process's service. Records of another release of torchmdla are excluded, because its
    code differs.
    """

    def __init__(self, device: Device, cache: DiskCache | None = None) -> None:
        self._machine = device.machine
        self._cache = cache or default_service().cache
        self._key = hashlib.sha256(f"{__version__}\n{device.name}\n{self._machine}".encode()).hexdigest()

    def load(self) -> dict[str, Record]:
        """Return the stored records by kernel."""
        return self._load()[0]

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Return the program options that contain the stored records and constants."""
        records, constants = self._load()
        differing = {
            name: constant["value"] for name, constant in constants.items() if constant["value"] != constant["default"]
        }
        return (*option_of(records.values()), *option_of_machine(differing))

    @property
    def is_calibrated(self) -> bool:
        """Return whether constants of the machine are stored."""
        return bool(self._load()[1])

    def add(self, new: Iterable[Record]) -> bool:
        """Store ``new`` records, replacing those of the same kernels, and return whether they were stored."""
        records, constants = self._load()
        return self._store({**records, **{record.kernel: record for record in new}}, constants)

    def calibrate(self, constants: Iterable[Constant]) -> bool:
        """Store ``constants`` of the machine, replacing all others, and return whether they were stored."""
        return self._store(self.load(), {constant.name: asdict(constant) for constant in constants})

    def _load(self) -> tuple[dict[str, Record], dict[str, dict[str, Any]]]:
        """Return the records of kernels, and the constants by name."""
        data = self._cache.load_block("records", self._key) if self._machine else None
        if data is None:
            return {}, {}
        try:
            content = _FORMAT.open(data, lambda raw, _: (list(raw["records"]), dict(raw.get("constants", {}))))
        except DamagedRecords as error:
            logs.logger("cache").info("records of kernels are ignored: %s", error)
            return {}, {}
        return {record.kernel: record for record in _parse_records(content[0])}, content[1]

    def _store(self, records: Mapping[str, Record], constants: Mapping[str, Mapping[str, Any]]) -> bool:
        raw_records = [record.to_raw() for record in records.values()]
        raw: dict[str, Any] = {"machine": self._machine, "records": raw_records, "constants": constants}
        return self._cache.store_block("records", self._key, _FORMAT.seal(raw, b""))

    @property
    def problem(self) -> str:
        """Return why nothing can be stored; empty if no problem is known."""
        return self._cache.info().problem


def options_for(device: Device) -> tuple[tuple[str, str], ...]:
    """Return the program options for ``device`` that contain the measurements of this machine."""
    return Records(device).options if device.machine else ()


def _parse_records(raw: Iterable[Mapping[str, Any]]) -> Iterable[Record]:
    for fields in raw:
        try:
            yield Record.from_raw(fields)
        except (ValueError, TypeError, KeyError) as error:
            logs.logger("cache").info("a record of a kernel is ignored: %r", error)


# Descriptions of this machine that devices need and that are slow to determine. A process whose artifacts are on disk
# therefore gets the description without loading a compiler's libraries.


class DamagedHost(ValueError):
    """Error for bytes that are not a description of a machine, or have another version."""


_HOST_FORMAT = Format(b"mdla-host\n", 1, "a description of a machine", "it is made anew", DamagedHost)

_loaded_hosts: set[str] = set()


def load_host(device: Device) -> None:
    """Give ``device`` the stored description of this machine, or compute and store the description."""
    if device.name in _loaded_hosts or not (identity := device.host_identity):
        return
    _loaded_hosts.add(device.name)
    cache = default_service().cache
    key = hashlib.sha256(f"host\n{__version__}\n{device.name}\n{identity}".encode()).hexdigest()
    data = cache.load_block("host", key)
    try:
        if data is not None:
            device.set_host(_HOST_FORMAT.open(data, lambda description, content: str(description["host"])))
            return
    except DamagedHost:
        pass
    cache.store_block("host", key, _HOST_FORMAT.seal({"host": device.host}, b""))
