"""From graphs of PyTorch to the Torch dialect: graphs and recorded types in, text out."""

from torchmdla.importer.graph import import_graph
from torchmdla.importer.sources import located
from torchmdla.importer.types import (
    NOTHING,
    Binding,
    ImportedGraph,
    OutputBinding,
    Record,
    TensorMeta,
    Wanted,
    dtype_name,
)

__all__ = [
    "NOTHING",
    "Binding",
    "ImportedGraph",
    "OutputBinding",
    "Record",
    "TensorMeta",
    "Wanted",
    "dtype_name",
    "import_graph",
    "located",
]
