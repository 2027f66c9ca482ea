"""MLIR's element types: their storage in memory, their type in registers, and the text of their constants."""

from __future__ import annotations

import math
from collections.abc import Mapping

# The types in memory. A bool is one byte. An index has 64 bits on every target. A bfloat16 is stored as an integer: on
# a processor without bfloat16 instructions, LLVM splits vectors of bfloat16 and calls a function for each element.
_STORAGE_TYPES = {"i1": "i8", "index": "i64", "bf16": "i16"}

# The size in bytes of every element type that kernels may touch.
ELEMENT_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}

# MLIR's text of values that are not finite: their bits.
NOT_FINITE: Mapping[str, Mapping[str, str]] = {
    "f16": {"inf": "0x7C00", "-inf": "0xFC00", "nan": "0x7E00"},
    "bf16": {"inf": "0x7F80", "-inf": "0xFF80", "nan": "0x7FC0"},
    "f32": {"inf": "0x7F800000", "-inf": "0xFF800000", "nan": "0x7FC00000"},
    "f64": {"inf": "0x7FF0000000000000", "-inf": "0xFFF0000000000000", "nan": "0x7FF8000000000000"},
}


class NotANestError(Exception):
    """Op that is not a nest of linear accesses around a straight-line body.

    Upstream's passes lower such an op.
    """


def storage_type(element: str) -> str:
    """Return the element type in memory of a value of type ``element``.

    Raises:
        NotANestError: values of this type cannot be stored in a kernel's memory.
    """
    storage = _STORAGE_TYPES.get(element, element)
    if storage not in ELEMENT_BYTES:
        raise NotANestError(f"element type {element}")
    return storage


def register_type(element: str) -> str:
    """Return the type in registers of a value of MLIR type ``element``."""
    return "i64" if element == "index" else element


def constant_text(number: float | int, type: str) -> str:
    """Return a number in MLIR's syntax. The text of a float is exact."""
    if type == "i1":
        return "true" if number else "false"
    if type.startswith("i"):
        return str(int(number))
    if not math.isfinite(number):
        return NOT_FINITE[type][str(float(number))]
    text = repr(float(number))
    mantissa, exponent, power = text.partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power


def typed_constant(number: float | int, type: str) -> str:
    """Return a number with its type, as an attribute. MLIR writes a boolean without a type."""
    return constant_text(number, type) + (f" : {type}" if type != "i1" else "")
