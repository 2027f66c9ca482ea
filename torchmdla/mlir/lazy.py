"""Pending tensors of the lazy device, and the graphs that they are lowered to, as functions in the Torch dialect."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_mlir import ir

from torchmdla.capture.lazy import pending_computation
from torchmdla.importer.script_function import write_typed_graph
from torchmdla.mlir.context import new_context
from torchmdla.mlir.function import FunctionArgument, TorchFunction, parse
from torchmdla.mlir.resources import fill_resources


def module_of_graph(graph: Any, name: str = "graph") -> ir.Module:
    """A flat typed graph as a module with the one function ``name``.

    Raises:
        CompileError: something in it has no form in the dialect.
    """
    context = new_context()
    text, resources = write_typed_graph(graph, name, context.is_registered_operation)
    module = parse(text)
    fill_resources(module, resources, name)
    return module


def function_of_tensor(x: Tensor) -> TorchFunction:
    """What a tensor of the lazy device would be computed by.

    Raises:
        CompileError: something in it has no form in the dialect.
    """
    graph = pending_computation(x).graph
    arguments = tuple(FunctionArgument(value.debugName(), "input") for value in graph.inputs())
    return TorchFunction(module_of_graph(graph, "forward"), arguments)
