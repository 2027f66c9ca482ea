"""Conversion of PyTorch's graphs of TorchScript (``torch._C.Graph``) to the IR of ``torchmdla.script``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchmdla.importer.graph import name_of
from torchmdla.importer.sources import source_of
from torchmdla.script.ir import Block, EnumValue, Graph, Node, Type, Value


def convert_graph(graph: torch._C.Graph, name: str = "graph") -> Graph:
    """Return a graph of PyTorch in our IR. Constants are PyTorch's objects: tensors, devices, modules.

    The values have the names of the graph (``debugName``). The attribute ``Subgraph`` of a group is a graph, too.
    """
    converted = Graph(name=name)
    _fill(converted, graph, {})
    converted.parameters = [value.name.partition(".")[0] for value in converted.inputs]
    if len(converted.outputs) == 1:
        converted.returns = converted.outputs[0].type
    return converted


def _fill(converted: Block, block: Any, values: dict[str, Value]) -> None:
    def define(value: Any) -> Value:
        name = value.debugName()
        result = values[name] = Value(name, convert_type(value.type()))
        return result

    converted.inputs = [define(value) for value in block.inputs()]
    for node in block.nodes():
        result = Node(name_of(node), source=source_of(node))
        result.inputs = [values[value.debugName()] for value in node.inputs()]
        result.attributes = _attributes(node)
        for inner in node.blocks():
            result.blocks.append(Block())
            _fill(result.blocks[-1], inner, values)
        result.outputs = [define(value) for value in node.outputs()]
        converted.nodes.append(result)
    converted.outputs = [values[value.debugName()] for value in block.outputs()]


def _attributes(node: Any) -> dict[str, object]:
    if node.kind() == "prim::Constant":
        return {"value": _constant(node)}
    return {name: _READERS[node.kindOf(name)](node, name) for name in node.attributeNames()}


def _constant(node: Any) -> object:
    type_ = node.output().type()
    if type_.kind() == "FunctionType":
        return type_.annotation_str
    if type_.kind() == "EnumType":
        # Python does not have the enumeration of a program from a file.
        member = str(node).partition("[value=")[2].partition("]")[0]
        return EnumValue(type_.annotation_str, member.rpartition(".")[2], None)
    return node.output().toIValue()


_READERS: Mapping[str, Callable[[Any, str], object]] = {
    "g": lambda node, name: convert_graph(node.g(name), name),
    "ty": lambda node, name: convert_type(node.ty(name)),
    "tys": lambda node, name: [convert_type(type_) for type_ in node.tys(name)],
    **{
        kind: lambda node, name, kind=kind: getattr(node, kind)(name)  # type: ignore[misc]
        for kind in ("s", "ss", "i", "is", "f", "fs", "t", "ts", "ival")
    },
}


def convert_type(type_: Any) -> Type:
    """Return a type of PyTorch's graphs in our IR."""
    kind = type_.kind()
    if kind in _NAMED:
        return Type(_NAMED[kind], name=type_.annotation_str)
    if kind == "TupleType" and type_.annotation_str.partition("[")[0] not in ("Tuple", "NamedTuple"):
        return Type("NamedTuple", tuple(map(convert_type, type_.elements())), type_.annotation_str)
    if kind in _PLAIN:
        return Type(_PLAIN[kind])
    arguments = tuple(convert_type(argument) for argument in type_.containedTypes())
    return Type(kind.removesuffix("Type"), arguments)


_PLAIN: Mapping[str, str] = {
    "TensorType": "Tensor",
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "ComplexType": "complex",
    "BoolType": "bool",
    "StringType": "str",
    "NumberType": "number",
    "NoneType": "NoneType",
    "DeviceObjType": "Device",
    "GeneratorType": "Generator",
    "StreamObjType": "Stream",
    "FunctionType": "Function",
    "CapsuleType": "Capsule",
    "AnyType": "Any",
    "AnyListType": "AnyList",
    "AnyTupleType": "AnyTuple",
}

_NAMED: Mapping[str, str] = {"ClassType": "Class", "EnumType": "Enum", "InterfaceType": "Interface"}
