"""Operands of ops, and their conversion to values of the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.types import LAYOUTS, MEMORY_FORMATS, TensorMeta, dtype_number

# An operand: a Value (tensor, or float known only at run time), a NumberTensor, a known Python value, or a sequence of
# operands. Dtypes, layouts, memory formats and devices may be TorchScript's or Python's.
Operand = object


@dataclass(frozen=True)
class NumberTensor:
    """0-d tensor whose value is known, because it is computed from sizes."""

    value: int | float | bool
    meta: TensorMeta


@dataclass(frozen=True)
class Number:
    """Known number in place of a tensor in the op's schema."""

    value: int | float | bool


def as_tensor(emitter: Emitter, operand: Operand) -> Operand:
    """Write known 0-d tensors, alone or in lists, as literals. Return other operands unchanged."""
    if isinstance(operand, NumberTensor):
        return emitter.number_tensor(operand.value, operand.meta)
    if isinstance(operand, list | tuple):
        return [as_tensor(emitter, item) for item in operand]
    return operand


def as_meta(operand: Operand) -> object:
    """Return the type of a tensor, and any other operand unchanged."""
    return operand.meta if isinstance(operand, Value | NumberTensor) else operand


def materialise(emitter: Emitter, operand: Operand, type_: torch._C.JitType, count: int | None = None) -> Value:
    """Return the SSA value of an operand where the schema expects ``type_``. ``count`` is the N of ``int[N]``."""
    kind = type_.kind()
    if kind == "OptionalType":
        if operand is None:
            return emitter.none()
        return materialise(emitter, operand, type_.getElementType(), count)
    if kind == "ListType":
        return _materialise_list(emitter, operand, type_.getElementType(), count)
    if isinstance(operand, Number):
        return _write_number(emitter, operand.value)
    operand = as_tensor(emitter, operand)
    if isinstance(operand, Value):
        return operand
    if kind not in _WRITERS or (operand is None and kind != "GeneratorType"):
        raise CompileError(f"an argument of type {type_} cannot be expressed by {operand!r}", scope="place")
    value: Value = _WRITERS[kind](emitter, operand)  # type: ignore[no-untyped-call]
    return value


_ELEMENTS: Mapping[str, str] = {
    "IntType": "int",
    "SymIntType": "int",
    "FloatType": "float",
    "BoolType": "bool",
    "StringType": "str",
    "TensorType": "vtensor",
    "OptionalType": "optional<vtensor>",
}


def _materialise_list(emitter: Emitter, operand: Operand, element: torch._C.JitType, count: int | None) -> Value:
    items = list(operand) if isinstance(operand, list | tuple) else [operand]
    if len(items) == 1:  # One number for all dimensions, a form that upstream does not support.
        items *= count or 1
    if element.kind() not in _ELEMENTS:
        raise CompileError(f"a list of {element} cannot be expressed")
    return emitter.list([materialise(emitter, item, element) for item in items], _ELEMENTS[element.kind()])


def _write_int(emitter: Emitter, operand: Operand) -> Value:
    if isinstance(operand, torch.dtype):
        return emitter.integer(dtype_number(operand))
    if isinstance(operand, torch.layout):
        return emitter.integer(LAYOUTS[operand])
    if isinstance(operand, torch.memory_format):
        return emitter.integer(MEMORY_FORMATS[operand])
    # A size keeps its type, and with it its expression.
    return emitter.integer(int(operand) if isinstance(operand, bool) else operand)  # type: ignore[arg-type]


def _write_number(emitter: Emitter, operand: Operand) -> Value:
    return emitter.floating(operand) if isinstance(operand, float) else _write_int(emitter, operand)


_WRITERS = {
    "IntType": _write_int,
    "SymIntType": _write_int,
    "FloatType": lambda emitter, operand: emitter.floating(float(operand)),
    "BoolType": lambda emitter, operand: emitter.boolean(bool(operand)),
    "NumberType": _write_number,
    "StringType": lambda emitter, operand: emitter.string(operand),
    # Compiled code does not distinguish devices: its memory is the caller's, regardless of the op's device argument.
    "DeviceObjType": lambda emitter, operand: emitter.device("cpu"),
    "GeneratorType": lambda emitter, operand: emitter.none(),
}
