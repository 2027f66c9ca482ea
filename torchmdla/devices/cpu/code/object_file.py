"""What an object file needs from outside: its undefined symbols (ELF, 64 bits)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_UNDEFINED = 0

# The linker makes this one itself.
_LINKER_MADE = "_GLOBAL_OFFSET_TABLE_"


def is_elf(data: bytes) -> bool:
    """Whether ``data`` is a 64-bit little-endian ELF file."""
    return data[:6] == b"\x7fELF\x02\x01"


def undefined_symbols(data: bytes) -> list[str]:
    """The names that a linker has to resolve, sorted. ``data`` is an ELF file (:func:`is_elf`)."""
    sections = list(_sections(data))
    names: set[str] = set()
    for kind, offset, size, link in sections:
        if kind == _SYMBOL_TABLE:
            strings = sections[link][1]
            for name, _, _, section, _, _ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                if section == _UNDEFINED and name:
                    start = strings + name
                    names.add(data[start : data.index(b"\0", start)].decode())
    return sorted(names - {_LINKER_MADE})


def _sections(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset, size and link of every section."""
    header = _HEADER.unpack_from(data)
    start, size, count = header[6], header[11], header[12]
    for k in range(count):
        _, kind, _, _, offset, length, link, _, _, _ = _SECTION.unpack_from(data, start + k * size)
        yield kind, offset, length, link
