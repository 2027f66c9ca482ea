"""The body of a ``linalg.generic`` as the instructions of a nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir

from torchmdla.devices.cpu.code import math_library
from torchmdla.devices.cpu.nests import Instruction, NotANestError, computed


class BodyReader:
    """Turns the block of a ``linalg.generic`` into instructions and lists what it takes from outside."""

    def __init__(self, block: Any) -> None:
        self.tables: list[Any] = []
        self.scalars: list[Any] = []
        self.instructions: list[Instruction] = []
        self.yields: list[int] = []
        ops = [op.operation for op in block.operations]
        self._inside = {result for op in ops for result in op.results}
        self._numbers = {argument: number for number, argument in enumerate(block.arguments)}
        self._constants = self._outer_constants(ops)
        self._count_scalars(ops)
        for constant in self._constants:
            self._append(Instruction("arith.constant", (), _type(constant), attributes_text(constant.owner)), constant)
        for op in ops[:-1]:
            self._read(op)
        self.yields = [self._numbers[v] for v in ops[-1].operands]

    def _outer_constants(self, ops: Sequence[Any]) -> list[Any]:
        """Constants defined outside are part of the code, not operands."""
        outer = dict.fromkeys(v for op in ops for v in op.operands if self._is_outer(v))
        return [v for v in outer if _defining_name(v) == "arith.constant"]

    def _is_outer(self, value: Any) -> bool:
        return value not in self._inside and value not in self._numbers and not isinstance(value.type, ir.MemRefType)

    def _count_scalars(self, ops: Sequence[Any]) -> None:
        for value in (v for op in ops for v in op.operands):
            if self._is_outer(value) and value not in self._constants:
                self._numbers[value] = len(self._numbers)
                self.scalars.append(value)

    def _append(self, instruction: Instruction, result: Any) -> None:
        self.instructions.append(instruction)
        self._numbers[result] = len(self._numbers)

    def _read(self, op: Any) -> None:
        if op.name == "cf.assert":
            condition = self._numbers[op.operands[0]]
            self._append(Instruction("assert", (condition,), "i1"), op)
            return
        if len(op.regions) or len(op.results) != 1:
            raise NotANestError(f"{op.name} in the body")
        result = op.results[0]
        if op.name == "linalg.index":
            self._append(Instruction("index", (), "i64", payload=ir.IntegerAttr(op.attributes["dim"]).value), result)
            return
        if op.name == "memref.load":
            self._read_load(op)
            return
        if not op.name.startswith("arith.") and not math_library.is_known(op.name):
            raise NotANestError(f"{op.name} in the body")
        operands = tuple(self._numbers[v] for v in op.operands)
        for kind in (result.type, *(v.type for v in op.operands)):
            if not isinstance(kind, (ir.IntegerType, ir.FloatType, ir.IndexType)):
                raise NotANestError(f"a value of type {kind}")
        self._append(Instruction(op.name, operands, _type(result), attributes_text(op)), result)

    def _read_load(self, op: Any) -> None:
        buffer, *indices = op.operands
        if buffer not in self.tables:
            self.tables.append(buffer)
        numbers = tuple(self._numbers[v] for v in indices)
        self._append(
            Instruction("load", numbers, _type(op.results[0]), payload=self.tables.index(buffer)), op.results[0]
        )


def _defining_name(value: Any) -> str:
    return value.owner.name if isinstance(value, ir.OpResult) else ""


def _type(value: Any) -> str:
    return computed(str(value.type))


def attributes_text(op: Any) -> str:
    """The attributes of a scalar op as MLIR text; indices are 64-bit integers in kernels."""
    items = [f"{name} = {op.attributes[name]}" for name in op.attributes]
    return "{" + ", ".join(items).replace(": index", ": i64") + "}" if items else ""
