"""Writer of a flat graph as a function in the Torch dialect, with one op for each call, for humans and passes.

Unlike a program (``builder.py``), the function has the graph's arguments in their order and form. Constants are in
place, and nothing is rewritten for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value, location, quote
from torchmdla.importer.literals import Literals
from torchmdla.importer.operands import Operand, materialise
from torchmdla.importer.reader import Values
from torchmdla.importer.schemas import overload_of
from torchmdla.importer.trace import leaves, qualified_name
from torchmdla.importer.types import Record, TensorMeta, tensor_type


def dialect_name(op: str) -> str:
    """Return the Torch dialect's name of an operator: ``"torch.aten.add.Tensor"`` for ``"aten::add.Tensor"``."""
    return "torch." + op.replace("::", ".")


class FunctionWriter(Values):
    """:class:`~torchmdla.importer.reader.GraphBuilder` of the function ``name`` in its own module.

    It produces the text, and the content of the text's resources by name.

    Args:
        name: the function's name.
        record: the types of the graph's values, all tensors.
        is_registered: whether the Torch dialect has an op of this name (``"torch.aten.relu"``). Other calls become
            ``torch.operator``.
        constants: the inputs that become constants instead of arguments, by name.
    """

    def __init__(
        self,
        name: str,
        record: Record,
        is_registered: Callable[[str], bool],
        constants: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(record)
        self._name = name
        self._is_registered = is_registered
        self._constants = constants or {}
        self._emitter = Emitter()
        self._arguments: list[Value] = []
        self._literals = Literals()

    def enter(self, op: str, source: str) -> None:
        self._emitter.location = location(source)

    def input(self, name: str) -> None:
        if name in self._constants:
            self.define(name, self._literal(self._constants[name]))
            return
        meta = self.recorded(name)
        self._arguments.append(_value(f"%arg{len(self._arguments)}", meta))
        self.define(name, self._arguments[-1])

    def constant(self, index: int, name: str, value: object) -> None:
        self.define(name, self._literal(value) if isinstance(value, Tensor) else value)

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[Operand], metas: Sequence[object]
    ) -> list[Operand]:
        if schema is None:
            raise CompileError("only operators of PyTorch's registry can be written in the Torch dialect")
        schema = _select_number_overload(schema, operands)
        values = [
            self._operand(operand, argument, operands)
            for operand, argument in zip(operands, schema.arguments, strict=True)
        ]
        name, attributes = dialect_name(qualified_name(schema)), ""
        if not self._is_registered(name):
            name, attributes = "torch.operator", f"<{{name = {quote(name)}}}> "
        names = self._emitter.op(name, values, [_type(meta) for meta in metas], attributes)
        return [
            self._unpack(result, meta) if isinstance(meta, list) else _value(result, meta)
            for result, meta in zip(names, metas, strict=True)
        ]

    def finish(self, outputs: Sequence[str]) -> tuple[str, dict[str, Tensor]]:
        results = [self.operand(name) for name in outputs]
        return self._emitter.text(self._arguments, results, self._name), self._literals.resources  # type: ignore[arg-type]

    def _literal(self, tensor: Tensor) -> Value:
        meta = TensorMeta.of(tensor)
        attributes = f"<{{value = {self._literals.attribute(tensor)}}}> "
        (name,) = self._emitter.op("torch.vtensor.literal", [], [tensor_type(meta)], attributes)
        return _value(name, meta)

    def _operand(self, operand: Operand, argument: torch._C.Argument, operands: Sequence[Operand]) -> Value:
        if argument.type.kind() == "TensorType" and isinstance(operand, bool | int | float):
            return self._emitter.number_tensor(operand, TensorMeta(_promoted_dtype(operand, operands), (), ()))
        return materialise(self._emitter, operand, argument.type, argument.N)  # type: ignore[attr-defined]

    def _unpack(self, name: str, metas: Sequence[object]) -> list[Value]:
        names = self._emitter.op("torch.prim.ListUnpack", [Value(name, _LIST)], [_type(meta) for meta in metas])
        return [_value(*pair) for pair in zip(names, metas, strict=True)]


_LIST = "!torch.list<vtensor>"


def _select_number_overload(schema: torch._C.FunctionSchema, operands: Sequence[Operand]) -> torch._C.FunctionSchema:
    """Return the overload for a number if the second operand is a number.

    PyTorch dispatches ``x * 2`` to the overload for tensors. The dialect has a separate op for numbers.
    """
    second = schema.arguments[1].type.kind() if len(operands) > 1 else ""
    name = schema.overload_name.replace("Tensor", "Scalar")
    if second != "TensorType" or not isinstance(operands[1], bool | int | float) or name == schema.overload_name:
        return schema
    packet = overload_of(qualified_name(schema))._overloadpacket
    return getattr(packet, name)._schema if name in packet.overloads() else schema  # type: ignore[no-any-return]


def _promoted_dtype(number: bool | int | float, operands: Sequence[Operand]) -> torch.dtype:
    """Return the dtype in which PyTorch computes a number with the first tensor among ``operands``."""
    metas = [leaf.meta for leaf in leaves(operands) if isinstance(leaf, Value) and leaf.meta]
    if not metas:
        return torch.tensor(number).dtype
    return torch.result_type(torch.empty(metas[0].shape, dtype=metas[0].dtype, device="meta"), number)


def _value(name: str, meta: object) -> Value:
    return Value(name, _type(meta), meta if isinstance(meta, TensorMeta) else None)


def _type(meta: object) -> str:
    if isinstance(meta, TensorMeta):
        return tensor_type(meta)
    if meta is None:
        return "!torch.none"
    if isinstance(meta, list) and all(isinstance(leaf, TensorMeta) for leaf in leaves(meta)):
        return _LIST
    raise CompileError(f"a result of type {type(meta).__name__} cannot be expressed")
