"""Importer of PyTorch graphs: it reads graphs and recorded types, and writes text in the Torch dialect."""

from torchmdla.importer.graph import import_graph
from torchmdla.importer.sources import with_location
from torchmdla.importer.types import (
    DEFAULT_OPTIONS,
    Binding,
    ImportedGraph,
    ImportOptions,
    OutputBinding,
    Record,
    TensorMeta,
    dtype_name,
)

__all__ = [
    "DEFAULT_OPTIONS",
    "Binding",
    "ImportOptions",
    "ImportedGraph",
    "OutputBinding",
    "Record",
    "TensorMeta",
    "dtype_name",
    "import_graph",
    "with_location",
]
