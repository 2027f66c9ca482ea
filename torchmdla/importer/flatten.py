"""Flattening of TorchScript graphs by running them, which makes branches, loops, lists and numbers known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torchmdla.importer.interpreter import Run, tensors_in
from torchmdla.importer.types import TensorMeta


class Flattening(Run):
    """Run of a graph that writes every op with tensors among its results into another graph.

    Attributes:
        graph: the flat graph. Its inputs are tensors. Values other than tensors are constants.
        record: type (without strides) or value of each of its inputs and results, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = torch._C.Graph()
        self.record: dict[str, object] = {}
        # Keyed by id. _held keeps the tensors alive, so that ids stay unique.
        self._made: dict[int, torch._C.Value] = {}
        self._held: list[Any] = []

    def argument(self, tensor: torch.Tensor) -> torch._C.Value:
        """Add an input to ``graph`` that represents ``tensor`` from now on."""
        value = self.graph.addInput()
        self.bind(tensor, value)
        return value

    def bind(self, result: Any, value: torch._C.Value) -> None:
        """Record that ``value`` of ``graph`` represents ``result``."""
        self.record[value.debugName()] = tree_map_only(
            torch.Tensor, lambda tensor: TensorMeta(tensor.dtype, tuple(tensor.shape), ()), result
        )
        if isinstance(result, torch.Tensor):
            self._made[id(result)] = value
            self._held.append(result)

    def value_of(self, tensor: torch.Tensor) -> torch._C.Value:
        """Return the value of ``graph`` that represents ``tensor``."""
        return self._made[id(tensor)]

    def literal(self, known: Any, type_: Any) -> torch._C.Value:
        """Return a constant where the program has a value of ``type_``."""
        return self.graph.insertConstant(known)  # type: ignore[attr-defined, no-any-return]

    def op(self, node: Any, arguments: Sequence[Any], results: list[Any]) -> None:
        if not tensors_in(results):
            return
        operands = {
            value.debugName(): self.operand(argument, value.type())
            for value, argument in zip(node.inputs(), arguments, strict=True)
        }
        clone = self.graph.createClone(node, lambda value: operands[value.debugName()])  # type: ignore[attr-defined]
        self.graph.insertNode(clone)
        for result, output in zip(results, clone.outputs(), strict=True):
            self.bind(result, output)
            if isinstance(result, list | tuple):
                self._take_apart(result, output)

    def _take_apart(self, items: Sequence[Any], listed: torch._C.Value) -> None:
        unpack = self.graph.create("prim::ListUnpack", [listed], len(items))
        self.graph.insertNode(unpack)
        for item, element in zip(items, unpack.outputs(), strict=True):
            element.setType(torch._C.TensorType.get())
            self.bind(item, element)

    def operand(self, argument: Any, type_: Any) -> torch._C.Value:
        """Return the value of ``graph`` that represents ``argument``, which has type ``type_``."""
        if isinstance(argument, torch.Tensor):
            return self.value_of(argument)
        is_constant = not isinstance(argument, list | tuple) or (argument and None not in argument)
        if is_constant and not tensors_in(argument):
            return self.literal(list(argument) if isinstance(argument, tuple) else argument, type_)
        while type_.kind() == "OptionalType":
            type_ = type_.getElementType()
        elements = [self.operand(item, torch._C.TensorType.get()) for item in argument]
        construct = self.graph.create("prim::ListConstruct", elements, 1)
        self.graph.insertNode(construct)
        construct.output().setType(type_)
        return construct.output()
