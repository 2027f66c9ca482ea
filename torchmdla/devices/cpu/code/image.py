"""Images: linked code that a process maps as it is. Whatever could be decided about addresses is decided.

An image has an address space of its own, from 0 on, in which three segments lie at multiples of 4096 bytes, one behind
the other: *code*, *constants* and *data*. A loader maps as much memory anywhere, copies the segments, writes addresses
into the words that imports and fixups name, and protects code from writes, constants from writes and execution, data
from execution. All functions are symbols, so that loaders find those of the ABI and debuggers name the others.

Numbers are little-endian, of 32 bits. The parts of the file stand in this order, each where the one before it ends:

===========  =========================================================================================================
header       ``mdlaimg`` and a zero; version of the format; ELF's number of the machine (62: x86-64);
             for each segment: offset in the file, bytes in the file, address, bytes in memory (the rest are zeros);
             for each of the four tables below: offset in the file, number of entries;
             address and bytes of the unwind table, which is part of the constants
code, constants, data
             what the segments begin with
imports      for each word of 64 bits that is to hold the address of something outside: offset of its name in the
             names, address of the word. Words of constants and data only, at multiples of 8, by address
symbols      for each function: offset of its name in the names, address, size. By name, in the order of bytes; names
             are different
fixups       for each word of 64 bits that holds an address of this image, to which the loader adds where the image is:
             the word's address. As with imports
names        printable characters of ASCII, each name with a zero behind it. Its entries are bytes
===========  =========================================================================================================

The unwind table is ELF's ``.eh_frame``, with four zeros at its end: exceptions of device calls pass through the code.

``src/runtime/image_file.cpp`` reads images, ``image.cpp`` there loads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

PAGE = 4096

_MAGIC = b"mdlaimg\0"
_VERSION = 1
_IDENTITY = struct.Struct("<8sII")
_SEGMENT = struct.Struct("<IIII")
_TABLE = struct.Struct("<II")
_IMPORT = struct.Struct("<II")
_SYMBOL = struct.Struct("<III")
_FIXUP = struct.Struct("<I")
_UNWINDING = struct.Struct("<II")


@dataclass(frozen=True)
class Segment:
    """``size`` bytes from ``address`` on, which begin with ``content``."""

    address: int
    content: bytes
    size: int


@dataclass(frozen=True)
class Function:
    """A function of the code segment."""

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class Image:
    """An image; ``imports`` are names and addresses of words, ``fixups`` addresses of words, ``unwinding`` is an
    address and a number of bytes."""

    machine: int
    code: Segment
    constants: Segment
    data: Segment
    imports: tuple[tuple[str, int], ...]
    functions: tuple[Function, ...]
    fixups: tuple[int, ...]
    unwinding: tuple[int, int]

    def to_bytes(self) -> bytes:
        """The file."""
        names = _Names()
        imports = [
            _IMPORT.pack(names.offset(name), word) for name, word in sorted(self.imports, key=lambda one: one[1])
        ]
        functions = sorted(self.functions, key=lambda one: one.name)
        symbols = [_SYMBOL.pack(names.offset(one.name), one.address, one.size) for one in functions]
        fixups = [_FIXUP.pack(word) for word in sorted(self.fixups)]
        segments = (self.code, self.constants, self.data)
        tables = (_table(imports), _table(symbols), _table(fixups), (bytes(names.text), len(names.text)))
        offset = _IDENTITY.size + len(segments) * _SEGMENT.size + len(tables) * _TABLE.size + _UNWINDING.size
        header = _IDENTITY.pack(_MAGIC, _VERSION, self.machine)
        for segment in segments:
            header += _SEGMENT.pack(offset, len(segment.content), segment.address, segment.size)
            offset += len(segment.content)
        for content, count in tables:
            header += _TABLE.pack(offset, count)
            offset += len(content)
        header += _UNWINDING.pack(*self.unwinding)
        return b"".join((header, *(one.content for one in segments), *(content for content, _ in tables)))


def is_image(data: bytes) -> bool:
    """Whether ``data`` says that it is an image. Whether it is one, the loader finds out."""
    return data.startswith(_MAGIC)


class _Names:
    """The names, each once."""

    def __init__(self) -> None:
        self.text = bytearray()
        self._offsets: dict[str, int] = {}

    def offset(self, name: str) -> int:
        if name not in self._offsets:
            self._offsets[name] = len(self.text)
            self.text += name.encode("ascii") + b"\0"
        return self._offsets[name]


def _table(entries: Iterable[bytes]) -> tuple[bytes, int]:
    kept = list(entries)
    return b"".join(kept), len(kept)
