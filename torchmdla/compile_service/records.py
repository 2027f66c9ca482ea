"""Storage of measurements of kernels, programs and the machine, and of its description, beside the artifacts.

There is one block of :mod:`torchmdla.compiler.records` for each machine. Records are data, and each user of a record
checks it again. A damaged block is ignored. Invalid records of an intact block are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.service import default_service
from torchmdla.compiler.checksummed import Format
from torchmdla.compiler.records import Constant, Record, option_of, option_of_machine
from torchmdla.devices import parts_of
from torchmdla.devices.capabilities import Composition, HostProcessor, Tuning
from torchmdla.devices.device import Device, Node, NodeTypes
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
        self._machine = device.machine if isinstance(device, Tuning) else ""
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


def options_for(device: Device, calls: Iterable[tuple[int, Node, NodeTypes]] = ()) -> tuple[tuple[str, str], ...]:
    """Return the program options for ``device``: measurements of this machine, and what a composition knows of calls.

    ``calls`` are those of the program (:meth:`torchmdla.devices.Composition.program_options`).
    """
    if isinstance(device, Composition):
        return device.program_options(calls, [options_for(part) for part in device.components])
    return Records(device).options if isinstance(device, Tuning) and device.machine else ()


def _parse_records(raw: Iterable[Mapping[str, Any]]) -> Iterable[Record]:
    for fields in raw:
        try:
            yield Record.from_raw(fields)
        except (ValueError, TypeError, KeyError) as error:
            logs.logger("cache").info("a record of a kernel is ignored: %r", error)


# Comparisons of programs with PyTorch's operators, so that a later process does not measure again.


class DamagedComparison(ValueError):
    """Error for bytes that are not a comparison, or have another version."""


_COMPARISON_FORMAT = Format(b"mdla-speed\n", 1, "a comparison", "it is made anew", DamagedComparison)


@dataclass(frozen=True)
class SpeedFinding:
    """Times of a call of a program, and what runs its later calls.

    Attributes:
        choice: the code, groups around its slow kernels, or PyTorch's operators.
        compiled_seconds, eager_seconds: least seconds of a call.
        left_out: numbers of the nodes that a division leaves out.
    """

    choice: Literal["compiled", "divided", "eager"]
    compiled_seconds: float
    eager_seconds: float
    left_out: tuple[int, ...]

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any], nodes: int) -> SpeedFinding:
        """Return the comparison with the fields of ``raw``, for a group of this number of nodes.

        Raises:
            ValueError, TypeError, KeyError: ``raw`` is not a comparison.
        """
        left_out = tuple(map(int, raw["left_out"]))
        if raw["choice"] not in ("compiled", "divided", "eager") or not all(0 <= node < nodes for node in left_out):
            raise ValueError("not a comparison of this group")
        return cls(raw["choice"], float(raw["compiled_seconds"]), float(raw["eager_seconds"]), left_out)


class StoredComparison:
    """Comparison of a program on this machine, for a number of threads and a magnitude of its sizes."""

    def __init__(self, device: Device, program: str, threads: int, magnitude: int) -> None:
        versions = __version__, metadata.version("torch")
        host = " ".join(part.host_identity for part in parts_of(device) if isinstance(part, HostProcessor))
        identity = "speed", *versions, device.name, host, program, str(threads), str(magnitude)
        self._key = hashlib.sha256("\n".join(identity).encode()).hexdigest()
        self._cache = default_service().cache

    def load(self, nodes: int) -> SpeedFinding | None:
        """Return the stored comparison, or None. The group has this number of ``nodes``."""
        data = self._cache.load_block("speed", self._key)
        if data is None:
            return None
        try:
            return _COMPARISON_FORMAT.open(data, lambda raw, _: SpeedFinding.from_raw(raw, nodes))
        except DamagedComparison as error:
            logs.logger("cache").info("a comparison is ignored: %s", error)
            return None

    def store(self, comparison: SpeedFinding) -> None:
        self._cache.store_block("speed", self._key, _COMPARISON_FORMAT.seal(asdict(comparison), b""))


# Descriptions of this machine that devices need and that are slow to determine. A process whose artifacts are on disk
# therefore gets the description without loading a compiler's libraries.


class DamagedHost(ValueError):
    """Error for bytes that are not a description of a machine, or have another version."""


_HOST_FORMAT = Format(b"mdla-host\n", 1, "a description of a machine", "it is made anew", DamagedHost)

_loaded_hosts: set[str] = set()


def load_hosts(device: Device) -> None:
    """Give ``device``, or each of its parts, the stored description of this machine, or compute and store it."""
    for part in parts_of(device):
        _load_host(part)


def _load_host(device: Device) -> None:
    if device.name in _loaded_hosts or not isinstance(device, HostProcessor) or not device.host_identity:
        return
    _loaded_hosts.add(device.name)
    cache = default_service().cache
    key = hashlib.sha256(f"host\n{__version__}\n{device.name}\n{device.host_identity}".encode()).hexdigest()
    data = cache.load_block("host", key)
    try:
        if data is not None:
            device.set_host(_HOST_FORMAT.open(data, lambda description, content: str(description["host"])))
            return
    except DamagedHost:
        pass
    cache.store_block("host", key, _HOST_FORMAT.seal({"host": device.host}, b""))
