"""The aten dialect of MLIR and its analyses (``docs/aten.md``).

The dialect has one verified op per PyTorch schema. This package converts programs into it. The passes name layers,
count operations, report liveness, and lower ops to calls of runtime functions. Importing this package does not load
MLIR; using its names does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmdla.aten.calls import layer_names
    from torchmdla.aten.dialect import AtenError, parse, register
    from torchmdla.aten.graphs import from_fx, from_graph, from_module, from_typed_graph
    from torchmdla.aten.passes import PASSES, pipeline, run
    from torchmdla.aten.reports import (
        HeldValue,
        LayerReport,
        LivenessPoint,
        LivenessReport,
        OpReport,
        liveness_report,
        op_report,
    )
    from torchmdla.aten.returns import return_elimination
    from torchmdla.aten.to_std import aten_to_std, lower_to_std
    from torchmdla.aten.torch_dialect import from_torch

# Names of the modules.
_HOMES = {
    "calls": ("layer_names",),
    "dialect": ("AtenError", "parse", "register"),
    "graphs": ("from_fx", "from_graph", "from_module", "from_typed_graph"),
    "passes": ("PASSES", "pipeline", "run"),
    "reports": (
        *("LayerReport", "OpReport", "op_report"),
        *("HeldValue", "LivenessPoint", "LivenessReport", "liveness_report"),
    ),
    "returns": ("return_elimination",),
    "to_std": ("aten_to_std", "lower_to_std"),
    "torch_dialect": ("from_torch",),
}

__all__ = [
    "PASSES",
    "AtenError",
    "HeldValue",
    "LayerReport",
    "LivenessPoint",
    "LivenessReport",
    "OpReport",
    "aten_to_std",
    "from_fx",
    "from_graph",
    "from_module",
    "from_torch",
    "from_typed_graph",
    "layer_names",
    "liveness_report",
    "lower_to_std",
    "op_report",
    "parse",
    "pipeline",
    "register",
    "return_elimination",
    "run",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
