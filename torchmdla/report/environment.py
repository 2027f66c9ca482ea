"""Environment of torchmdla on this machine, for bug reports and for humans: versions, devices, targets."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from torchmdla import _C, devices
from torchmdla.version import __version__

_PACKAGES = ("torch", "torch-mlir", "llvmlite")


def environment() -> dict[str, str]:
    """Return the names and values of all facts for a bug report, in reading order."""
    facts = {"torchmdla": __version__, **{name: _version_of(name) for name in _PACKAGES}}
    facts["Python"] = platform.python_version()
    facts["system"] = platform.platform()
    facts["CPUs"] = f"{_C.available_cpus()} of {os.cpu_count()}"
    facts["devices"] = ", ".join(devices.names())
    for name in devices.names():
        facts[f"{name}: target"] = _target(name)
    return facts


def _version_of(name: str) -> str:
    """Return the installed version of a distribution, or ``"not installed"``."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _target(name: str) -> str:
    try:
        target = devices.get(name).target()
    except Exception as error:  # A device that does not load must not hide the others.
        return f"not available: {type(error).__name__}: {error}"
    present = [feature for feature in target.features.split(",") if not feature.startswith("-")]
    return " ".join(part for part in (target.triple, target.cpu, ",".join(present)) if part) or "no particular one"
