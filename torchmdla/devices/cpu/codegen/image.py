"""Images: linked code that a process maps unchanged. Only the addresses that a loader determines are open.

An image has its own address space, which begins at 0. Three segments follow one another at multiples of a page, which
has 4096 bytes on x86-64 and 65536 on AArch64: *code*, *constants* and *data*. A loader allocates the memory at any
address, copies the segments, and writes addresses into the words that imports and fixups name. It then protects code
from writes, constants from writes and execution, and data from execution. All functions are symbols: loaders find the
ABI's functions, and debuggers name the others.

Numbers are little-endian and have 32 bits. The parts of the file have this order, without gaps:

===========  =========================================================================================================
header       ``mdlaimg`` and a zero; version of the format; ELF's number of the machine (62: x86-64, 183: AArch64);
             for each segment: offset in the file, bytes in the file, address, bytes in memory (padded with zeros);
             for each of the four tables below: offset in the file, number of entries;
             address and bytes of the unwind table, which is part of the constants
code, constants, data
             the first bytes of the segments
imports      for each 64-bit word that receives the address of an external symbol: offset of its name in the names,
             address of the word. Only words of constants and data, at multiples of 8, sorted by address
symbols      for each function: offset of its name in the names, address, size. Sorted by name, in the order of bytes;
             names are unique
fixups       for each 64-bit word that holds an address in this image: the word's address. The loader adds the address
             of the image to the word. The words have the same restrictions and order as those of imports
names        printable ASCII characters, each name with a zero after it. The entries of this table are bytes
===========  =========================================================================================================

The unwind table is ELF's ``.eh_frame`` with four zeros at its end. Exceptions of device calls pass through the code.

``src/codeimage/image_file.cpp`` reads images, and ``image.cpp`` in the same folder loads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from torchmdla.compiler.artifact import IMAGE_MAGIC

# ELF's numbers of machines, and the largest page of systems on each.
X86_64, AARCH64 = 62, 183
PAGES = {X86_64: 4096, AARCH64: 65536}

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
    """Segment of ``size`` bytes from ``address`` on. It begins with ``content``; the other bytes are zero."""

    address: int
    content: bytes
    size: int


@dataclass(frozen=True)
class Function:
    """Function in the code segment."""

    name: str
    address: int
    size: int


@dataclass(frozen=True)
class Image:
    """Image of linked code.

    Attributes:
        machine: ELF's number of the machine.
        code: the segment of code.
        constants: the segment of constants.
        data: the segment of data.
        imports: names of external symbols, with the addresses of words.
        functions: the functions in the code.
        fixups: addresses of words.
        unwinding: the address of the unwind table and its size in bytes.
    """

    machine: int
    code: Segment
    constants: Segment
    data: Segment
    imports: tuple[tuple[str, int], ...]
    functions: tuple[Function, ...]
    fixups: tuple[int, ...]
    unwinding: tuple[int, int]

    def to_bytes(self) -> bytes:
        """Return the contents of the image's file."""
        names = _Names()
        imports = [
            _IMPORT.pack(names.offset(name), word) for name, word in sorted(self.imports, key=lambda item: item[1])
        ]
        functions = sorted(self.functions, key=lambda item: item.name)
        symbols = [_SYMBOL.pack(names.offset(item.name), item.address, item.size) for item in functions]
        fixups = [_FIXUP.pack(word) for word in sorted(self.fixups)]
        segments = (self.code, self.constants, self.data)
        tables = (_table(imports), _table(symbols), _table(fixups), (bytes(names.text), len(names.text)))
        offset = _IDENTITY.size + len(segments) * _SEGMENT.size + len(tables) * _TABLE.size + _UNWINDING.size
        header = _IDENTITY.pack(IMAGE_MAGIC, _VERSION, self.machine)
        for segment in segments:
            header += _SEGMENT.pack(offset, len(segment.content), segment.address, segment.size)
            offset += len(segment.content)
        for content, count in tables:
            header += _TABLE.pack(offset, count)
            offset += len(content)
        header += _UNWINDING.pack(*self.unwinding)
        return b"".join((header, *(item.content for item in segments), *(content for content, _ in tables)))


class _Names:
    """Table of names, each of which is stored once."""

    def __init__(self) -> None:
        self.text = bytearray()
        self._offsets: dict[str, int] = {}

    def offset(self, name: str) -> int:
        if name not in self._offsets:
            self._offsets[name] = len(self.text)
            self.text += name.encode("ascii") + b"\0"
        return self._offsets[name]


def _table(entries: Iterable[bytes]) -> tuple[bytes, int]:
    items = list(entries)
    return b"".join(items), len(items)
