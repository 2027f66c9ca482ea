"""Compiler that runs existing PyTorch programs through MLIR on a device.

Importing the package turns it on. From then on the supported subgraphs of TorchScript programs run as compiled groups.
Set ``TORCHMDLA_ENABLE=0`` to import the package without turning it on.

Where PyTorch is not installed or does not load, the package has :func:`torchmdla.read` only. Other names raise
ImportError with the remedy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchmdla import extension

try:
    extension.add_to(__path__)
except extension.MissingTorchError as error:
    _missing: str | None = str(error)
else:
    _missing = None

from torchmdla.errors import CaptureError, CaptureWarning, CompileError, DeviceError, ReadError
from torchmdla.support.logs import set_from_environment as _set_logs
from torchmdla.support.logs import set_logs
from torchmdla.version import __version__

if TYPE_CHECKING or _missing is None:
    from torchmdla import acap
    from torchmdla.acap import acap_device
    from torchmdla.api import compile, disable, enable, enabled, graph_for, is_enabled, refresh, supported_ops
    from torchmdla.capture import cache_artifacts
    from torchmdla.report.observing import profile_kernels, trace_compiles
    from torchmdla.report.statistics import Statistics, reset_stats, stats

if TYPE_CHECKING:
    from torchmdla import mdla

    # Not in __all__: their packages are optional, and ``import *`` must work without them.
    from torchmdla import prometheus as prometheus
    from torchmdla import quantisation as quantisation
    from torchmdla import ray as ray
    from torchmdla.explaining import explain
    from torchmdla.importer.tensor_spec import TensorSpec
    from torchmdla.importer.torchscript.module import Annotations
    from torchmdla.mlir import get_mlir
    from torchmdla.mlir.module_builder import ModuleBuilder
    from torchmdla.packages import PackageInfo, load, require_signatures, save
    from torchmdla.packages.native import export_native
    from torchmdla.packages.native_file import ModelInfo
    from torchmdla.quantisation import quantise
    from torchmdla.reloading import ReloadingModel
    from torchmdla.script.reading import read

# Imported on first use: these modules load MLIR into the process, or only humans use them.
_LAZY = {
    "Annotations": "torchmdla.importer.torchscript.module",
    "ModuleBuilder": "torchmdla.mlir.module_builder",
    "ModelInfo": "torchmdla.packages.native_file",
    "PackageInfo": "torchmdla.packages",
    "ReloadingModel": "torchmdla.reloading",
    "TensorSpec": "torchmdla.importer.tensor_spec",
    "explain": "torchmdla.explaining",
    "export_native": "torchmdla.packages.native",
    "get_mlir": "torchmdla.mlir",
    "load": "torchmdla.packages",
    "quantise": "torchmdla.quantisation",
    "read": "torchmdla.script.reading",
    "require_signatures": "torchmdla.packages",
    "save": "torchmdla.packages",
}

# Modules that few programs need. They are imported on first use.
_LAZY_MODULES = frozenset({"mdla", "prometheus", "quantisation", "ray"})

__all__ = [
    "Annotations",
    "CaptureError",
    "CaptureWarning",
    "CompileError",
    "DeviceError",
    "ModelInfo",
    "ModuleBuilder",
    "PackageInfo",
    "ReadError",
    "ReloadingModel",
    "Statistics",
    "TensorSpec",
    "__version__",
    "acap",
    "acap_device",
    "compile",
    "disable",
    "enable",
    "enabled",
    "explain",
    "export_native",
    "get_mlir",
    "graph_for",
    "is_enabled",
    "load",
    "mdla",
    "profile_kernels",
    "quantise",
    "read",
    "refresh",
    "require_signatures",
    "reset_stats",
    "save",
    "set_logs",
    "stats",
    "supported_ops",
    "trace_compiles",
]


_set_logs()


def _package_groups(groups: Any) -> Any:
    """Return the package of a saved graph's groups. The module is imported here: most processes save nothing."""
    return importlib.import_module("torchmdla.packages.graphs").code_of(groups)


if _missing is None:
    cache_artifacts.set_packager(_package_groups)


def __getattr__(name: str) -> Any:
    if _missing is not None and name in __all__ and name != "read":
        raise ImportError(f"torchmdla.{name} needs PyTorch. {_missing}", name="torch")
    if name in _LAZY_MODULES:
        return importlib.import_module(f"torchmdla.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
