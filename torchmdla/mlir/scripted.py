"""Conversion of TorchScript programs to functions in the Torch dialect.

A graph runs once with eager kernels. Branches, loops, lists and numbers that depend on sizes alone are then known. The
result is a flat graph of tensor ops, with the types of its values from the run. A graph whose control flow depends on
data is written as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchmdla.errors import CompileError
from torchmdla.importer import import_graph
from torchmdla.importer.flatten import Flattening
from torchmdla.importer.graph import name_of, schema_of_node
from torchmdla.importer.interpreter import input_name, run_and_record, tensors_in
from torchmdla.importer.schemas import is_metadata
from torchmdla.importer.sources import source_of
from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.mlir.function import FunctionArgument, TorchFunction, contiguous, from_imported
from torchmdla.mlir.module_builder import ModuleBuilder


def function_of_graph(graph: torch._C.Graph, inputs: Sequence[Any]) -> TorchFunction:
    """Return the function of a TorchScript graph for inputs like these, which are not written to.

    Args:
        graph: the graph; it is not changed.
        inputs: one value for each input of the graph, the scripted module for ``self``.

    Raises:
        TypeError: the number of inputs is wrong.
        DependsOnData: the program depends on the data of a tensor.
        CompileError: an op cannot be expressed. The message names the op and its location.
    """
    graph = graph.copy()
    torch._C._jit_pass_inline(graph)
    expected = list(graph.inputs())
    if len(expected) != len(inputs):
        raise TypeError(_count_mismatch(expected, inputs))
    # Runs may draw random numbers and write to their inputs.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        flat = _Flattening(writes=_writes(graph))
        flat.run(graph, inputs)
        torch._C._jit_pass_remove_mutation(flat.graph)  # type: ignore[attr-defined]
        torch._C._jit_pass_dce(flat.graph)
        _refuse_writes(flat.graph)
        _, record = run_and_record(flat.graph, [tensor.detach().clone() for tensor in flat.tensors])
    for value in [*flat.graph.inputs(), *flat.graph.outputs()]:
        record[value.debugName()] = contiguous(record[value.debugName()])
    imported = import_graph(flat.graph, record, [])
    metas = [record[value.debugName()] for value in flat.graph.inputs()]
    arguments: Any = list(zip(flat.arguments, metas, strict=True))
    return from_imported(imported, arguments, _constants(flat.graph), _names_of_weights(inputs))


def _constants(graph: torch._C.Graph) -> dict[tuple[int, int | None], FunctionArgument]:
    """Return the graph's tensor constants, by the index of the node that holds each."""
    nodes: list[Any] = list(graph.nodes())
    return {
        (index, None): FunctionArgument(f"constant{index}", "parameter", node.output().toIValue())
        for index, node in enumerate(nodes)
        if node.kind() == "prim::Constant" and isinstance(node.output().toIValue(), torch.Tensor)
    }


def _names_of_weights(inputs: Sequence[Any]) -> list[str]:
    """Return the names of the parameters and buffers of all modules among the inputs."""
    return [
        name
        for module in inputs
        if isinstance(module, torch.nn.Module)
        for named in (module.named_parameters(), module.named_buffers())
        for name, _ in named
    ]


def _count_mismatch(expected: Sequence[torch._C.Value], inputs: Sequence[Any]) -> str:
    """Return the error message for a wrong number of inputs; the program's module is not counted."""
    offset = int(bool(inputs) and isinstance(inputs[0], torch.jit.ScriptModule))
    names = ", ".join(value.debugName().partition(".")[0] for value in expected[offset:])
    count = len(expected) - offset
    return f"the program takes {count} {'input' if count == 1 else 'inputs'} ({names}), got {len(inputs) - offset}"


class DependsOnData(CompileError):
    """Error about a program whose behaviour depends on the data of a tensor."""


class _Flattening(Flattening):
    """Run of a program in which only tensor data depends on tensor data.

    ``tensors`` are the inputs of the flat graph. ``arguments`` are their descriptions in the program.

    Args:
        writes: whether some op writes to a tensor; weights are then copied first.
    """

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.arguments: list[FunctionArgument] = []
        self._writes = writes
        # Ids of tensors that depend on sizes alone, so that numbers read from them are known.
        self._known: set[int] = set()
        self._modules: dict[int, str] = {}
        self._weights: dict[str, torch.Tensor] = {}

    def run(self, graph: torch._C.Graph, inputs: Sequence[Any]) -> Any:
        arguments = []
        for value, input_ in zip(graph.inputs(), inputs, strict=True):
            if isinstance(input_, torch.nn.Module):
                self._modules[id(input_)] = ""
                arguments.append(input_)
            else:
                arguments.append(tree_map_only(torch.Tensor, partial(self._input, name=input_name(value)), input_))
        results = super().run(graph, arguments)
        outputs = tensors_in(results)
        if not outputs:
            raise CompileError("the program has no tensor among its results")
        for output in outputs:
            self.graph.registerOutput(self.value_of(output))
        return results

    def attribute(self, owner: Any, name: str) -> Any:
        value = getattr(owner, name)
        path = f"{self._modules[id(owner)]}.{name}".removeprefix(".")
        if isinstance(value, torch.Tensor):
            return self._weight(value, path)
        if isinstance(value, torch.nn.Module):
            self._modules[id(value)] = path
            self._held.append(value)
        return value

    def constant(self, value: Any) -> Any:
        def constant(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.detach().clone()
            self.bind(copy, self.graph.insertConstant(tensor))  # type: ignore[attr-defined]
            if tensor.dim() == 0:
                self._known.add(id(copy))
            return copy

        return tree_map_only(torch.Tensor, constant, value)

    def op(self, node: Any, arguments: Sequence[Any], results: list[Any]) -> None:
        tensors, result_ids = tensors_in(arguments), {id(tensor) for tensor in tensors_in(results)}
        known = all(id(tensor) in self._known for tensor in tensors)
        if not result_ids:
            if results and not is_metadata(node.kind()) and not known:
                raise DependsOnData("what follows depends on the data of a tensor, which is known only at run time")
            return
        super().op(node, arguments, results)
        if known and (tensors or node.kind() == "prim::NumToTensor"):
            self._known |= result_ids
        else:  # The op may have written to a known tensor.
            self._known -= result_ids

    def _input(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return self._argument(tensor, FunctionArgument(name, "input"), copy=True)

    def _weight(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        if path not in self._weights:
            argument = FunctionArgument(path, "parameter", tensor)
            copy = self._writes or not isinstance(tensor, torch.nn.Parameter)
            self._weights[path] = self._argument(tensor, argument, copy)
        return self._weights[path]

    def _argument(self, tensor: torch.Tensor, argument: FunctionArgument, copy: bool) -> torch.Tensor:
        value = tensor.detach().clone() if copy else tensor.detach()
        super().argument(value)
        self.tensors.append(tensor)
        self.arguments.append(argument)
        return value


def _refuse_writes(graph: torch._C.Graph) -> None:
    for node in graph.nodes():
        if _is_write(node):
            reason = "it writes to an input, a weight or a view, which torch.export can express and TorchScript cannot"
            raise CompileError(reason, op=name_of(node), source=source_of(node))


def _writes(block: Any) -> bool:
    """Return whether an op of a block writes to a tensor."""
    return any(_is_write(node) or any(_writes(inner) for inner in node.blocks()) for node in block.nodes())


def _is_write(node: Any) -> bool:
    schema = schema_of_node(node)
    return schema is not None and schema.is_mutable


# Programs with control flow


def function_with_control_flow(graph: torch._C.Graph, inputs: Sequence[Any]) -> TorchFunction:
    """Return the function of a TorchScript graph, with its control flow.

    ``graph`` and ``inputs`` are those of :func:`function_of_graph`.

    Raises:
        CompileError, CaptureError: the Torch dialect cannot express part of the graph; the message names it.
    """
    graph = graph.copy()
    torch._C._jit_pass_inline(graph)
    weights = _Weights(graph)
    arguments, tensors = [], []
    for value, input_ in zip(list(graph.inputs()), inputs, strict=True):
        if isinstance(input_, torch.Tensor):
            arguments.append(FunctionArgument(input_name(value), "input"))
            tensors.append(input_)
        elif isinstance(input_, torch.nn.Module):
            weights.lift(value, input_, "")
        else:
            weights.fix(value, input_)
    for index in reversed(range(len(inputs))):
        if not isinstance(inputs[index], torch.Tensor):
            graph.eraseInput(index)
    function: Any = torch._C._create_function_from_graph("forward", graph)
    names = [argument.name for argument in function.schema.arguments]
    specs = [TensorSpec(tensor.shape, tensor.dtype) for tensor in [*tensors, *weights.tensors]]
    builder = ModuleBuilder()
    builder.import_function(function, dict(zip(names, specs, strict=True)))
    return TorchFunction(builder.module, (*arguments, *weights.arguments), is_typed=False)


class _Weights:
    """Pass that turns a graph's reads of a module into inputs at the end of the graph, or into constants."""

    def __init__(self, graph: torch._C.Graph) -> None:
        self.arguments: list[FunctionArgument] = []
        self.tensors: list[torch.Tensor] = []
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
                self.tensors.append(read)
            else:
                self.fix(node.output(), read)
            node.destroy()
