"""User options of the mdla device: its library, and the flags of its contexts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from torchmdla.errors import unknown_name

LIBRARY_VARIABLE = "TORCHMDLA_MDLA_LIBRARY"

EMULATOR = Path(__file__).with_name("libtorchmdla_mdla_emulator.so")


def library_path() -> str:
    """Return the path of the emulator's shared library. C programs may also link against it."""
    return str(EMULATOR)


def include_path() -> str:
    """Return the folder with ``microndla.h``, the C API of the emulator and of the vendor's library."""
    return str(EMULATOR.parent / "include")


PRECISIONS = ("fixed16", "fixed8", "variable", "float32")

# Name of an option -> name of its flag in ``ie_setflag``. An option with the value None is not set, so the library's
# default applies.
_FLAGS: Mapping[str, str] = {
    "precision": "precision",
    "clusters": "nclusters",
    "fpgas": "nfpgas",
    "debug": "debug",
    "options": "options",
    "headroom": "headroom",
}

BATCHES = ("whole", "items")

_LEAST: Mapping[str, int] = {"clusters": 1, "fpgas": 1, "headroom": 0, "timeout": 0}

_SECONDS = 600.0

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "library": (str, os.PathLike),
    "precision": str,
    "clusters": int,
    "fpgas": int,
    "debug": str,
    "options": str,
    "headroom": int,
    "batches": str,
    "timeout": (int, float),
}


@dataclass(frozen=True)
class Options:
    """Options of the mdla device.

    Attributes:
        library: path of the shared library that drives the device. If it is empty, the environment's library is used,
            else the emulator.
        precision: ``"fixed16"`` (16 bits, 8 of them fractional, the default of the device), ``"fixed8"``,
            ``"variable"`` (fixed point chosen for each layer from calibration data) or ``"float32"``.
        clusters, fpgas: how many of them to use.
        debug: letters that select the debug output of the library.
        options: the compiler's options, in the library's syntax.
        headroom: bits between the largest value of the calibration data and the largest value of the chosen format.
            Values up to ``2 ** headroom`` times as large do not saturate.
        batches: ``"whole"``, a group's batch is one inference; ``"items"``, the batch is divided into the maximum
            number of inferences; None, the division with the fewest cycles by the library's own count
            (:mod:`torchmdla.devices.mdla.batches`).
        timeout: in seconds. A library with pending inferences that gives no result for this time is not used again. 0
            is unlimited; None is ten minutes.
    """

    library: str = ""
    precision: str | None = None
    clusters: int | None = None
    fpgas: int | None = None
    debug: str | None = None
    options: str | None = None
    headroom: int | None = None
    batches: str | None = None
    timeout: float | None = None

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Options:
        """Check options by name and return them; None counts as not set.

        Raises:
            TypeError: the option does not exist, or a value has the wrong type.
            ValueError: the precision or the batch mode does not exist, or a number is too small.
        """
        known = [field.name for field in fields(cls)]
        settings = {name: value for name, value in options.items() if value is not None}
        for name, value in settings.items():
            if name not in known:
                raise TypeError(f"device 'mdla': {unknown_name('option', name, known)}")
            if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
                raise TypeError(f"option {name!r} of device 'mdla' cannot be a {type(value).__name__}")
        if "library" in settings:
            settings["library"] = os.fspath(settings["library"])  # type: ignore[call-overload]
        result = cls(**settings)  # type: ignore[arg-type]
        if result.precision not in (None, *PRECISIONS):
            raise ValueError(unknown_name("precision", result.precision, PRECISIONS))
        if result.batches not in (None, *BATCHES):
            raise ValueError(unknown_name("value of batches", result.batches, BATCHES))
        for name, least in _LEAST.items():
            count = getattr(result, name)
            if count is not None and not count >= least:
                raise ValueError(f"option {name!r} must be at least {least}, got {count}")
        return result

    def with_library(self) -> Options:
        """Return the options with the path of the actual library."""
        path = self.library or os.environ.get(LIBRARY_VARIABLE) or str(EMULATOR)
        return Options(**{**asdict(self), "library": path})

    def flags(self) -> list[tuple[str, str]]:
        """Return names and values for ``ie_setflag``."""
        return [(flag, str(getattr(self, name))) for name, flag in _FLAGS.items() if getattr(self, name) is not None]

    @property
    def seconds(self) -> float:
        """Return the time limit in seconds; 0 means unlimited."""
        return _SECONDS if self.timeout is None else float(self.timeout)

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Options:
        return cls(**json.loads(text))
