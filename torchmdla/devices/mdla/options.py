"""What users say of the mdla device: its library, and the flags that its contexts get."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

LIBRARY_VARIABLE = "TORCHMDLA_MDLA_LIBRARY"

EMULATOR = Path(__file__).with_name("libtorchmdla_mdla_emulator.so")


def library_path() -> str:
    """Where the emulator's shared library is, which C programs may link against, too."""
    return str(EMULATOR)


def include_path() -> str:
    """The folder with ``microndla.h``, the C API of the emulator and of the vendor's library."""
    return str(EMULATOR.parent / "include")


PRECISIONS = ("fixed16", "fixed8", "variable", "float32")

# An option's name -> its flag's name in ``ie_setflag``. What is None is not set, so that the library's default holds.
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
    """
    Attributes:
        library: path of the shared library that drives the device; empty for the environment's, else the emulator's.
        precision: ``"fixed16"`` (16 bits, 8 of them fractional, the default of the device), ``"fixed8"``,
            ``"variable"`` (fixed point chosen for each layer from calibration data) or ``"float32"``.
        clusters, fpgas: how many of them to use.
        debug: which debug output the library prints, in its own letters.
        options: the compiler's options, in the library's own words.
        headroom: bits that formats chosen from calibration data have above the largest value of the data, so that what
            is up to ``2 ** headroom`` times as large does not saturate.
        batches: ``"whole"``, a group's batch is one inference; ``"items"``, it is as many as it can be divided into;
            None, what takes the fewest cycles by the library's own count (:mod:`torchmdla.devices.mdla.batches`).
        timeout: in seconds; a library that has inferences and gives no result for so long is not asked again.
            0 is no limit, None ten minutes.
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
        """Options by name, checked; those that are None are as if they were not there.

        Raises:
            TypeError: no such option, or a value of the wrong type.
            ValueError: no such precision, no such way to run batches, or a number that is too small.
        """
        known = [field.name for field in fields(cls)]
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            if name not in known:
                raise TypeError(f"device 'mdla' has no option {name!r}; there are {', '.join(known)}")
            if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
                raise TypeError(f"option {name!r} of device 'mdla' cannot be a {type(value).__name__}")
        if "library" in given:
            given["library"] = os.fspath(given["library"])  # type: ignore[call-overload]
        made = cls(**given)  # type: ignore[arg-type]
        if made.precision not in (None, *PRECISIONS):
            raise ValueError(f"no precision {made.precision!r}; there are {', '.join(PRECISIONS)}")
        if made.batches not in (None, *BATCHES):
            raise ValueError(f"batches cannot be run as {made.batches!r}; there are {', '.join(BATCHES)}")
        for name, least in _LEAST.items():
            count = getattr(made, name)
            if count is not None and not count >= least:
                raise ValueError(f"option {name!r} must be at least {least}, got {count}")
        return made

    def located(self) -> Options:
        """With the path of the library that is meant."""
        path = self.library or os.environ.get(LIBRARY_VARIABLE) or str(EMULATOR)
        return Options(**{**asdict(self), "library": path})

    def flags(self) -> list[tuple[str, str]]:
        """Names and values for ``ie_setflag``."""
        return [(flag, str(getattr(self, name))) for name, flag in _FLAGS.items() if getattr(self, name) is not None]

    @property
    def seconds(self) -> float:
        """The time limit; 0 where there is none."""
        return _SECONDS if self.timeout is None else float(self.timeout)

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Options:
        return cls(**json.loads(text))
