"""Object files: several as one (an archive, as ``ar`` writes it), and what they need from outside (ELF, 64 bits)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_UNDEFINED = 0

# What an archive begins with, and what stands before each file in it: name, time, owner, group, mode, size, end mark.
_ARCHIVE = b"!<arch>\n"
_MEMBER = struct.Struct("16s12s6s6s8s10s2s")
_MEMBER_END = b"`\n"

# The linker makes this one itself.
_LINKER_MADE = "_GLOBAL_OFFSET_TABLE_"


def joined(objects: Sequence[bytes]) -> bytes:
    """Object files as one: an archive of them, or the only one as it is."""
    return objects[0] if len(objects) == 1 else _ARCHIVE + b"".join(map(_member, range(len(objects)), objects))


def separated(data: bytes) -> list[bytes]:
    """The inverse of :func:`joined`."""
    return list(_members(data)) if data.startswith(_ARCHIVE) else [data]


def is_elf(data: bytes) -> bool:
    """Whether ``data`` is a 64-bit little-endian ELF file."""
    return data[:6] == b"\x7fELF\x02\x01"


def undefined_symbols(objects: Sequence[bytes]) -> list[str]:
    """The names that ``objects`` need and none of them defines, sorted. They are ELF files (:func:`is_elf`)."""
    needed: set[str] = set()
    defined: set[str] = set()
    for data in objects:
        for name, section in _symbols(data):
            (needed if section == _UNDEFINED else defined).add(name)
    return sorted(needed - defined - {_LINKER_MADE})


def _member(number: int, data: bytes) -> bytes:
    fields = (f"part{number}.o/", "0", "0", "0", "644", f"{len(data)}")
    padded = (field.encode().ljust(width) for field, width in zip(fields, (16, 12, 6, 6, 8, 10), strict=True))
    return _MEMBER.pack(*padded, _MEMBER_END) + data + b"\n" * (len(data) % 2)


def _members(data: bytes) -> Iterator[bytes]:
    start = len(_ARCHIVE)
    while start < len(data):
        size = int(_MEMBER.unpack_from(data, start)[5])
        start += _MEMBER.size
        yield data[start : start + size]
        start += size + size % 2


def _symbols(data: bytes) -> Iterator[tuple[str, int]]:
    """The name and the section of every symbol that has a name."""
    sections = list(_sections(data))
    for kind, offset, size, link in sections:
        if kind == _SYMBOL_TABLE:
            strings = sections[link][1]
            for name, _, _, section, _, _ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                if name:
                    start = strings + name
                    yield data[start : data.index(b"\0", start)].decode(), section


def _sections(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset, size and link of every section."""
    header = _HEADER.unpack_from(data)
    start, size, count = header[6], header[11], header[12]
    for k in range(count):
        _, kind, _, _, offset, length, link, _, _, _ = _SECTION.unpack_from(data, start + k * size)
        yield kind, offset, length, link
