"""Writer of a PyTorch graph as one function in the aten dialect, op by op."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch_mlir import ir

from torchmdla.aten import constants, types
from torchmdla.aten.dialect import CAST, PARAMETER, new_context, register, verify
from torchmdla.aten.schemas import registry
from torchmdla.errors import CompileError
from torchmdla.importer.reader import Values
from torchmdla.importer.schemas import schema_of
from torchmdla.importer.trace import qualified_name
from torchmdla.importer.types import LAYOUTS, MEMORY_FORMATS, Record, TensorMeta, dtype_number


class DialectWriter(Values):
    """:class:`~torchmdla.importer.reader.GraphBuilder` of a module with one public function in the dialect.

    Args:
        name: name of the function.
        record: tensors, fake or not, or their types.
        parameters: names of the inputs that are weights.
        context: context of the module, or None for a new one.
        share_literals: whether a literal is written once, at its first use, or before each use.
    """

    def __init__(
        self,
        name: str,
        record: Record,
        parameters: Collection[str] = (),
        *,
        context: ir.Context | None,
        share_literals: bool = True,
    ) -> None:
        super().__init__(record)
        self._parameters = frozenset(parameters)
        self._source = ""
        self._context = context or new_context()
        self._share_literals = share_literals
        register(self._context)
        # Whether each argument is a parameter.
        self._arguments: list[bool] = []
        self._constants: dict[str, ir.Value] = {}
        with self._context, ir.Location.unknown():
            self._module = ir.Module.create()
            with ir.InsertionPoint(self._module.body):
                empty = ir.TypeAttr.get(ir.FunctionType.get([], []))
                attributes = {"sym_name": ir.StringAttr.get(name), "function_type": empty}
                self._function = ir.Operation.create("func.func", attributes=attributes, regions=1)
            self._body = self._function.regions[0].blocks.append()

    def enter(self, op: str, source: str) -> None:
        # A trace that starts in this package has no location.
        self._source = "" if source.startswith(str(Path(__file__).parent)) else source

    def input(self, name: str) -> None:
        self.define(name, self._argument(_type(self.recorded(name)), parameter=name in self._parameters))

    def constant(self, index: int, name: str, value: object) -> None:
        """Define a constant: a tensor becomes an argument, as weights do."""
        is_tensor = isinstance(value, torch.Tensor)
        self.define(name, self._argument(_type(value), parameter=True) if is_tensor else value)

    def node(
        self, op: str, schema: torch._C.FunctionSchema | None, operands: Sequence[object], metas: Sequence[object]
    ) -> list[object]:
        if op == "prim::NumToTensor.Scalar":
            schema, operands = schema_of("aten::scalar_tensor"), [*operands, None, None, None, None]
        known = registry().get(qualified_name(schema) if schema else _SIZE_ARITHMETIC.get(op, op))
        if known is None:
            raise CompileError("it is not an op of the aten dialect")
        with self._context, self._location(known.qualified), ir.InsertionPoint(self._body):
            values = [self._value(operand, type_.kind()) for operand, type_ in zip(operands, known.types, strict=True)]
            results = [ir.Type.parse(_type(meta)) for meta in metas]
            written = ir.Operation.create(known.name, results=results, operands=values).results
        return [
            self._unpack(value) if isinstance(meta, list | tuple) else value
            for value, meta in zip(written, metas, strict=True)
        ]

    def finish(self, outputs: Sequence[str]) -> ir.Module:
        """Write the return, verify the module, and return it."""
        with self._context, ir.Location.unknown():
            with ir.InsertionPoint(self._body):
                values = [self._value(self.operand(name)) for name in outputs]
                ir.Operation.create("func.return", operands=values)
            signature = ir.FunctionType.get(
                [argument.type for argument in self._body.arguments], [value.type for value in values]
            )
            self._function.attributes["function_type"] = ir.TypeAttr.get(signature)
            if any(self._arguments):
                marks = [{PARAMETER: ir.UnitAttr.get()} if parameter else {} for parameter in self._arguments]
                self._function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(mark) for mark in marks])
        verify(self._module)
        return self._module

    def _argument(self, type_: str, *, parameter: bool) -> ir.Value:
        self._arguments.append(parameter)
        with self._context:
            return self._body.add_argument(ir.Type.parse(type_), ir.Location.unknown())

    def _unpack(self, value: ir.Value) -> list[ir.Value]:
        with self._context, ir.Location.unknown(), ir.InsertionPoint(self._body):
            elements = types.elements_of(value.type)
            return list(ir.Operation.create(CAST, results=elements, operands=[value]).results)

    def _location(self, name: str) -> Any:
        file, _, line = self._source.rpartition(":")
        place = ir.Location.file(file, int(line), 0) if file and line.isdigit() else ir.Location.unknown()
        return ir.Location.name(name, place)

    def _value(self, operand: object, kind: str = "") -> ir.Value:
        if isinstance(operand, ir.Value):
            return operand
        if kind == "TensorType" and isinstance(operand, bool | int | float):
            return constants.tensor_constant(operand)  # PyTorch accepts a number as a tensor.
        if isinstance(operand, list | tuple) and any(isinstance(item, ir.Value) or item is None for item in operand):
            elements = [self._value(item) for item in operand]
            type_ = ir.TupleType.get_tuple([element.type for element in elements])
            return ir.Operation.create(CAST, results=[type_], operands=elements).result
        literal = _literal(operand)
        if not self._share_literals:
            return constants.constant(literal)
        key = repr(literal)
        if key not in self._constants:
            self._constants[key] = constants.constant(literal)
        return self._constants[key]


def _literal(value: object) -> object:
    """Return a number, a list, or another value of PyTorch as the dialect's literal."""
    if isinstance(value, list | tuple):
        return [_literal(item) for item in value]
    for kind, written in _LITERALS.items():
        if isinstance(value, kind):
            return written(value)
    raise CompileError(f"{type(value).__name__} cannot be expressed in the aten dialect")


# Functions that convert a value to the dialect's literal, by the type of the value.
_LITERALS: Mapping[Any, Callable[[Any], object]] = {
    bool | int | float | complex | str | None: lambda value: value,
    torch.dtype: dtype_number,
    torch.layout: LAYOUTS.__getitem__,
    torch.memory_format: MEMORY_FORMATS.__getitem__,
    torch.device: str,
    torch.Generator: lambda value: None,
}


def _type(value: object) -> str:
    """Return the dialect type of a result: a tensor, a list of tensors, None, or a number."""
    if isinstance(value, torch.Tensor | TensorMeta):
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        return types.tensor_type(value.dtype, shape)
    if isinstance(value, list | tuple):
        return f"tuple<{', '.join(_type(item) for item in value)}>"
    for kind, type_ in _SCALAR_TYPES.items():
        if isinstance(value, kind):
            return type_
    raise CompileError(f"a result of type {type(value).__name__} cannot be expressed in the aten dialect")


_SCALAR_TYPES: Mapping[Any, str] = {
    type(None): "none",
    bool: "i1",
    int: "i64",
    float: "f64",
    torch.SymInt: "i64",
    torch.SymFloat: "f64",
    torch.SymBool: "i1",
}


# Schemas of the Python functions that FX graphs call for arithmetic on sizes, by function name.
_SIZE_ARITHMETIC: Mapping[str, str] = {
    "add": "aten::add.int",
    "sub": "aten::sub.int",
    "mul": "aten::mul.int",
    "floordiv": "aten::floordiv.int",
    "mod": "aten::remainder.int",
}
