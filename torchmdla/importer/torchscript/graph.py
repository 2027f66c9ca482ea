"""Writer of TorchScript graphs as functions in the Torch dialect, with their calls, control flow and containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Value, location, quote, symbol
from torchmdla.importer.function import dialect_name
from torchmdla.importer.graph import name_of, schema_of_node
from torchmdla.importer.sources import source_of
from torchmdla.importer.torchscript.writer import ScriptWriter

# A graph's parameter types and result type, as the dialect writes them.
FunctionType = tuple[Sequence[str], str]


@dataclass(frozen=True)
class Callees:
    """Callees that a graph may use.

    Attributes:
        is_registered: whether the Torch dialect has an op of this name.
        methods: (class, method) → parameter types and result type.
        functions: returns the imported function of a constant of type ``Function``, or None if it is unknown.
    """

    is_registered: Callable[[str], bool]
    methods: Mapping[tuple[str, str], FunctionType]
    functions: Callable[[Any], tuple[str, FunctionType] | None]


def function_type(graph: Any) -> FunctionType:
    """Return the parameter types and the result type of a graph.

    Raises:
        CompileError: If a type has no form in the dialect.
    """
    (result,) = graph.outputs()
    return [dialect_type(value.type()) for value in graph.inputs()], dialect_type(result.type())


class GraphWriter:
    """Writer of one graph as a function.

    Args:
        writer: receives the text.
        callees: the callees.
    """

    def __init__(self, writer: ScriptWriter, callees: Callees) -> None:
        self._writer = writer
        self._callees = callees
        self._values: dict[int, Value] = {}
        self._called: dict[int, tuple[str, FunctionType]] = {}

    def write(self, name: str, graph: Any, visibility: str, bounds: Sequence[str]) -> None:
        """Write a TorchScript graph as the function ``name``.

        ``visibility`` is ``"private"`` or ``"public"``. ``bounds`` has the known type of each argument, or an empty
        string.

        Raises:
            CompileError: If a part of the graph has no form in the dialect. The error names the node and its place.
        """
        arguments = []
        for value, bound in zip(graph.inputs(), bounds, strict=True):
            parameter = self._define(value)
            attributes = f" {{torch.type_bound = {bound}}}" if bound else ""
            arguments.append(f"{parameter.name}: {parameter.type}{attributes}")
        result = function_type(graph)[1]
        self._writer.line(f"func.func {visibility} @{symbol(name)}({', '.join(arguments)}) -> {result} {{")
        with self._writer.indented():
            self._nodes(graph)
            self._write_terminator(graph, "func.return", [result])
        self._writer.line("}")

    def _nodes(self, block: Any) -> None:
        for node in block.nodes():
            source = source_of(node)
            self._writer.location = location(source)
            try:
                self._node(node)
            except CompileError as error:
                raise CompileError(error.reason, op=error.op or node.kind(), source=error.source or source) from error

    def _node(self, node: Any) -> None:
        name = name_of(node)
        if node.kind() in _WRITERS:
            _WRITERS[node.kind()](self, node)
        elif self._callees.is_registered(dialect_name(name)):
            self._op(node, dialect_name(name), self._inputs(node))
        elif schema_of_node(node) is not None:
            self._op(node, "torch.operator", self._inputs(node), f"name = {quote(dialect_name(name))}")
        else:
            raise CompileError("it has no form in the Torch dialect")

    # Nodes by kind

    def _constant(self, node: Any) -> None:
        output = node.output()
        if output.type().kind() == "FunctionType":
            # Inlining leaves constants of functions without calls.
            if (callee := self._callees.functions(output.type())) is not None:
                self._called[output.unique()] = callee
        else:
            self._bind(node, [write_value(self._writer, output.toIValue(), output.type())])

    def _tuple(self, node: Any) -> None:
        expected = [dialect_type(contained) for contained in node.output().type().containedTypes()]
        self._op(node, "torch.prim.TupleConstruct", self._convert_all(self._inputs(node), expected))

    def _dict(self, node: Any) -> None:
        inputs = self._inputs(node)
        type_ = node.output().type()
        keys, values = inputs[::2], inputs[1::2]
        values = self._convert_all(values, [dialect_type(type_.getValueType())] * len(values))
        self._op(node, "torch.prim.DictConstruct", [*keys, *values])

    def _attribute(self, node: Any) -> None:
        self._op(node, dialect_name(node.kind()), self._inputs(node), f"name = {quote(node.s('name'))}")

    def _method(self, node: Any) -> None:
        receiver = next(node.inputs()).type()
        name = node.s("name")
        callee = None
        if receiver.kind() == "ClassType":
            callee = self._callees.methods.get((receiver.qualified_name(), name))
        if callee is None:
            raise CompileError(f"method {name!r} of {receiver} is not of a module that is imported")
        self._op(
            node, "torch.prim.CallMethod", self._convert_all(self._inputs(node), callee[0]), f"name = {quote(name)}"
        )

    def _function(self, node: Any) -> None:
        function, *arguments = node.inputs()
        name, (expected, _) = self._called[function.unique()]
        operands = self._convert_all([self._values[value.unique()] for value in arguments], expected)
        self._op(node, "func.call", operands, f"callee = @{symbol(name)}")

    def _if(self, node: Any) -> None:
        self._op_with_blocks(node, "torch.prim.If", self._inputs(node), "torch.prim.If.yield")

    def _loop(self, node: Any) -> None:
        most, condition, *initial = self._inputs(node)
        operands = [most, condition, *self._convert_all(initial, _result_types(node))]
        self._op_with_blocks(node, "torch.prim.Loop", operands, "torch.prim.Loop.condition", "!torch.bool")

    def _op_with_blocks(
        self, node: Any, name: str, operands: Sequence[Value], terminator: str, *further_types: str
    ) -> None:
        """Write an op whose blocks end with ``terminator``, which has values of ``further_types``, then the results."""
        types = _result_types(node)
        with self._writer.region_op(name, operands, types) as results:
            blocks = list(node.blocks())
            for block in blocks:
                with self._writer.region([self._define(value) for value in block.inputs()], block is blocks[-1]):
                    self._nodes(block)
                    self._write_terminator(block, terminator, [*further_types, *types])
        self._bind(node, results)

    # Values

    def _op(self, node: Any, name: str, operands: Sequence[Value], attributes: str = "") -> None:
        self._bind(node, self._writer.op(name, operands, _result_types(node), attributes))

    def _write_terminator(self, block: Any, name: str, expected: Sequence[str]) -> None:
        results = [self._values[value.unique()] for value in block.outputs()]
        self._writer.op(name, self._convert_all(results, expected), [])

    def _convert_all(self, values: Sequence[Value], expected: Sequence[str]) -> list[Value]:
        return [self._convert(value, type_) for value, type_ in zip(values, expected, strict=True)]

    def _convert(self, value: Value, expected: str) -> Value:
        """Return a value converted to the type ``expected``, which may be wider.

        TorchScript converts such values implicitly; the dialect does not.
        """
        if value.type == expected:
            return value
        is_tensor = value.type.startswith("!torch.tensor") and expected == "!torch.tensor"
        name = "torch.tensor_static_info_cast" if is_tensor else "torch.derefine"
        return self._writer.op(name, [value], [expected])[0]

    def _inputs(self, node: Any) -> list[Value]:
        return [self._values[value.unique()] for value in node.inputs()]

    def _define(self, value: Any) -> Value:
        result = self._values[value.unique()] = self._writer.fresh(dialect_type(value.type()))
        return result

    def _bind(self, node: Any, results: Sequence[Value]) -> None:
        for value, result in zip(node.outputs(), results, strict=True):
            self._values[value.unique()] = result


def _result_types(node: Any) -> list[str]:
    return [dialect_type(value.type()) for value in node.outputs()]


_WRITERS: Mapping[str, Callable[[GraphWriter, Any], None]] = {
    "prim::Constant": GraphWriter._constant,
    "prim::TupleConstruct": GraphWriter._tuple,
    "prim::DictConstruct": GraphWriter._dict,
    "prim::GetAttr": GraphWriter._attribute,
    "prim::SetAttr": GraphWriter._attribute,
    "prim::CallMethod": GraphWriter._method,
    "prim::CallFunction": GraphWriter._function,
    "prim::If": GraphWriter._if,
    "prim::Loop": GraphWriter._loop,
}


def write_value(writer: ScriptWriter, value: Any, type_: Any) -> Value:
    """Write a constant of TorchScript, or the value of an attribute.

    Raises:
        CompileError: If the value has no form in the dialect.
    """
    kind = type_.kind()
    if kind == "TensorType" and isinstance(value, bool | int | float):
        # A trace made a tensor of a number.
        value = torch.tensor(value, dtype=type_.dtype())
    if kind == "OptionalType" and value is not None:
        return write_value(writer, value, type_.getElementType())
    if kind == "ListType":
        element = type_.getElementType()
        operands = [write_value(writer, item, element) for item in value]
        return writer.op("torch.prim.ListConstruct", operands, [dialect_type(type_)])[0]
    if kind == "TupleType":
        parts = [write_value(writer, *pair) for pair in zip(value, type_.containedTypes(), strict=True)]
        joined = ", ".join(part.type.removeprefix("!torch.") for part in parts)
        return writer.op("torch.prim.TupleConstruct", parts, [f"!torch.tuple<{joined}>"])[0]
    if kind == "DictType":
        keys = [write_value(writer, key, type_.getKeyType()) for key in value]
        values = [write_value(writer, item, type_.getValueType()) for item in value.values()]
        return writer.op("torch.prim.DictConstruct", [*keys, *values], [dialect_type(type_)])[0]
    return writer.constant(value, type_)


# Types


def dialect_type(type_: Any) -> str:
    """Return a type of TorchScript as the Torch dialect writes it: ``"!torch.list<optional<int>>"``.

    Tensors are ``!torch.tensor``, because the sizes that a trace recorded need not hold.

    Raises:
        CompileError: If the dialect does not have the type.
    """
    return f"!torch.{_inner(type_)}"


def _inner(type_: Any) -> str:
    kind = type_.kind()
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _NESTED:
        return _NESTED[kind](type_)
    raise CompileError(f"type {type_} has no form in the Torch dialect")


def _container(name: str) -> Callable[[Any], str]:
    return lambda type_: f"{name}<{', '.join(_inner(contained) for contained in type_.containedTypes())}>"


_PLAIN: Mapping[str, str] = {
    "TensorType": "tensor",
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "NumberType": "number",
    "StringType": "str",
    "DeviceObjType": "Device",
    "GeneratorType": "Generator",
    "NoneType": "none",
    "AnyType": "any",
}

_NESTED: Mapping[str, Callable[[Any], str]] = {
    "ListType": lambda type_: f"list<{_inner(type_.getElementType())}>",
    "OptionalType": lambda type_: f"optional<{_inner(type_.getElementType())}>",
    "TupleType": _container("tuple"),
    "UnionType": _container("union"),
    "DictType": lambda type_: f"dict<{_inner(type_.getKeyType())}, {_inner(type_.getValueType())}>",
    "ClassType": lambda type_: f"nn.Module<{quote(type_.qualified_name())}>",
}
