"""What was measured of kernels and of the machine (:mod:`torchmdla.compiler.records`), kept beside the artifacts: a
block for each machine.

Records are data, and whoever uses one checks it once more: a block that is damaged counts for nothing, and of one that
is not, what is no record.
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
    """The bytes are no records, or those of another version."""


_FORMAT = Format(b"mdla-records\n", 1, "a block of records", "python -m torchmdla tune measures anew", DamagedRecords)


class Records:
    """The records of a device on this machine, by kernel, in a cache; by default that of the process's service. Those
    of another release of torchmdla, whose code is another, are not among them."""

    def __init__(self, device: Device, cache: DiskCache | None = None) -> None:
        self._machine = device.machine
        self._cache = cache or default_service().cache
        self._key = hashlib.sha256(f"{__version__}\n{device.name}\n{self._machine}".encode()).hexdigest()

    def load(self) -> dict[str, Record]:
        """Those that are kept."""
        return self._load()[0]

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """What programs carry of all that is kept."""
        records, constants = self._load()
        differing = {name: own["value"] for name, own in constants.items() if own["value"] != own["default"]}
        return (*option_of(records.values()), *option_of_machine(differing))

    @property
    def is_calibrated(self) -> bool:
        """Whether constants of the machine are kept."""
        return bool(self._load()[1])

    def add(self, new: Iterable[Record]) -> bool:
        """Keeps ``new`` ones in the place of those of the same kernels; False where nothing can be kept."""
        records, constants = self._load()
        return self._store({**records, **{record.kernel: record for record in new}}, constants)

    def calibrate(self, constants: Iterable[Constant]) -> bool:
        """Keeps ``constants`` of the machine in the place of all others; False where nothing can be kept."""
        return self._store(self.load(), {own.name: asdict(own) for own in constants})

    def _load(self) -> tuple[dict[str, Record], dict[str, dict[str, Any]]]:
        """Records of kernels, and constants by name."""
        data = self._cache.load_block("records", self._key) if self._machine else None
        if data is None:
            return {}, {}
        try:
            kept = _FORMAT.open(data, lambda raw, _: (list(raw["records"]), dict(raw.get("constants", {}))))
        except DamagedRecords as error:
            logs.logger("cache").info("records of kernels are ignored: %s", error)
            return {}, {}
        return {record.kernel: record for record in _readable(kept[0])}, kept[1]

    def _store(self, records: Mapping[str, Record], constants: Mapping[str, Mapping[str, Any]]) -> bool:
        kept = [record.to_raw() for record in records.values()]
        raw: dict[str, Any] = {"machine": self._machine, "records": kept, "constants": constants}
        return self._cache.store_block("records", self._key, _FORMAT.seal(raw, b""))

    @property
    def problem(self) -> str:
        """Why nothing can be kept; empty where nothing is known to be wrong."""
        return self._cache.info().problem


def options_for(device: Device) -> tuple[tuple[str, str], ...]:
    """What programs for ``device`` carry of what was measured on this machine."""
    return Records(device).options if device.machine else ()


def _readable(raw: Iterable[Mapping[str, Any]]) -> Iterable[Record]:
    for one in raw:
        try:
            yield Record.from_raw(one)
        except (ValueError, TypeError, KeyError) as error:
            logs.logger("cache").info("a record of a kernel is ignored: %r", error)
