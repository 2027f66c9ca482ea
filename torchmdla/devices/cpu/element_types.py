"""MLIR's element types: how values of them lie in memory and in registers, and how their constants are written."""

from __future__ import annotations

import math
from collections.abc import Mapping

# The types in memory: a bool is one byte, and an index is 64 bits wide on every target. A bfloat16 is an integer: where
# the processor has no instructions for them, LLVM takes vectors of bfloat16 apart and calls a function for each.
_STORED = {"i1": "i8", "index": "i64", "bf16": "i16"}

# Bytes of every element type that kernels may touch.
ELEMENT_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}

# How MLIR writes what is not finite: by its bits.
NOT_FINITE: Mapping[str, Mapping[str, str]] = {
    "f16": {"inf": "0x7C00", "-inf": "0xFC00", "nan": "0x7E00"},
    "bf16": {"inf": "0x7F80", "-inf": "0xFF80", "nan": "0x7FC0"},
    "f32": {"inf": "0x7F800000", "-inf": "0xFF800000", "nan": "0x7FC00000"},
    "f64": {"inf": "0x7FF0000000000000", "-inf": "0xFFF0000000000000", "nan": "0x7FF8000000000000"},
}


class NotANestError(Exception):
    """The op is no nest of linear accesses around a straight-line body; it is lowered by upstream's passes."""


def stored(element: str) -> str:
    """The element type in memory of a value of type ``element``.

    Raises:
        NotANestError: values of this type have no place in a kernel's memory.
    """
    kept = _STORED.get(element, element)
    if kept not in ELEMENT_BYTES:
        raise NotANestError(f"element type {element}")
    return kept


def computed(element: str) -> str:
    """The type in registers of a value of MLIR type ``element``."""
    return "i64" if element == "index" else element


def constant_text(number: float | int, type: str) -> str:
    """A number as MLIR writes it; of a floating type exactly."""
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
    """A number with its type, as an attribute: of a boolean MLIR writes none."""
    return constant_text(number, type) + (f" : {type}" if type != "i1" else "")
