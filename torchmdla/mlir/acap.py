"""Pending tensors of the acap device, and what they are computed from, as functions."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_mlir import ir

from torchmdla import _C, aten
from torchmdla.errors import CompileError
from torchmdla.mlir.function import FunctionArgument, TorchFunction
from torchmdla.mlir.kinds import Kind, register_kind
from torchmdla.mlir.lazy import module_of_graph
from torchmdla.mlir.specs import Inputs


def is_on_device(x: object) -> bool:
    """Whether it is a tensor of the device."""
    return isinstance(x, Tensor) and x.device.type == "acap"


def graph_of(tensor: Tensor, canonical: bool) -> ir.Module:
    """What ``tensor`` is computed from: ``@graph`` in the aten dialect.

    Args:
        tensor: on the device; it stays pending.
        canonical: one argument for each tensor and one constant for each number, and a name for each op, instead of
            one for each use.

    Raises:
        CompileError: something in it has no form in the dialect.
    """
    graph = _C.acap.pending_graph(tensor, argument_per_use=not canonical)
    try:
        module = aten.from_typed_graph(graph, name="graph", share_literals=canonical)
    except aten.AtenError as error:
        raise CompileError(f"it cannot be expressed in the aten dialect: {error}") from error
    if canonical:
        aten.layer_names(module)
    return module


def _pending(x: Any, inputs: Inputs) -> TorchFunction:
    if inputs.values or inputs.dynamic_shapes is not None:
        raise TypeError("a tensor of the acap device has its inputs from what it was computed of")
    graph = _C.acap.pending_graph(x, argument_per_use=False)
    arguments = tuple(FunctionArgument(value.debugName(), "input") for value in graph.inputs())
    return TorchFunction(module_of_graph(graph, "forward"), arguments)


register_kind(Kind("a tensor of the acap device", is_on_device, _pending))
