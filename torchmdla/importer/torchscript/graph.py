"""Writer of TorchScript graphs as functions in the Torch dialect, with their calls, control flow and containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Value, location, quote, symbol
from torchmdla.importer.function import dialect_name
from torchmdla.importer.schemas import find_schema
from torchmdla.importer.torchscript.writer import ScriptWriter
from torchmdla.script import ir

# A graph's parameter types and result type, as the dialect writes them.
FunctionType = tuple[Sequence[str], str]


@dataclass(frozen=True)
class Callees:
    """Callees that a graph may use.

    Attributes:
        is_registered: whether the Torch dialect has an op of this name.
        methods: (class, method) → parameter types and result type.
        functions: returns the type of a function.
    """

    is_registered: Callable[[str], bool]
    methods: Mapping[tuple[str, str], FunctionType]
    functions: Callable[[str], FunctionType]


def function_type(graph: ir.Graph) -> FunctionType:
    """Return the parameter types and the result type of a graph.

    Raises:
        CompileError: If a type has no form in the dialect.
    """
    (result,) = graph.outputs
    return [dialect_type(value.type) for value in graph.inputs], dialect_type(result.type)


class GraphWriter:
    """Writer of one graph as a function.

    Args:
        writer: receives the text.
        callees: the callees.
    """

    def __init__(self, writer: ScriptWriter, callees: Callees) -> None:
        self._writer = writer
        self._callees = callees
        self._values: dict[ir.Value, Value] = {}
        self._called: dict[ir.Value, str] = {}

    def write(self, graph: ir.Graph, visibility: str, bounds: Sequence[str]) -> None:
        """Write a graph as the function of its name.

        ``visibility`` is ``"private"`` or ``"public"``. ``bounds`` has the known type of each argument, or an empty
        string.

        Raises:
            CompileError: If a part of the graph has no form in the dialect. The error names the node and its place.
        """
        arguments = []
        for value, bound in zip(graph.inputs, bounds, strict=True):
            parameter = self._define(value)
            attributes = f" {{torch.type_bound = {bound}}}" if bound else ""
            arguments.append(f"{parameter.name}: {parameter.type}{attributes}")
        result = function_type(graph)[1]
        self._writer.line(f"func.func {visibility} @{symbol(graph.name)}({', '.join(arguments)}) -> {result} {{")
        with self._writer.indented():
            self._nodes(graph)
            self._write_terminator(graph, "func.return", [result])
        self._writer.line("}")

    def _nodes(self, block: ir.Block) -> None:
        for node in block.nodes:
            self._writer.location = location(node.source)
            try:
                self._node(node)
            except CompileError as error:
                op, source = error.op or node.kind, error.source or node.source
                raise CompileError(error.reason, op=op, source=source) from error

    def _node(self, node: ir.Node) -> None:
        name = dialect_name(node.op)
        if node.op in _WRITERS:
            _WRITERS[node.op](self, node)
        elif self._callees.is_registered(name):
            self._op(node, name, self._inputs(node))
        elif find_schema(node.op) is not None:
            self._op(node, "torch.operator", self._inputs(node), f"name = {quote(name)}")
        else:
            raise CompileError("it has no form in the Torch dialect")

    # Nodes by kind

    def _constant(self, node: ir.Node) -> None:
        (output,), value = node.outputs, node.attributes["value"]
        if output.type.kind == "Function":
            # Inlining leaves constants of functions without calls.
            self._called[output] = str(value)
        else:
            self._bind(node, [write_value(self._writer, value, output.type)])

    def _tuple(self, node: ir.Node) -> None:
        expected = list(map(dialect_type, node.outputs[0].type.arguments))
        self._op(node, "torch.prim.TupleConstruct", self._convert_all(self._inputs(node), expected))

    def _dict(self, node: ir.Node) -> None:
        inputs = self._inputs(node)
        keys, values = inputs[::2], inputs[1::2]
        values = self._convert_all(values, [dialect_type(node.outputs[0].type.arguments[1])] * len(values))
        self._op(node, "torch.prim.DictConstruct", [*keys, *values])

    def _attribute(self, node: ir.Node) -> None:
        self._op(node, dialect_name(node.op), self._inputs(node), f"name = {quote(str(node.attributes['name']))}")

    def _method(self, node: ir.Node) -> None:
        receiver, name = node.inputs[0].type, str(node.attributes["name"])
        callee = self._callees.methods.get((receiver.name, name))
        if callee is None:
            raise CompileError(f"method {name!r} of {receiver} is not of a module that is imported")
        self._op(
            node, "torch.prim.CallMethod", self._convert_all(self._inputs(node), callee[0]), f"name = {quote(name)}"
        )

    def _function(self, node: ir.Node) -> None:
        function, *arguments = node.inputs
        name = self._called[function]
        expected, _ = self._callees.functions(name)
        operands = self._convert_all([self._values[value] for value in arguments], expected)
        self._op(node, "func.call", operands, f"callee = @{symbol(name)}")

    def _if(self, node: ir.Node) -> None:
        self._op_with_blocks(node, "torch.prim.If", self._inputs(node), "torch.prim.If.yield")

    def _loop(self, node: ir.Node) -> None:
        most, condition, *initial = self._inputs(node)
        operands = [most, condition, *self._convert_all(initial, _result_types(node))]
        self._op_with_blocks(node, "torch.prim.Loop", operands, "torch.prim.Loop.condition", "!torch.bool")

    def _op_with_blocks(
        self, node: ir.Node, name: str, operands: Sequence[Value], terminator: str, *further_types: str
    ) -> None:
        """Write an op whose blocks end with ``terminator``, which has values of ``further_types``, then the results."""
        types = _result_types(node)
        with self._writer.region_op(name, operands, types) as results:
            for block in node.blocks:
                with self._writer.region(list(map(self._define, block.inputs)), block is node.blocks[-1]):
                    self._nodes(block)
                    self._write_terminator(block, terminator, [*further_types, *types])
        self._bind(node, results)

    # Values

    def _op(self, node: ir.Node, name: str, operands: Sequence[Value], attributes: str = "") -> None:
        self._bind(node, self._writer.op(name, operands, _result_types(node), attributes))

    def _write_terminator(self, block: ir.Block, name: str, expected: Sequence[str]) -> None:
        results = [self._values[value] for value in block.outputs]
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

    def _inputs(self, node: ir.Node) -> list[Value]:
        return [self._values[value] for value in node.inputs]

    def _define(self, value: ir.Value) -> Value:
        result = self._values[value] = self._writer.fresh(dialect_type(value.type))
        return result

    def _bind(self, node: ir.Node, results: Sequence[Value]) -> None:
        self._values |= zip(node.outputs, results, strict=True)


def _result_types(node: ir.Node) -> list[str]:
    return [dialect_type(value.type) for value in node.outputs]


_WRITERS: Mapping[str, Callable[[GraphWriter, ir.Node], None]] = {
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


def write_value(writer: ScriptWriter, value: Any, type_: ir.Type) -> Value:
    """Write a constant of TorchScript, or the value of an attribute.

    Raises:
        CompileError: If the value has no form in the dialect.
    """
    if type_.kind == "Tensor" and isinstance(value, bool | int | float):
        # A trace made a tensor of a number.
        value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    if type_.kind == "Device" and isinstance(value, str):
        value = torch.device(value)
    if type_.kind == "Optional" and value is not None:
        return write_value(writer, value, type_.arguments[0])
    if type_.kind == "List":
        operands = [write_value(writer, item, type_.arguments[0]) for item in value]
        return writer.op("torch.prim.ListConstruct", operands, [dialect_type(type_)])[0]
    if type_.kind in ("Tuple", "NamedTuple"):
        parts = [write_value(writer, *pair) for pair in zip(value, type_.arguments, strict=True)]
        joined = ", ".join(part.type.removeprefix("!torch.") for part in parts)
        return writer.op("torch.prim.TupleConstruct", parts, [f"!torch.tuple<{joined}>"])[0]
    if type_.kind == "Dict":
        key, item = type_.arguments
        keys = [write_value(writer, part, key) for part in value]
        values = [write_value(writer, part, item) for part in value.values()]
        return writer.op("torch.prim.DictConstruct", [*keys, *values], [dialect_type(type_)])[0]
    return writer.constant(value, type_)


# Types


def dialect_type(type_: ir.Type) -> str:
    """Return a type of TorchScript as the Torch dialect writes it: ``"!torch.list<optional<int>>"``.

    Tensors are ``!torch.tensor``, because the sizes that a trace recorded need not hold.

    Raises:
        CompileError: If the dialect does not have the type.
    """
    return f"!torch.{_inner(type_)}"


def _inner(type_: ir.Type) -> str:
    if type_.kind in _PLAIN:
        return _PLAIN[type_.kind]
    if type_.kind in _NESTED:
        return f"{_NESTED[type_.kind]}<{', '.join(map(_inner, type_.arguments))}>"
    if type_.kind == "Class":
        return f"nn.Module<{quote(type_.name)}>"
    raise CompileError(f"type {type_} has no form in the Torch dialect")


_PLAIN: Mapping[str, str] = {
    "Tensor": "tensor",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "number": "number",
    "str": "str",
    "Device": "Device",
    "Generator": "Generator",
    "NoneType": "none",
    "Any": "any",
}

_NESTED: Mapping[str, str] = {
    "List": "list",
    "Optional": "optional",
    "Tuple": "tuple",
    "NamedTuple": "tuple",
    "Union": "union",
    "Dict": "dict",
}
