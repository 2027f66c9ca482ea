"""Conversion of pending tensors of the lazy device, and of their graphs, to functions in the Torch dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch_mlir import ir

from torchmdla import _C
from torchmdla.importer.function import FunctionWriter
from torchmdla.importer.graph import read_graph, types_of
from torchmdla.mlir.context import new_context
from torchmdla.mlir.function import FunctionArgument, TorchFunction, fill_resources, parse
from torchmdla.mlir.kinds import Kind, register_kind
from torchmdla.mlir.specs import Inputs


def module_of_graph(graph: Any, name: str = "graph") -> ir.Module:
    """Return a flat typed graph as a module with the one function ``name``.

    Raises:
        CompileError: the dialect cannot express part of the graph.
    """
    context = new_context()
    text, resources = read_graph(graph, FunctionWriter(name, types_of(graph), context.is_registered_operation))
    module = parse(text)
    fill_resources(module, resources, name)
    return module


def results_of(x: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the requested results as a sequence of tensors."""
    return [x] if isinstance(x, Tensor) else x


def refuse_inputs(inputs: object) -> None:
    """Raise an error if there are inputs beside pending tensors.

    Raises:
        TypeError: ``inputs`` is not empty.
    """
    if inputs:
        raise TypeError("pending tensors take no inputs; several of them are given as a list: get_mlir([x, y])")


def kind_of_device(device: str, graph_of: Callable[[Sequence[Tensor]], Any]) -> Kind:
    """Return the kind for tensors of a lazy device: one tensor, or a list or tuple of them.

    Args:
        device: name of the device.
        graph_of: function that returns the flat typed graph that computes pending tensors.
    """

    def is_there(x: object) -> bool:
        return isinstance(x, Tensor) and x.device.type == device

    def takes(x: object) -> bool:
        return is_there(x) or (isinstance(x, list | tuple) and bool(x) and all(map(is_there, x)))

    def capture(x: Tensor | Sequence[Tensor], inputs: Inputs) -> TorchFunction:
        refuse_inputs(inputs.values or inputs.dynamic_shapes)
        graph = graph_of(results_of(x))
        arguments = tuple(FunctionArgument(value.debugName(), "input") for value in graph.inputs())
        return TorchFunction(module_of_graph(graph, "forward"), arguments)

    return Kind(f"tensors of the {device} device", takes, capture)


register_kind(kind_of_device("lazy", lambda tensors: _C.lazy_pending_computation(tensors).graph))
