"""Conversion of TorchScript programs whose control flow depends on data; the control flow is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.interpreter import input_name
from torchmdla.importer.sources import source_of
from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.mlir.function import FunctionArgument, TorchFunction, parse
from torchmdla.mlir.module_builder import ModuleBuilder


def function_with_control_flow(graph: torch._C.Graph, inputs: Sequence[Any]) -> TorchFunction:
    """Return the function of a TorchScript graph, with its control flow.

    For flat functions see :func:`torchmdla.mlir.scripted.function_of_graph`.

    Raises:
        CompileError: the Torch dialect cannot express part of the graph; the message names it.
    """
    graph = graph.copy()
    torch._C._jit_pass_inline(graph)
    weights = _Weights(graph)
    for value, input_ in zip(list(graph.inputs()), inputs, strict=True):
        if isinstance(input_, torch.nn.Module):
            weights.lift(value, input_, "")
        elif not isinstance(input_, torch.Tensor):
            weights.fix(value, input_)
    for index in reversed([index for index, input_ in enumerate(inputs) if not isinstance(input_, torch.Tensor)]):
        graph.eraseInput(index)
    tensors = [input_ for input_ in inputs if isinstance(input_, torch.Tensor)]
    arguments = [
        FunctionArgument(input_name(value), "input") for value, _ in zip(graph.inputs(), tensors, strict=False)
    ]
    arguments += weights.arguments
    tensors += [argument.weight for argument in weights.arguments if argument.weight is not None]
    function: Any = torch._C._create_function_from_graph("forward", graph)
    names = [argument.name for argument in function.schema.arguments]
    specs = {name: TensorSpec(tensor.shape, tensor.dtype) for name, tensor in zip(names, tensors, strict=True)}
    builder = ModuleBuilder()
    builder.import_function(function, specs)
    module = parse(builder.module.operation.get_asm(enable_debug_info=True))
    return TorchFunction(module, tuple(arguments), is_typed=False)


class _Weights:
    """Pass that turns a graph's reads of a module into inputs at the end of the graph, or into constants."""

    def __init__(self, graph: torch._C.Graph) -> None:
        self.arguments: list[FunctionArgument] = []
        self._graph = graph

    def fix(self, value: torch._C.Value, known: Any) -> None:
        """Replace ``value`` by a constant."""
        constant = self._graph.insertConstant(known)  # type: ignore[attr-defined]
        constant.node().moveBefore(next(iter(self._graph.nodes())))
        value.replaceAllUsesWith(constant)

    def lift(self, owner: torch._C.Value, module: torch.nn.Module, path: str) -> None:
        """Replace all attribute reads of ``owner``, whose value is ``module``."""
        for use in list(owner.uses()):
            node = use.user
            if node.kind() != "prim::GetAttr":
                raise CompileError(
                    "it writes to an attribute or calls a method", op=node.kind(), source=source_of(node)
                )
            read = getattr(module, node.s("name"))
            name = f"{path}.{node.s('name')}".removeprefix(".")
            if isinstance(read, torch.nn.Module):
                self.lift(node.output(), read, name)
            elif isinstance(read, torch.Tensor):
                node.output().replaceAllUsesWith(self._graph.addInput())
                self.arguments.append(FunctionArgument(name, "parameter", read))
            else:
                self.fix(node.output(), read)
            node.destroy()
