"""A functional FX graph as a function in the Torch dialect, one op for each call: for people to read and passes to run.

Other than a program (``fx.py``) it has the arguments in the order and the form that the user gave, constants in place,
and nothing rewritten for a device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value, location, quote
from torchmdla.importer.fx import name_of_call, source_of_node
from torchmdla.importer.literals import Literals
from torchmdla.importer.operands import Operand, materialise
from torchmdla.importer.trace import in_schema_order, leaves, map_structure, qualified_name
from torchmdla.importer.types import TensorMeta, recorded, tensor_type


def write_function(
    graph: fx.Graph,
    name: str,
    constants: Mapping[fx.Node, Tensor],
    is_registered: Callable[[Any], bool],
) -> tuple[str, dict[str, Tensor]]:
    """Writes ``graph`` as the function ``name``, in a module of its own.

    Args:
        graph: of ``OpOverload`` calls and ``operator.getitem``, with an example of each value in ``meta["val"]``; it
            returns a tuple of tensors.
        constants: the placeholders that are no arguments but constants.
        is_registered: whether the Torch dialect has an op for an ``OpOverload``. Others become ``torch.operator``.

    Returns:
        the text, and what its resources must hold, by name.

    Raises:
        CompileError: a dtype or an argument has no form in the dialect; names the op and its place.
    """
    return _Writer(graph, constants, is_registered).run(name)


def dialect_name(overload: Any) -> str:
    """The Torch dialect's name of an operator, ``"torch.aten.add.Tensor"``."""
    return "torch." + qualified_name(overload._schema).replace("::", ".")


class _Writer:
    def __init__(
        self, graph: fx.Graph, constants: Mapping[fx.Node, Tensor], is_registered: Callable[[Any], bool]
    ) -> None:
        self._graph = graph
        self._constants = constants
        self._is_registered = is_registered
        self._emitter = Emitter()
        self._values: dict[fx.Node, Operand] = {}
        self._arguments: list[Value] = []
        self._literals = Literals()

    def run(self, name: str) -> tuple[str, dict[str, Tensor]]:
        results: list[Value] = []
        for node in self._graph.nodes:
            self._emitter.location = location(source_of_node(node))
            if node.op == "output":
                results = [self._values[result] for result in node.args[0]]  # type: ignore[misc]
            elif node.op == "placeholder":
                self._values[node] = self._placeholder(node)
            else:
                self._values[node] = self._blamed_call(node)
        return self._emitter.text(self._arguments, results, name), self._literals.resources

    def _placeholder(self, node: fx.Node) -> Value:
        if node in self._constants:
            return self._constant(self._constants[node])
        meta = TensorMeta.of(node.meta["val"])
        value = Value(f"%arg{len(self._arguments)}", tensor_type(meta), meta)
        self._arguments.append(value)
        return value

    def _constant(self, tensor: Tensor) -> Value:
        meta = TensorMeta.of(tensor)
        attributes = f"<{{value = {self._literals.attribute(tensor)}}}> "
        (name,) = self._emitter.op("torch.vtensor.literal", [], [tensor_type(meta)], attributes)
        return Value(name, tensor_type(meta), meta)

    def _blamed_call(self, node: fx.Node) -> Operand:
        try:
            return self._call(node)
        except CompileError as error:
            raise CompileError(error.reason, op=name_of_call(node), source=source_of_node(node)) from error

    def _call(self, node: fx.Node) -> Operand:
        if node.target is operator.getitem:
            made, index = node.args
            return self._values[made][index]  # type: ignore[index]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CompileError("only operators of PyTorch's registry can be written in the Torch dialect")
        overload, args = _on_scalars(node.target, node.args)
        schema = overload._schema
        operands = [
            self._operand(value, argument, node)
            for value, argument in zip(in_schema_order(schema, args, node.kwargs), schema.arguments, strict=True)
        ]
        return self._emit(overload, operands, node.meta.get("val"), len(schema.returns) != 1)

    def _emit(self, overload: Any, operands: Sequence[Value], seen: Any, several: bool) -> Operand:
        name, attributes = dialect_name(overload), ""
        if not self._is_registered(overload):
            name, attributes = "torch.operator", f"<{{name = {quote(name)}}}> "
        metas = [recorded(one) for one in (seen if several else [seen])]
        types = [_type(meta) for meta in metas]
        names = self._emitter.op(name, operands, types, attributes)
        results = [
            self._unpacked(result, meta) if isinstance(meta, list) else Value(result, type_, meta)
            for result, type_, meta in zip(names, types, metas, strict=True)
        ]
        return results if several else results[0]

    def _unpacked(self, name: str, metas: Sequence[TensorMeta]) -> Operand:
        types = [tensor_type(meta) for meta in metas]
        names = self._emitter.op("torch.prim.ListUnpack", [Value(name, "!torch.list<vtensor>")], types)
        return [Value(*one) for one in zip(names, types, metas, strict=True)]

    def _operand(self, value: Any, argument: Any, node: fx.Node) -> Value:
        read = map_structure(lambda leaf: self._values[leaf] if isinstance(leaf, fx.Node) else leaf, value)
        if argument.type.kind() == "TensorType" and isinstance(read, bool | int | float):
            dtype = _promoted(read, node)
            return self._emitter.number_tensor(read, TensorMeta(dtype, (), ()))
        if isinstance(read, torch.device):
            read = str(read)
        return materialise(self._emitter, read, argument.type, argument.N)


def _on_scalars(overload: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """PyTorch dispatches ``x * 2`` to the overload for tensors; the dialect has the number's own."""
    second = overload._schema.arguments[1] if len(args) > 1 else None
    if second is not None and second.type.kind() == "TensorType" and isinstance(args[1], bool | int | float):
        name = overload._overloadname.replace("Tensor", "Scalar")
        packet = overload._overloadpacket
        if name != overload._overloadname and name in packet.overloads():
            return getattr(packet, name), args
    return overload, args


def _promoted(number: bool | int | float, node: fx.Node) -> torch.dtype:
    tensors = [leaf.meta["val"] for leaf in node.all_input_nodes if isinstance(leaf.meta.get("val"), Tensor)]
    return torch.result_type(tensors[0], number) if tensors else torch.tensor(number).dtype


def _type(meta: Any) -> str:
    if isinstance(meta, TensorMeta):
        return tensor_type(meta)
    if meta is None:
        return "!torch.none"
    if isinstance(meta, list) and all(isinstance(leaf, TensorMeta) for leaf in leaves(meta)):
        return "!torch.list<vtensor>"
    raise CompileError(f"a result of type {type(meta).__name__} cannot be expressed")
