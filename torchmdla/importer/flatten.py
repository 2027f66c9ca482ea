"""Flattening of TorchScript graphs by running them, which makes branches, loops, lists and numbers known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchmdla.importer.interpreter import Run, tensors_in
from torchmdla.importer.types import record_value
from torchmdla.script.ir import Graph, Node, Type, Value

_TENSOR = Type("Tensor")


class Flattening(Run):
    """Run of a graph that writes every op with tensors among its results into another graph.

    Attributes:
        graph: the flat graph. Its inputs are tensors. Values other than tensors are constants.
        record: type or value of each of its inputs and results, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph(name="graph")
        self.record: dict[str, object] = {}
        self._count = 0
        # Keyed by id. _held keeps the tensors alive, so that ids stay unique.
        self._made: dict[int, Value] = {}
        self._held: list[Any] = []

    def argument(self, tensor: torch.Tensor) -> Value:
        """Add an input to ``graph`` that represents ``tensor`` from now on."""
        value = self._new(_TENSOR)
        self.graph.inputs.append(value)
        self.bind(tensor, value)
        return value

    def bind(self, result: Any, value: Value) -> None:
        """Record that ``value`` of ``graph`` represents ``result``."""
        self.record[value.name] = record_value(result)
        if isinstance(result, torch.Tensor):
            self._made[id(result)] = value
            self._held.append(result)

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Return the value of ``graph`` that represents ``tensor``."""
        return self._made[id(tensor)]

    def literal(self, known: Any, type_: Type) -> Value:
        """Return a constant where the program has a value of ``type_``."""
        return self._append(Node("prim::Constant", attributes={"value": known}), [type_])[0]

    def op(self, node: Node, arguments: Sequence[Any], results: list[Any]) -> None:
        if not tensors_in(results):
            return
        operands = [self.operand(*pair) for pair in zip(arguments, (value.type for value in node.inputs), strict=True)]
        clone = Node(node.op, operands, attributes=node.attributes, source=node.source)
        outputs = self._append(clone, [output.type for output in node.outputs])
        for result, output in zip(results, outputs, strict=True):
            self.bind(result, output)
            if isinstance(result, list | tuple):
                elements = self._append(Node("prim::ListUnpack", [output]), [_TENSOR] * len(result))
                for item, element in zip(result, elements, strict=True):
                    self.bind(item, element)

    def operand(self, argument: Any, type_: Type) -> Value:
        """Return the value of ``graph`` that represents ``argument``, which has type ``type_``."""
        if isinstance(argument, torch.Tensor):
            return self.value_of(argument)
        if not tensors_in(argument):
            return self.literal(list(argument) if isinstance(argument, list | tuple) else argument, type_)
        elements = [self.operand(item, _TENSOR) for item in argument]
        return self._append(Node("prim::ListConstruct", elements), [Type("List", (_TENSOR,))])[0]

    def finish(self, outputs: Iterable[Value]) -> None:
        """Make ``graph`` return ``outputs``, and remove the nodes that they do not need."""
        self.graph.outputs = list(outputs)
        needed = set(self.graph.outputs)
        for node in reversed(self.graph.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
        self.graph.nodes = [node for node in self.graph.nodes if needed.intersection(node.outputs)]

    def _append(self, node: Node, types: Sequence[Type]) -> list[Value]:
        """Append a node with results of these types, and return the results."""
        node.outputs = [self._new(type_) for type_ in types]
        self.graph.nodes.append(node)
        return node.outputs

    def _new(self, type_: Type) -> Value:
        self._count += 1
        return Value(str(self._count), type_)
