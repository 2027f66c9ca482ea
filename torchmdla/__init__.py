"""torchmdla runs the PyTorch programs that people already have, through MLIR, on a device.

Importing it turns it on: the supported subgraphs of TorchScript programs run as compiled groups from then on. Set
``TORCHMDLA_ENABLE=0`` to import without turning on.
"""

from torchmdla.api import compile, disable, enable, enabled, graph_for, is_enabled, supported_ops
from torchmdla.errors import CompileError
from torchmdla.report.statistics import Statistics, reset_stats, stats
from torchmdla.version import __version__

__all__ = [
    "CompileError",
    "Statistics",
    "__version__",
    "compile",
    "disable",
    "enable",
    "enabled",
    "graph_for",
    "is_enabled",
    "reset_stats",
    "stats",
    "supported_ops",
]
