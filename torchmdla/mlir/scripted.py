"""Conversion of TorchScript programs to functions in the Torch dialect.

A graph runs once with eager kernels. Branches, loops, lists and numbers that depend on sizes alone are then known. The
result is a flat graph of tensor ops, with the types of its values from the run. A graph whose control flow depends on
data is written as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchmdla.errors import CompileError
from torchmdla.importer import import_graph
from torchmdla.importer.flatten import Flattening
from torchmdla.importer.graph import functional_name
from torchmdla.importer.interpreter import tensors_in
from torchmdla.importer.schemas import find_schema, is_metadata
from torchmdla.importer.tensor_spec import TensorSpec
from torchmdla.mlir.function import FunctionArgument, TorchFunction, contiguous, from_imported
from torchmdla.mlir.module_builder import ModuleBuilder
from torchmdla.script.ir import Block, Graph, Node, Value


def function_of_graph(graph: Graph, inputs: Sequence[Any]) -> TorchFunction:
    """Return the function of a TorchScript graph for inputs like these, which are not written to.

    Args:
        graph: the graph, with everything inlined.
        inputs: one value for each input of the graph, the scripted module for ``self``.

    Raises:
        TypeError: the number of inputs is wrong.
        DependsOnData: the program depends on the data of a tensor.
        CompileError: an op cannot be expressed. The message names the op and its location.
    """
    if len(graph.inputs) != len(inputs):
        raise TypeError(_count_mismatch(graph, inputs))
    # Runs may draw random numbers and write to their inputs.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        flat = _Flattening(writes=any(map(_writes, graph.walk())))
        flat.run(graph, inputs)
    for value in [*flat.graph.inputs, *flat.graph.outputs]:
        flat.record[value.name] = contiguous(flat.record[value.name])
    imported = import_graph(flat.graph, flat.record, [])
    metas: Any = [flat.record[value.name] for value in flat.graph.inputs]
    arguments = list(zip(flat.arguments, metas, strict=True))
    return from_imported(imported, arguments, _constants(flat.graph), _names_of_weights(inputs))


def _constants(graph: Graph) -> dict[tuple[int, int | None], FunctionArgument]:
    """Return the graph's tensor constants, by the index of the node that holds each."""
    constants = ((index, node.attributes.get("value")) for index, node in enumerate(graph.nodes))
    return {
        (index, None): FunctionArgument(f"constant{index}", "parameter", value)
        for index, value in constants
        if isinstance(value, torch.Tensor)
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


def _count_mismatch(graph: Graph, inputs: Sequence[Any]) -> str:
    """Return the error message for a wrong number of inputs; the program's module is not counted."""
    offset = int(bool(inputs) and isinstance(inputs[0], torch.nn.Module))
    names = graph.parameters[offset:]
    count = f"{len(names)} {'input' if len(names) == 1 else 'inputs'} ({', '.join(names)})"
    return f"the program takes {count}, got {len(inputs) - offset}"


class DependsOnData(CompileError):
    """Error about a program whose behaviour depends on the data of a tensor."""


class _Flattening(Flattening):
    """Run of a program in which only tensor data depends on tensor data.

    ``arguments`` describes the inputs of the flat graph in the program.

    Args:
        writes: whether some op writes to a tensor; weights are then copied first.
    """

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.arguments: list[FunctionArgument] = []
        self._writes = writes
        # Ids of tensors that depend on sizes alone, so that numbers read from them are known.
        self._known: set[int] = set()
        self._modules: dict[int, str] = {}
        self._weights: dict[str, torch.Tensor] = {}
        # For the memory of each tensor, whether it belongs to one result of the graph alone.
        self._is_owned: dict[int, bool] = {}

    def run(self, graph: Graph, inputs: Sequence[Any]) -> Any:
        arguments = []
        for name, input_ in zip(graph.parameters, inputs, strict=True):
            if isinstance(input_, torch.nn.Module):
                self._modules[id(input_)] = ""
                arguments.append(input_)
            else:
                arguments.append(tree_map_only(torch.Tensor, partial(self._input, name=name), input_))
        results = super().run(graph, arguments)
        outputs = tensors_in(results)
        if not outputs:
            raise CompileError("the program has no tensor among its results")
        self.finish(map(self.value_of, outputs))
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

    def constant(self, node: Node) -> Any:
        def constant(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.detach().clone()
            self.bind(copy, self.literal(tensor, node.outputs[0].type))
            self._is_owned[copy.untyped_storage()._cdata] = False
            if tensor.dim() == 0:
                self._known.add(id(copy))
            return copy

        return tree_map_only(torch.Tensor, constant, super().constant(node))

    def op(self, node: Node, arguments: Sequence[Any], results: list[Any]) -> None:
        tensors, result_ids = tensors_in(arguments), {id(tensor) for tensor in tensors_in(results)}
        known = all(id(tensor) in self._known for tensor in tensors)
        if _writes(node):
            self._check_write(node, arguments, results)
        if not result_ids:
            if results and not is_metadata(node.kind) and not known:
                raise DependsOnData("what follows depends on the data of a tensor, which is known only at run time")
            return
        super().op(node, arguments, results)
        if known and (tensors or node.kind == "prim::NumToTensor"):
            self._known |= result_ids
        else:  # The op may have written to a known tensor.
            self._known -= result_ids

    def bind(self, result: Any, value: Value) -> None:
        if self._writes and isinstance(result, torch.Tensor) and id(result) not in self._made:
            memory = result.untyped_storage()._cdata
            self._is_owned[memory] = memory not in self._is_owned
        super().bind(result, value)

    def _check_write(self, node: Node, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """Refuse a write that the result of the node does not show: the result replaces only the written tensor."""
        is_result = functional_name(node.op) != node.op and any(result is arguments[0] for result in results)
        if not is_result or not self._is_owned[arguments[0].untyped_storage()._cdata]:
            raise CompileError(
                "it writes to an input, a weight or a view, which torch.export can express and TorchScript cannot"
            )

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
        self._is_owned[value.untyped_storage()._cdata] = False
        self.arguments.append(argument)
        return value


def _writes(node: Node) -> bool:
    schema = find_schema(node.op)
    return schema is not None and schema.is_mutable


# Programs with control flow


def function_with_control_flow(graph: Graph, inputs: Sequence[Any]) -> TorchFunction:
    """Return the function of a TorchScript graph, with its control flow.

    ``graph`` and ``inputs`` are those of :func:`function_of_graph`.

    Raises:
        CompileError, CaptureError: the Torch dialect cannot express part of the graph; the message names it.
    """
    lifted = _Lifted(graph, inputs)
    specs = {name: TensorSpec(tensor.shape, tensor.dtype) for name, tensor in lifted.tensors.items()}
    builder = ModuleBuilder()
    builder.import_graph(lifted.graph, {}, specs)
    return TorchFunction(builder.module, tuple(lifted.arguments), is_typed=False)


class _Lifted:
    """Graph whose inputs are tensors. Reads of a module are inputs at its end, or constants.

    ``arguments`` describes its inputs. ``tensors`` has their values, by name.
    """

    def __init__(self, graph: Graph, inputs: Sequence[Any]) -> None:
        self.graph = Graph(name="forward", outputs=graph.outputs)
        self.arguments: list[FunctionArgument] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self._modules: dict[Value, tuple[torch.nn.Module, str]] = {}
        constants = []
        for value, name, input_ in zip(graph.inputs, graph.parameters, inputs, strict=True):
            if isinstance(input_, torch.Tensor):
                self._input(value, input_, FunctionArgument(name, "input"))
            elif isinstance(input_, torch.nn.Module):
                self._modules[value] = input_, ""
            else:
                constants.append(Node("prim::Constant", outputs=[value], attributes={"value": input_}))
        self.graph.nodes = [*constants, *self._nodes(graph)]

    def _input(self, value: Value, tensor: torch.Tensor, argument: FunctionArgument) -> None:
        self.graph.inputs.append(value)
        self.graph.parameters.append(str(len(self.arguments)))
        self.tensors[self.graph.parameters[-1]] = tensor
        self.arguments.append(argument)

    def _nodes(self, block: Block) -> list[Node]:
        """Return the nodes of a block without reads of modules."""
        return [lifted for node in block.nodes for lifted in self._lift(node)]

    def _lift(self, node: Node) -> Sequence[Node]:
        if not any(value in self._modules for value in node.inputs):
            blocks = [Block(inner.inputs, self._nodes(inner), inner.outputs) for inner in node.blocks]
            return [replace(node, blocks=blocks)]
        if node.op != "prim::GetAttr":
            raise CompileError("it writes to an attribute or calls a method", op=node.op, source=node.source)
        (output,), (owner, path) = node.outputs, self._modules[node.inputs[0]]
        attribute = getattr(owner, str(node.attributes["name"]))
        path = f"{path}.{node.attributes['name']}".removeprefix(".")
        if isinstance(attribute, torch.nn.Module):
            self._modules[output] = attribute, path
        elif isinstance(attribute, torch.Tensor):
            self._input(output, attribute, FunctionArgument(path, "parameter", attribute))
        else:
            return [Node("prim::Constant", outputs=[output], attributes={"value": attribute}, source=node.source)]
        return []
