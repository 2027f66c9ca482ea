"""Object files: archives of several files, as ``ar`` writes them, and the contents of 64-bit ELF files."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMBOL_TABLE = 2
_RELOCATIONS = 4

# The kind of sections without bytes in the file, and the section number of undefined symbols.
NO_BITS = 8
UNDEFINED = 0

# The first bytes of an archive, and the header of each file in it: name, time, owner, group, mode, size, end mark.
_ARCHIVE = b"!<arch>\n"
_MEMBER = struct.Struct("16s12s6s6s8s10s2s")
_MEMBER_END = b"`\n"

# The linker defines this symbol itself.
_LINKER_MADE = "_GLOBAL_OFFSET_TABLE_"


@dataclass(frozen=True)
class Section:
    """Section of an object file.

    ``kind`` and ``flags`` are ELF's ``sh_type`` and ``sh_flags``. ``data`` is empty if the file does not contain the
    section's bytes; these are zero then.
    """

    name: str
    kind: int
    flags: int
    size: int
    alignment: int
    data: bytes


@dataclass(frozen=True)
class Symbol:
    """Symbol; ``kind`` and ``binding`` are the halves of ELF's ``st_info``, ``section`` is a section's number."""

    name: str
    kind: int
    binding: int
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class Relocation:
    """Place in section number ``section`` that depends on the address of symbol number ``symbol``."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class ObjectFile:
    """Relocatable object file."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]

    @classmethod
    def of(cls, data: bytes) -> ObjectFile:
        """Return the contents of an ELF file (:func:`is_elf`)."""
        header = _HEADER.unpack_from(data)
        start, size, count, names = header[6], header[11], header[12], header[13]
        raw = [_SECTION.unpack_from(data, start + k * size) for k in range(count)]
        symbols: list[Symbol] = []
        relocations: list[Relocation] = []
        for _, kind, _, _, offset, length, link, target, _, _ in raw:
            content = data[offset : offset + length]
            if kind == _SYMBOL_TABLE:
                symbols += (
                    Symbol(_text(data, raw[link][4] + name), info & 15, info >> 4, section, value, size)
                    for name, info, _, section, value, size in _SYMBOL.iter_unpack(content)
                )
            elif kind == _RELOCATIONS:
                entries = _RELOCATION.iter_unpack(content)
                relocations += (
                    Relocation(target, place, i & 0xFFFFFFFF, i >> 32, addend) for place, i, addend in entries
                )
        return cls(
            header[2],
            tuple(_section(fields, data, raw[names][4]) for fields in raw),
            tuple(symbols),
            tuple(relocations),
        )


def join_objects(objects: Sequence[bytes]) -> bytes:
    """Return object files as one file: an archive, or the only file unchanged."""
    return objects[0] if len(objects) == 1 else _ARCHIVE + b"".join(map(_member, range(len(objects)), objects))


def split_objects(data: bytes) -> list[bytes]:
    """Return the object files in ``data``, which is a result of :func:`join_objects`."""
    return list(_members(data)) if data.startswith(_ARCHIVE) else [data]


def is_elf(data: bytes) -> bool:
    """Return whether ``data`` is a 64-bit little-endian ELF file."""
    return data[:6] == b"\x7fELF\x02\x01"


def undefined_symbols(objects: Sequence[bytes]) -> list[str]:
    """Return the sorted names that the ELF files ``objects`` need and that none of them defines."""
    needed: set[str] = set()
    defined: set[str] = set()
    for data in objects:
        for symbol in ObjectFile.of(data).symbols:
            (needed if symbol.section == UNDEFINED else defined).add(symbol.name)
    return sorted(needed - defined - {_LINKER_MADE, ""})


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


def _section(raw: tuple[int, ...], data: bytes, strings: int) -> Section:
    name, kind, flags, _, offset, size, _, _, alignment, _ = raw
    content = b"" if kind == NO_BITS else data[offset : offset + size]
    return Section(_text(data, strings + name), kind, flags, size, max(alignment, 1), content)


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
