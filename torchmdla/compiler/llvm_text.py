"""LLVM IR of MLIR's bindings as text for llvmlite, whose LLVM is older.

It reads floating-point numbers only as bits, or as decimal numbers that are exact.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

# Names of floating-point types, and numbers, whose type is the last one before them.
_TYPE = r"\b(?P<type>half|bfloat|float|double)\b"
_SPECIAL = r"(?P<sign>[+-]?)(?P<name>inf|qnan|(?P<kind>s?nan)\(0x(?P<payload>[0-9A-Fa-f]+)\))"
_NUMBER = rf"(?<=[ (\[<])(?:f0x(?P<bits>[0-9A-F]+)|{_SPECIAL}|(?P<decimal>[+-]?\d+\.\d+(?:e[+-]?\d+)?))"
_TOKEN = re.compile(f"{_TYPE}|{_NUMBER}")


@dataclass(frozen=True)
class _Format:
    """Format of numbers: the form of their bits in older text, and the sizes of exponent and mantissa."""

    text: str
    exponent: int
    mantissa: int

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa


_FORMATS = {
    "half": _Format("0xH{:04X}", 5, 10),
    "bfloat": _Format("0xR{:04X}", 8, 7),
    "float": _Format("0x{:016X}", 8, 23),
    "double": _Format("0x{:016X}", 11, 52),
}


def older_text(text: str) -> str:
    """Return LLVM IR with all floating-point numbers as bits."""
    kind = "float"

    def convert(match: re.Match[str]) -> str:
        nonlocal kind
        if match["type"]:
            kind = match["type"]
            return match[0]
        bits = _bits_of(match, kind)
        return _FORMATS[kind].text.format(_widen(bits) if kind == "float" else bits)

    return _TOKEN.sub(convert, text)


def _bits_of(number: re.Match[str], kind: str) -> int:
    form = _FORMATS[kind]
    if number["bits"]:
        return int(number["bits"], 16)
    if number["decimal"]:
        return _round(float(number["decimal"]), kind)
    quiet = 0 if number["name"] == "inf" or number["kind"] == "snan" else 1 << (form.mantissa - 1)
    sign = (number["sign"] == "-") << (form.exponent + form.mantissa)
    return sign | form.infinity | quiet | int(number["payload"] or "0", 16)


def _round(number: float, kind: str) -> int:
    """Return the bits of the number of a type that is nearest to ``number``."""
    if kind == "bfloat":
        bits = _round(number, "float")
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    code = {"half": "<e", "float": "<f", "double": "<d"}[kind]
    return int.from_bytes(struct.pack(code, number), "little")


def _widen(bits: int) -> int:
    """Return the bits of a float as a double, which is the older form. NaNs keep their payload."""
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return sign << 63 | 0x7FF << 52 | mantissa << 29
    (number,) = struct.unpack("<f", bits.to_bytes(4, "little"))
    return _round(number, "double")
