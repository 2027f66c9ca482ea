"""Conversion between Python literals and ``aten.constant``, in both directions."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch_mlir import ir

from torchmdla.aten import types
from torchmdla.importer.emitter import quote

_I32 = range(-(2**31), 2**31)


def literal(value: object) -> tuple[ir.Attribute, ir.Type]:
    """Return the attribute and the type of a Python value, in the current context.

    ``value`` may be None, a bool, int, float, complex or str, or a sequence of bool, int or float.

    Raises:
        TypeError: ``value`` has another type.
    """
    text, type_ = _literal_text(value)
    return ir.Attribute.parse(text), ir.Type.parse(type_)


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


def tensor_constant(tensor: torch.Tensor) -> ir.Value:
    """Create an ``aten.constant`` with a tensor's data, at the current insertion point and location.

    Raises:
        ValueError: a tensor of this dtype cannot be a literal.
    """
    if tensor.is_complex():
        raise ValueError("the bindings of MLIR cannot hold a literal tensor of complex numbers")
    type_ = types.tensor_type(tensor.dtype, tuple(tensor.shape))
    data = tensor.detach().contiguous().flatten()
    if tensor.numel() == 0:
        body = ""
    elif tensor.dtype == torch.bool:
        body = json.dumps(tensor.tolist())
    else:
        body = f'"0x{bytes(data.view(torch.uint8).tolist()).hex().upper()}"'
    attribute = ir.Attribute.parse(f"dense<{body}> : {type_}")
    return ir.Operation.create("aten.constant", results=[ir.Type.parse(type_)], attributes={"value": attribute}).result


def read(op: Any) -> object:
    """Return the Python value of an ``aten.constant``, or the attribute itself for a tensor."""
    return read_attribute(op.attributes["value"])


def read_attribute(attribute: Any) -> object:
    """Return the Python value of an attribute, or the attribute itself for a tensor."""
    if isinstance(attribute, ir.UnitAttr):
        return None
    if isinstance(attribute, ir.BoolAttr | ir.IntegerAttr):
        width = ir.IntegerType(attribute.type).width
        return bool(attribute.value) if width == 1 else attribute.value
    if isinstance(attribute, ir.FloatAttr | ir.StringAttr):
        return attribute.value
    if isinstance(attribute, _ARRAYS):
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


_ARRAYS = (ir.DenseBoolArrayAttr, ir.DenseI64ArrayAttr, ir.DenseF64ArrayAttr)


def _matches_type(attribute: ir.Attribute, type_: ir.Type) -> bool:
    if isinstance(attribute, ir.UnitAttr):
        return types.is_none(type_)
    if isinstance(attribute, ir.StringAttr):
        return str(type_) == types.STRING
    if isinstance(attribute, _ARRAYS):
        if not isinstance(type_, ir.TupleType):
            return False
        elements = types.elements_of(type_)
        values = list(attribute)
        return len(values) == len(elements) and all(
            isinstance(element, _ELEMENTS[type(attribute)]) for element in elements
        )
    if isinstance(attribute, ir.DenseElementsAttr | ir.DenseResourceElementsAttr) or types.is_tensor(type_):
        return _is_typed(attribute, type_)
    if isinstance(type_, ir.ComplexType):
        return (
            isinstance(attribute, ir.ArrayAttr)
            and [getattr(part, "type", None) for part in attribute] == [type_.element_type] * 2
        )
    return _is_typed(attribute, type_)


def _is_typed(attribute: ir.Attribute, type_: ir.Type) -> bool:
    return bool(getattr(attribute, "type", None) == type_)


_ELEMENTS: dict[type, type] = {
    ir.DenseBoolArrayAttr: ir.IntegerType,
    ir.DenseI64ArrayAttr: ir.IntegerType,
    ir.DenseF64ArrayAttr: ir.FloatType,
}


def _literal_text(value: object) -> tuple[str, str]:
    """Return the text of a literal's attribute and the text of its type."""
    if value is None:
        return "unit", "none"
    if isinstance(value, bool):
        return str(value).lower(), "i1"
    if isinstance(value, int):
        type_ = integer_type(value)
        return f"{value} : {type_}", type_
    if isinstance(value, float):
        type_ = float_type(value)
        return f"{_float(value, type_)} : {type_}", type_
    if isinstance(value, complex):
        return f"[{_float(value.real, 'f64')} : f64, {_float(value.imag, 'f64')} : f64]", "complex<f64>"
    if isinstance(value, str):
        return quote(value), types.STRING
    if isinstance(value, Sequence) and all(isinstance(item, bool | int | float) for item in value):
        return _array(value)
    raise TypeError(f"no literal of the aten dialect for {value!r}")


def integer_type(value: int) -> str:
    """Return the type of a literal integer."""
    return "i32" if value in _I32 else "i64"


def float_type(value: float) -> str:
    """Return the type of a literal float: ``f32`` if that is exact, else ``f64``."""
    if not math.isfinite(value):
        return "f32"
    try:
        return "f32" if struct.unpack("<f", struct.pack("<f", value))[0] == value else "f64"
    except OverflowError:
        return "f64"


def _float(value: float, type_: str) -> str:
    if math.isfinite(value):
        return f"{value:.17e}"
    layout = {"f32": ">f", "f64": ">d"}[type_]
    return "0x" + struct.pack(layout, value).hex().upper()


def _array(values: Sequence[Any]) -> tuple[str, str]:
    if values and all(isinstance(value, bool) for value in values):
        return f"array<i1: {', '.join(str(value).lower() for value in values)}>", _tuple(["i1"] * len(values))
    if any(isinstance(value, float) for value in values):
        items = ", ".join(_float(float(value), "f64") for value in values)
        return f"array<f64: {items}>", _tuple([float_type(float(value)) for value in values])
    items = ", ".join(str(int(value)) for value in values)
    return f"array<i64: {items}>" if values else "array<i64>", _tuple([integer_type(int(value)) for value in values])


def float_list(values: Sequence[float]) -> str:
    """Return the text of the elements of a ``dense<…>`` of ``f64``."""
    return f"[{', '.join(_float(float(value), 'f64') for value in values)}]"


def _tuple(items: Sequence[str]) -> str:
    return f"tuple<{', '.join(items)}>"
