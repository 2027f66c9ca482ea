"""The aten dialect of MLIR and its analyses (``docs/aten.md``).

The dialect has one verified op per PyTorch schema. This package converts programs into it. The passes name layers,
count operations, report liveness, and lower ops to calls of runtime functions. Importing this package does not load
MLIR; using its names does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmdla.aten.dialect import AtenError, parse, register
    from torchmdla.aten.graphs import from_fx, from_graph, from_module, from_typed_graph
    from torchmdla.aten.liveness import HeldValue, LivenessPoint, LivenessReport, liveness_report
    from torchmdla.aten.naming import layer_names
    from torchmdla.aten.operations import LayerReport, OpReport, op_report
    from torchmdla.aten.passes import PASSES, pipeline, run
    from torchmdla.aten.returns import return_elimination
    from torchmdla.aten.to_std import aten_to_std, lower_to_std
    from torchmdla.aten.torch_dialect import from_torch

_HOMES = {
    "AtenError": "dialect",
    "parse": "dialect",
    "register": "dialect",
    "from_fx": "graphs",
    "from_graph": "graphs",
    "from_module": "graphs",
    "from_typed_graph": "graphs",
    "layer_names": "naming",
    "HeldValue": "liveness",
    "LivenessPoint": "liveness",
    "LivenessReport": "liveness",
    "liveness_report": "liveness",
    "LayerReport": "operations",
    "OpReport": "operations",
    "op_report": "operations",
    "PASSES": "passes",
    "pipeline": "passes",
    "run": "passes",
    "return_elimination": "returns",
    "aten_to_std": "to_std",
    "lower_to_std": "to_std",
    "from_torch": "torch_dialect",
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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
