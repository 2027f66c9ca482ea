"""Inputs and outputs of a device's lowering: programs, artifacts, sizes, and MLIR's contexts and pipelines."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

# Modules that have moved to ``torchmdla.compile_service``. Their old names work until 0.3.
_MOVED = frozenset(("cache", "lower", "service", "worker"))


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is torchmdla.compile_service.{name}", DeprecationWarning, stacklevel=2)
    return importlib.import_module(f"torchmdla.compile_service.{name}")
