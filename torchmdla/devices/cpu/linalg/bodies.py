"""Body of a ``linalg.generic`` as expressions of its operands."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch_mlir import ir

from torchmdla.devices.cpu.ir.accesses import Scalar
from torchmdla.devices.cpu.ir.element_types import NotANestError, register_type
from torchmdla.devices.cpu.ir.expressions import (
    Expression,
    accumulator,
    constant,
    index,
    numbered_value,
    operation,
    scalar,
)
from torchmdla.devices.cpu.target import math_library

# Placeholder expressions: the element of an operand, and an element of a table.
OPERAND, LOOKUP = "operand", "lookup in table"


class BodyReader:
    """Reader of the block of a ``linalg.generic`` as expressions.

    Attributes:
        tables: the tensors that the block reads at computed indices. A :data:`LOOKUP` expression contains the number
            of its table, and its operands are the indices.
        yields: the outputs' new values, as expressions of operands (:data:`OPERAND`, by number).
        checks: the conditions that must hold.
    """

    def __init__(self, block: Any, scalars: Mapping[Any, Scalar], inputs: int, reduces: bool) -> None:
        """Read the block.

        ``scalars`` are the scalars of values from outside. The first ``inputs`` arguments of the block are elements of
        inputs, and the others are elements of outputs.
        """
        self.tables: list[Any] = []
        self.checks: list[Expression] = []
        self._scalars = scalars
        self._values: dict[Any, Expression] = {}
        for number, argument in enumerate(block.arguments):
            kind = _type(argument)
            is_carried = reduces and number >= inputs
            self._values[argument] = (
                accumulator(number - inputs, kind) if is_carried else numbered_value(OPERAND, kind, number)
            )
        ops = [op.operation for op in block.operations]
        for op in ops[:-1]:
            self._read(op)
        self.yields = [self._value(value) for value in ops[-1].operands]

    def _value(self, value: Any) -> Expression:
        """Return a value of the body or from outside. Constants from outside are part of the code, not operands."""
        if value not in self._values:
            self._values[value] = constant_of(value) or scalar(self._scalars[value])
        return self._values[value]

    def _read(self, op: Any) -> None:
        if op.name == "cf.assert":
            self.checks.append(self._value(op.operands[0]))
            return
        if len(op.regions) or len(op.results) != 1:
            raise NotANestError(f"{op.name} in the body")
        read = _READERS.get(op.name, BodyReader._read_operation)
        self._values[op.results[0]] = read(self, op)

    def _read_operation(self, op: Any) -> Expression:
        if not op.name.startswith("arith.") and not math_library.is_known(op.name):
            raise NotANestError(f"{op.name} in the body")
        for kind in (op.results[0].type, *(v.type for v in op.operands)):
            if not isinstance(kind, (ir.IntegerType, ir.FloatType, ir.IndexType)):
                raise NotANestError(f"a value of type {kind}")
        return operation(op.name, map(self._value, op.operands), _type(op.results[0]), attributes_text(op))

    def _read_conversion(self, op: Any) -> Expression:
        """Return the conversion of an integer to a float. For floats of 16 bits, it rounds twice, as eager mode does.

        Upstream's canonical form is a single conversion. On most processors, this needs a call of a function.
        """
        kind = _type(op.results[0])
        if kind not in ("f16", "bf16"):
            return self._read_operation(op)
        single = operation(op.name, map(self._value, op.operands), "f32", attributes_text(op))
        return operation("arith.truncf", [single], kind)

    def _read_comparison(self, op: Any) -> Expression:
        """Return a comparison. Upstream compares floats with a constant in double precision, at half the lanes."""
        operands = [_as_single(self._value(operand)) for operand in op.operands]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands):
            return self._read_operation(op)
        return operation(op.name, known, "i1", attributes_text(op))

    def _read_power(self, op: Any) -> Expression:
        """Return a power. The second derivative of a square has the exponent 0."""
        exponent = self._value(op.operands[1])
        if exponent.op == "constant" and exponent.payload == 0:
            return constant(1.0, _type(op.results[0]))
        return self._read_operation(op)

    def _read_load(self, op: Any) -> Expression:
        buffer, *indices = op.operands
        if buffer not in self.tables:
            self.tables.append(buffer)
        return numbered_value(LOOKUP, _type(op.results[0]), self.tables.index(buffer), map(self._value, indices))


_READERS: Mapping[str, Callable[[BodyReader, Any], Expression]] = {
    "arith.cmpf": BodyReader._read_comparison,
    "arith.constant": lambda reader, op: number(op.attributes["value"], _type(op.results[0])),
    "arith.sitofp": BodyReader._read_conversion,
    "arith.uitofp": BodyReader._read_conversion,
    math_library.INTEGER_POWER: BodyReader._read_power,
    "linalg.index": lambda reader, op: index(ir.IntegerAttr(op.attributes["dim"]).value),
    "tensor.extract": BodyReader._read_load,
}


def _as_single(value: Expression) -> Expression | None:
    """Return a value of double precision in single precision, or None if that is another value."""
    if value.type != "f64":
        return None
    if value.op == "arith.extf" and value.operands[0].type == "f32":
        return value.operands[0]
    is_single = value.op == "constant" and ctypes.c_float(value.payload).value == value.payload
    return constant(value.payload, "f32") if is_single else None


def constant_of(value: Any) -> Expression | None:
    """Return the constant that a value is, or None if it is not a constant."""
    owner = value.owner.operation if isinstance(value, ir.OpResult) else None
    if owner is None or owner.name != "arith.constant":
        return None
    return number(owner.attributes["value"], _type(value))


def number(attribute: Any, kind: str) -> Expression:
    """Return a constant of type ``kind`` from its attribute.

    Raises:
        NotANestError: the attribute is not a number.
    """
    if isinstance(attribute, ir.FloatAttr):
        return constant(attribute.value, kind)
    if not isinstance(attribute, ir.IntegerAttr | ir.BoolAttr):
        raise NotANestError(f"a constant {attribute}")
    return constant(bool(attribute.value) if kind == "i1" else int(attribute.value), kind)


def _type(value: Any) -> str:
    return register_type(str(value.type))


# Attributes with default values, which do not have an effect.
_DEFAULTS = re.compile(r"(fastmath = #arith\.fastmath<none>|overflowFlags = #arith\.overflow<none>)(, )?")


def attributes_text(op: Any) -> str:
    """Return the attributes of a scalar op as MLIR text. Indices are 64-bit integers in kernels."""
    items = ", ".join(f"{name} = {op.attributes[name]}" for name in op.attributes)
    text = _DEFAULTS.sub("", items).removesuffix(", ").replace(": index", ": i64")
    return f"{{{text}}}" if text else ""
