"""Importer of PyTorch graphs: it reads graphs and recorded types, and writes text in the Torch dialect."""

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
