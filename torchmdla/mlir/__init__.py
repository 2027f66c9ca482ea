"""MLIR output (``docs/mlir.md``). Importing this package loads torch-mlir."""

from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.mlir.function import FunctionArgument, TorchFunction
from torchmdla.mlir.get import get_mlir
from torchmdla.mlir.kinds import Kind, register_kind
from torchmdla.mlir.specs import Inputs

__all__ = ["FunctionArgument", "Inputs", "Kind", "TensorSpec", "TorchFunction", "get_mlir", "register_kind"]
