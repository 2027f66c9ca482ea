"""Conversion between Python literals and ``aten.constant``, in both directions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch_mlir import ir

from torchmdla.aten import types


def literal(value: object) -> tuple[ir.Attribute, ir.Type]:
    """Return the attribute and the type of a Python value, in the current context.

    ``value`` may be None, a bool, int, float, complex or str, or a sequence of bool, int or float.

    Raises:
        TypeError: ``value`` has another type.
    """
    if value is None:
        return ir.UnitAttr.get(), ir.NoneType.get()
    if isinstance(value, bool | int | float):
        type_ = _number_type(value)
        if isinstance(value, float):
            return ir.FloatAttr.get_f32(value) if type_ == ir.F32Type.get() else ir.FloatAttr.get_f64(value), type_
        return ir.IntegerAttr.get(type_, value), type_
    if isinstance(value, complex):
        parts = [ir.FloatAttr.get_f64(part) for part in (value.real, value.imag)]
        return ir.ArrayAttr.get(parts), ir.ComplexType.get(ir.F64Type.get())
    if isinstance(value, str):
        return ir.StringAttr.get(value), ir.Type.parse(types.STRING)
    if isinstance(value, Sequence) and all(isinstance(item, bool | int | float) for item in value):
        return _list_literal(value)
    raise TypeError(f"no literal of the aten dialect for {value!r}")


def _list_literal(values: Sequence[float]) -> tuple[ir.Attribute, ir.Type]:
    convert: type[float] = int
    array: Any = ir.DenseI64ArrayAttr
    if values and all(isinstance(value, bool) for value in values):
        convert, array = bool, ir.DenseBoolArrayAttr
    elif any(isinstance(value, float) for value in values):
        convert, array = float, ir.DenseF64ArrayAttr
    items = [convert(value) for value in values]
    return array.get(items), ir.TupleType.get_tuple([_number_type(item) for item in items])


_I32 = range(-(2**31), 2**31)


def _number_type(value: float) -> ir.Type:
    """Return the type of a literal number: 32 bits if these are exact, else 64 bits."""
    if isinstance(value, bool):
        return ir.IntegerType.get_signless(1)
    if isinstance(value, int):
        return ir.IntegerType.get_signless(32 if value in _I32 else 64)
    try:
        is_exact = not math.isfinite(value) or struct.unpack("<f", struct.pack("<f", value))[0] == value
    except OverflowError:
        is_exact = False
    return ir.F32Type.get() if is_exact else ir.F64Type.get()


def constant(value: object) -> ir.Value:
    """Create an ``aten.constant`` of a Python value at the current insertion point and location."""
    return constant_of_attribute(*literal(value))


def constant_of_attribute(attribute: ir.Attribute, type_: ir.Type) -> ir.Value:
    """Create an ``aten.constant`` of a literal at the current insertion point and location.

    The attribute ``type`` of the op names the type of a number or a list.
    """
    attributes = {"value": attribute}
    if kind := _kind(type_):
        attributes["type"] = ir.StringAttr.get(kind)
    return ir.Operation.create("aten.constant", results=[type_], attributes=attributes).result


def tensor_constant(value: float) -> ir.Value:
    """Create an ``aten.constant`` with PyTorch's tensor of a number, at the current insertion point and location."""
    type_ = ir.RankedTensorType(ir.Type.parse(types.tensor_type(torch.tensor(value).dtype, ())))
    attribute = ir.FloatAttr if isinstance(value, float) else ir.IntegerAttr
    number = attribute.get(type_.element_type, value)
    return constant_of_attribute(ir.DenseElementsAttr.get_splat(type_, number), type_)


def read(op: Any) -> object:
    """Return the Python value of an ``aten.constant``, or the attribute itself for a tensor."""
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.UnitAttr):
        return None
    if isinstance(attribute, ir.BoolAttr | ir.IntegerAttr):
        width = ir.IntegerType(attribute.type).width
        return bool(attribute.value) if width == 1 else attribute.value
    if isinstance(attribute, ir.FloatAttr | ir.StringAttr):
        return attribute.value
    if type(attribute) in _ARRAYS:
        return list(attribute)
    return attribute


def fault(op: Any) -> str | None:
    """Return the error in an ``aten.constant``, or None if it is valid."""
    if len(op.results) != 1 or len(op.operands) != 0:
        return "expects no operands and one result"
    if "value" not in op.attributes:
        return "expects an attribute 'value'"
    attribute, type_ = op.attributes["value"], op.results[0].type
    if "type" in op.attributes and str(op.attributes["type"]) != f'"{_kind(type_)}"':
        return f"expects its attribute 'type', if there is one, to be \"{_kind(type_)}\", got {op.attributes['type']}"
    if _matches_type(attribute, type_):
        return None
    return f"expects its attribute 'value' to be a literal of type {type_}, got {attribute}"


def _kind(type_: ir.Type) -> str:
    """Return a number's or a list's type as the attribute ``type`` spells it, or an empty string for others."""
    if isinstance(type_, ir.IntegerType | ir.FloatType):
        return "bool" if str(type_) == "i1" else str(type_)
    if isinstance(type_, ir.TupleType):
        # A list with both widths has the wider one.
        return f"List[{max(map(_kind, types.elements_of(type_)), default='i32')}]"
    return ""


# Types of the elements, by the attribute of a list.
_ARRAYS: dict[type, type] = {
    ir.DenseBoolArrayAttr: ir.IntegerType,
    ir.DenseI64ArrayAttr: ir.IntegerType,
    ir.DenseF64ArrayAttr: ir.FloatType,
}


def _matches_type(attribute: Any, type_: ir.Type) -> bool:
    if isinstance(attribute, ir.UnitAttr):
        return types.is_none(type_)
    if isinstance(attribute, ir.StringAttr):
        return str(type_) == types.STRING
    if type(attribute) in _ARRAYS:
        elements = types.elements_of(type_) if isinstance(type_, ir.TupleType) else None
        fitting = _ARRAYS[type(attribute)]
        return elements is not None and [isinstance(item, fitting) for item in elements] == [True] * len(attribute)
    if isinstance(type_, ir.ComplexType):
        parts = attribute if isinstance(attribute, ir.ArrayAttr) else ()
        return [getattr(part, "type", None) for part in parts] == [type_.element_type] * 2
    return bool(getattr(attribute, "type", None) == type_)
