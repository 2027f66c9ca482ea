"""Versions of the producers of a program. An artifact of any other version is never reused."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import machinery, metadata
from pathlib import Path

from torchmdla.devices import parts_of
from torchmdla.devices.device import Device

# Packages with the LLVM that makes code: for this machine's architecture, and for others.
_COMPILERS = ("torch-mlir", "llvmlite")

_PACKAGE = Path(__file__).resolve().parent.parent


def producers(device: Device) -> tuple[tuple[str, str], ...]:
    """Return name and version of each producer of programs and artifacts for ``device``.

    The version of torchmdla is a hash of its compiler sources, so that a changed working copy does not reuse old
    artifacts. The version of a package that defines a device also contains a hash of its sources.
    """
    classes = {cls for part in parts_of(device) for cls in type(part).__mro__}
    packages = {_package_of(cls.__module__) for cls in classes} - {"torchmdla", "builtins", "abc"}
    foreign = [(package, _version_of(package)) for package in sorted(packages)]
    device_version = [(device.name, device.version)] if device.version else []
    return (*_torchmdla(), *foreign, *device_version)


@lru_cache(maxsize=1)
def _torchmdla() -> tuple[tuple[str, str], ...]:
    digest = hashlib.sha256()
    for folder in ("compiler", "devices"):
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    compilers = ((name, metadata.version(name)) for name in _COMPILERS)
    return ("torchmdla", digest.hexdigest()[:16]), *compilers


def _package_of(module: str) -> str:
    """Return the outermost package that has a file.

    A package without a file (a namespace package) can belong to many projects.
    """
    parts = module.split(".")
    names = [".".join(parts[: count + 1]) for count in range(len(parts))]
    return next((name for name in names if getattr(sys.modules.get(name), "__file__", None)), module)


@lru_cache(maxsize=64)
def _version_of(package: str) -> str:
    """Return the versions of the distributions that installed ``package``, and a hash of its sources.

    A package without sources, such as a class in an interactive interpreter, gets a random version in each process.
    """
    installed = metadata.packages_distributions().get(package.partition(".")[0], ())
    digest = hashlib.sha256()
    files = list(_files_of(package))
    recorded = _recorded_hashes(installed)
    for path in files:
        digest.update(path.read_bytes() if path.suffix == ".py" else _identity_of_library(path, recorded))
    return " ".join([*map(metadata.version, installed), digest.hexdigest()[:16] if files else secrets.token_hex(8)])


def _recorded_hashes(distributions: Iterable[str]) -> dict[Path, str]:
    """Return the hashes of the files that wheels installed. They are equal on all machines."""
    files = (file for name in distributions for file in metadata.files(name) or ())
    return {Path(str(file.locate())): file.hash.value for file in files if file.hash is not None}


def _identity_of_library(path: Path, recorded: Mapping[Path, str]) -> bytes:
    """Return what identifies a library, which may be too large to be hashed: its recorded hash, or size and time."""
    status = path.stat()
    return f"{path.name} {recorded.get(path) or f'{status.st_size} {status.st_mtime_ns}'}".encode()


def _files_of(package: str) -> Iterator[Path]:
    """Yield the files of a package or of a single module."""
    module = sys.modules.get(package)
    name = getattr(module, "__file__", None)
    if not name:
        return
    file = Path(name)
    if not hasattr(module, "__path__"):
        yield file
        return
    suffixes = {".py", *(Path(suffix).suffix for suffix in machinery.EXTENSION_SUFFIXES)}
    yield from sorted(path for path in file.parent.rglob("*") if path.suffix in suffixes and path.is_file())
