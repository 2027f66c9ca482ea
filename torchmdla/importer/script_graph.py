"""Conversion of PyTorch's graphs of TorchScript (``torch._C.Graph``) to the IR of ``torchmdla.script``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchmdla.importer.sources import source_of
from torchmdla.importer.types import Record, TensorMeta
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


def inline_graph(graph: torch._C.Graph) -> Graph:
    """Return a graph of PyTorch in our IR with the functions and methods that it calls."""
    graph = graph.copy()
    torch._C._jit_pass_inline(graph)
    return convert_graph(graph)


def _fill(converted: Block, block: Any, values: dict[int, Value]) -> None:
    def define(value: Any) -> Value:
        result = values[value.unique()] = Value(value.debugName(), convert_type(value.type()))
        return result

    converted.inputs = [define(value) for value in block.inputs()]
    for node in block.nodes():
        result = Node(_name_of(node), source=source_of(node))
        result.inputs = [values[value.unique()] for value in node.inputs()]
        result.attributes = _attributes(node)
        for inner in node.blocks():
            result.blocks.append(Block())
            _fill(result.blocks[-1], inner, values)
        result.outputs = [define(value) for value in node.outputs()]
        converted.nodes.append(result)
    converted.outputs = [values[value.unique()] for value in block.outputs()]


def _name_of(node: Any) -> str:
    """Return the name with overload of the operator that a node calls, or else the node's kind."""
    schema: str = node.schema()
    return node.kind() if schema == "(no schema)" else schema.partition("(")[0]


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
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _NAMED:
        return Type(_NAMED[kind], name=type_.annotation_str)
    if kind == "TupleType" and type_.annotation_str.partition("[")[0] not in ("Tuple", "NamedTuple"):
        return Type("NamedTuple", tuple(map(convert_type, type_.elements())), type_.annotation_str)
    arguments = tuple(convert_type(argument) for argument in type_.containedTypes())
    return Type(kind.removesuffix("Type"), arguments)


_PLAIN: Mapping[str, Type] = {
    "TensorType": Type("Tensor"),
    "IntType": Type("int"),
    "SymIntType": Type("int"),
    "FloatType": Type("float"),
    "ComplexType": Type("complex"),
    "BoolType": Type("bool"),
    "StringType": Type("str"),
    "NumberType": Type("number"),
    "NoneType": Type("NoneType"),
    "DeviceObjType": Type("Device"),
    "GeneratorType": Type("Generator"),
    "StreamObjType": Type("Stream"),
    "FunctionType": Type("Function"),
    "CapsuleType": Type("Capsule"),
    "AnyType": Type("Any"),
    "AnyListType": Type("AnyList"),
    "AnyTupleType": Type("AnyTuple"),
}

_NAMED: Mapping[str, str] = {"ClassType": "Class", "EnumType": "Enum", "InterfaceType": "Interface"}


def types_of(graph: torch._C.Graph) -> Record:
    """Return the recorded types of the tensors of a flat graph. A list has the types of its unpacked elements.

    The entry of a tensor without a type or uses is ``None``. It is a result that was not requested, such as the
    gradient of a first layer's input. Other tensors without a type are omitted.
    """
    values = [*graph.inputs(), *(value for node in graph.nodes() for value in node.outputs())]
    types = {value.debugName(): _type_of(value) for value in values}
    return {name: type_ for name, type_ in types.items() if type_ is not _UNKNOWN}


_UNKNOWN = object()


def _type_of(value: Any) -> object:
    type_ = value.type()
    if type_.kind() == "ListType":
        return [_type_of(element) for use in value.uses() for element in use.user.outputs()]
    if type_.kind() != "TensorType" or (type_.dtype() is None and not value.uses()):
        return None
    if type_.dtype() is None or type_.sizes() is None:
        return _UNKNOWN
    return TensorMeta(type_.dtype(), tuple(type_.sizes()), ())
