"""A flat TorchScript graph with typed tensors as a function in the Torch dialect, one op for each node: for people to
read and passes to run.

Other than a program (``graph.py``) it has the arguments in the order and the form that the graph has them, constants in
place, and nothing rewritten for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value, quote
from torchmdla.importer.literals import Literals
from torchmdla.importer.torchscript.types import dialect_type
from torchmdla.importer.types import TensorMeta, tensor_type


def write_typed_graph(graph: Any, name: str, is_registered: Callable[[str], bool]) -> tuple[str, dict[str, Tensor]]:
    """Writes ``graph`` as the function ``name``, in a module of its own.

    Args:
        graph: a ``torch._C.Graph`` without control flow and without writes, its tensors typed with dtype and sizes. A
            tensor without a type is ``!torch.vtensor``, or ``None`` where it is a result that nobody uses.
        is_registered: whether the Torch dialect has an op of this name (``"torch.aten.relu"``). Others become
            ``torch.operator``.

    Returns:
        the text, and what its resources must hold, by name.

    Raises:
        CompileError: a dtype or a constant has no form in the dialect; names the op.
    """
    return _Writer(graph, is_registered).run(name)


class _Writer:
    def __init__(self, graph: Any, is_registered: Callable[[str], bool]) -> None:
        self._graph = graph
        self._is_registered = is_registered
        self._emitter = Emitter()
        self._values: dict[int, Value] = {}
        self._literals = Literals()

    def run(self, name: str) -> tuple[str, dict[str, Tensor]]:
        arguments = []
        for index, value in enumerate(self._graph.inputs()):
            arguments.append(Value(f"%arg{index}", _type(value.type())))
            self._values[value.unique()] = arguments[-1]
        for node in self._graph.nodes():
            try:
                self._node(node)
            except CompileError as error:
                raise CompileError(error.reason, op=error.op or node.kind(), source=error.source) from error
        results = [self._values[value.unique()] for value in self._graph.outputs()]
        return self._emitter.text(arguments, results, name), self._literals.resources

    def _node(self, node: Any) -> None:
        kind = node.kind()
        if kind == "prim::Constant":
            output = node.output()
            self._values[output.unique()] = self._constant(output.toIValue(), output.type())
            return
        operands = [self._values[value.unique()] for value in node.inputs()]
        name, attributes = _name(node), ""
        if kind != "prim::ListConstruct" and not self._is_registered(name):
            name, attributes = "torch.operator", f"<{{name = {quote(name)}}}> "
        types = [_result_type(value) for value in node.outputs()]
        names = self._emitter.op(name, operands, types, attributes)
        for value, result, type_ in zip(node.outputs(), names, types, strict=True):
            self._values[value.unique()] = Value(result, type_)

    def _constant(self, value: Any, type_: Any) -> Value:
        kind = type_.kind()
        if value is None:
            return self._emitter.none()
        if kind == "OptionalType":
            return self._constant(value, type_.getElementType())
        if kind == "ListType":
            element = type_.getElementType()
            items = [self._constant(item, element) for item in value]
            return self._emitter.list(items, dialect_type(element).removeprefix("!torch."))
        if isinstance(value, Tensor):
            return self._tensor(value)
        if kind not in _NUMBERS:
            raise CompileError(f"a constant of type {type_} has no form in the Torch dialect")
        return _NUMBERS[kind](self._emitter, value)

    def _tensor(self, tensor: Tensor) -> Value:
        meta = TensorMeta.of(tensor)
        attributes = f"<{{value = {self._literals.attribute(tensor)}}}> "
        (name,) = self._emitter.op("torch.vtensor.literal", [], [tensor_type(meta)], attributes)
        return Value(name, tensor_type(meta), meta)


_NUMBERS: Mapping[str, Callable[[Emitter, Any], Value]] = {
    "BoolType": lambda emitter, value: emitter.boolean(value),
    "IntType": lambda emitter, value: emitter.integer(value),
    "FloatType": lambda emitter, value: emitter.floating(value),
    "StringType": lambda emitter, value: emitter.string(value),
    "DeviceObjType": lambda emitter, value: emitter.device(str(value)),
}


def _name(node: Any) -> str:
    schema: str = node.schema()
    qualified: str = node.kind() if schema == "(no schema)" else schema.partition("(")[0]
    return "torch." + qualified.replace("::", ".")


def _result_type(value: Any) -> str:
    """What nobody uses and has no dtype was not asked for: a first layer's gradient of its input."""
    type_ = value.type()
    is_absent = type_.kind() == "TensorType" and type_.dtype() is None and not value.uses()
    return "!torch.none" if is_absent else _type(type_)


def _type(type_: Any) -> str:
    """As ``dialect_type``, but tensors are values, with the sizes and dtypes that are known."""
    if type_.kind() == "ListType" and type_.getElementType().kind() == "TensorType":
        return "!torch.list<vtensor>"
    if type_.kind() != "TensorType":
        return dialect_type(type_)
    sizes: Sequence[int] | None = type_.sizes()
    if sizes is None or type_.dtype() is None:
        return "!torch.vtensor"
    return tensor_type(TensorMeta(type_.dtype(), tuple(sizes), ()))
