"""Writer of TorchScript graphs as functions in the Torch dialect, with their calls, control flow and containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Value, location, quote, symbol
from torchmdla.importer.function import dialect_name
from torchmdla.importer.graph import name_of, schema_of_node
from torchmdla.importer.sources import source_of
from torchmdla.importer.torchscript.types import dialect_type
from torchmdla.importer.torchscript.writer import ScriptWriter

# A graph's parameter types and result type, as the dialect writes them.
FunctionType = tuple[Sequence[str], str]


class Callees:
    """Callees that a graph may use.

    Args:
        is_registered: whether the Torch dialect has an op of this name.
        methods: (class, method) → parameter types and result type.
        functions: returns the imported function of a constant of type ``Function``, or None if it is unknown.
    """

    def __init__(
        self,
        is_registered: Callable[[str], bool],
        methods: Mapping[tuple[str, str], FunctionType],
        functions: Callable[[Any], tuple[str, FunctionType] | None],
    ) -> None:
        self.is_registered = is_registered
        self.methods = methods
        self.functions = functions


def function_type(graph: Any) -> FunctionType:
    """Return the parameter types and the result type of a graph.

    Raises:
        CompileError: If a type has no form in the dialect.
    """
    (result,) = graph.outputs()
    return [dialect_type(value.type()) for value in graph.inputs()], dialect_type(result.type())


def has_unknown_calls(graph: Any, callees: Callees) -> bool:
    """Return whether ``graph`` calls functions that only PyTorch's inliner finds, as in a loaded archive."""
    calls = graph.findAllNodes("prim::CallFunction")
    return any(callees.functions(next(call.inputs()).node().output().type()) is None for call in calls)


def write_graph(
    writer: ScriptWriter, callees: Callees, name: str, graph: Any, *, visibility: str, bounds: Sequence[str]
) -> None:
    """Write ``graph`` as the function ``name``.

    Args:
        writer: receives the text.
        callees: the callees.
        name: the function's name.
        graph: a TorchScript graph.
        visibility: ``"private"`` or ``"public"``.
        bounds: the known type of each argument, or an empty string.

    Raises:
        CompileError: If a part of the graph has no form in the dialect. The error names the node and its place.
    """
    _Function(writer, callees).write(name, graph, visibility, bounds)


class _Function:
    def __init__(self, writer: ScriptWriter, callees: Callees) -> None:
        self._writer = writer
        self._callees = callees
        self._values: dict[int, Value] = {}
        self._called: dict[int, tuple[str, FunctionType]] = {}

    def write(self, name: str, graph: Any, visibility: str, bounds: Sequence[str]) -> None:
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

    def _list(self, node: Any) -> None:
        self._op(node, "torch.prim.ListConstruct", self._inputs(node))

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
        types = [dialect_type(value.type()) for value in node.outputs()]
        results: list[Value] = []
        with self._writer.region_op("torch.prim.If", self._inputs(node), types, results):
            first, second = node.blocks()
            for block in (first, second):
                with self._writer.region(is_last=block is second):
                    self._nodes(block)
                    self._write_terminator(block, "torch.prim.If.yield", types)
        self._bind(node, results)

    def _loop(self, node: Any) -> None:
        types = [dialect_type(value.type()) for value in node.outputs()]
        most, condition, *initial = self._inputs(node)
        operands = [most, condition, *self._convert_all(initial, types)]
        results: list[Value] = []
        with self._writer.region_op("torch.prim.Loop", operands, types, results):
            (body,) = node.blocks()
            with self._writer.region([self._define(value) for value in body.inputs()]):
                self._nodes(body)
                self._write_terminator(body, "torch.prim.Loop.condition", ["!torch.bool", *types])
        self._bind(node, results)

    # Values

    def _op(self, node: Any, name: str, operands: Sequence[Value], attributes: str = "") -> None:
        types = [dialect_type(value.type()) for value in node.outputs()]
        self._bind(node, self._writer.op(name, operands, types, attributes))

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


_WRITERS: Mapping[str, Callable[[_Function, Any], None]] = {
    "prim::Constant": _Function._constant,
    "prim::ListConstruct": _Function._list,
    "prim::TupleConstruct": _Function._tuple,
    "prim::DictConstruct": _Function._dict,
    "prim::GetAttr": _Function._attribute,
    "prim::SetAttr": _Function._attribute,
    "prim::CallMethod": _Function._method,
    "prim::CallFunction": _Function._function,
    "prim::If": _Function._if,
    "prim::Loop": _Function._loop,
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
    if value is None or isinstance(value, bool | int | float | str | torch.device | torch.Tensor):
        return writer.constant(value)
    raise CompileError(f"a value of type {type_} has no form in the Torch dialect")
