"""Builder of one function in the aten dialect, op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch_mlir import ir

from torchmdla.aten import constants, types
from torchmdla.aten.dialect import CAST, new_context, register, verify
from torchmdla.aten.schemas import OpSchema

# Attribute of the arguments that are weights or buffers.
PARAMETER = "aten.parameter"


class FunctionBuilder:
    """Builder of a module with one public function.

    Operands are Python literals, values, None, and sequences of them. With ``share_literals`` a literal is written
    once, at its first use. Without it, a literal is written before each use. Arguments and ops may be added in any
    order.
    """

    def __init__(self, name: str, context: ir.Context | None = None, *, share_literals: bool = True) -> None:
        self.context = context or new_context()
        self._share_literals = share_literals
        register(self.context)
        self._arguments: list[bool] = []
        self._constants: dict[str, ir.Value] = {}
        with self.context, ir.Location.unknown():
            self._module = ir.Module.create()
            with ir.InsertionPoint(self._module.body):
                empty = ir.TypeAttr.get(ir.FunctionType.get([], []))
                attributes = {"sym_name": ir.StringAttr.get(name), "function_type": empty}
                self._function = ir.Operation.create("func.func", attributes=attributes, regions=1)
            self._body = self._function.regions[0].blocks.append()

    def argument(self, type_: str, *, parameter: bool = False) -> ir.Value:
        """Add an argument to the function; ``parameter`` marks a weight or a buffer."""
        self._arguments.append(parameter)
        with self.context:
            return self._body.add_argument(ir.Type.parse(type_), ir.Location.unknown())

    def call(
        self, schema: OpSchema, operands: Sequence[object], results: Sequence[str], source: str = ""
    ) -> list[ir.Value]:
        """Write an op and return its results.

        ``results`` are the result types. ``source`` is the location in the user's program.
        """
        with self.context, self._location(schema.qualified, source), ir.InsertionPoint(self._body):
            values = [self._value(operand, type_.kind()) for operand, type_ in zip(operands, schema.types, strict=True)]
            types_ = [ir.Type.parse(result) for result in results]
            return list(ir.Operation.create(schema.name, results=types_, operands=values).results)

    def unpack(self, value: ir.Value) -> list[ir.Value]:
        """Return the elements of a tuple."""
        with self.context, ir.Location.unknown(), ir.InsertionPoint(self._body):
            elements = types.elements_of(value.type)
            return list(ir.Operation.create(CAST, results=elements, operands=[value]).results)

    def finish(self, results: Sequence[object]) -> ir.Module:
        """Write the return of ``results``, verify the module, and return it."""
        with self.context, ir.Location.unknown():
            with ir.InsertionPoint(self._body):
                values = [self._value(result) for result in results]
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

    def _location(self, name: str, source: str) -> Any:
        file, _, line = source.rpartition(":")
        place = ir.Location.file(file, int(line), 0) if file and line.isdigit() else ir.Location.unknown()
        return ir.Location.name(name, place)

    def _value(self, operand: object, kind: str = "") -> ir.Value:
        if isinstance(operand, ir.Value):
            return operand
        if kind == "TensorType" and isinstance(operand, bool | int | float):
            return constants.tensor_constant(torch.tensor(operand))  # PyTorch accepts a number as a tensor.
        if isinstance(operand, list | tuple) and any(isinstance(item, ir.Value) or item is None for item in operand):
            elements = [self._value(item) for item in operand]
            type_ = ir.TupleType.get_tuple([element.type for element in elements])
            return ir.Operation.create(CAST, results=[type_], operands=elements).result
        if not self._share_literals:
            return constants.constant(operand)
        key = repr(operand)
        if key not in self._constants:
            self._constants[key] = constants.constant(operand)
        return self._constants[key]
