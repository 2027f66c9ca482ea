"""Numbers, texts and lists as bytes, for readers in C++ (``src/support/byte_reader.h``).

Integers and floats take 8 bytes, little-endian; kinds and truth values one byte. The number of elements stands before a
list or a text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sized
from typing import TypeVar

Element = TypeVar("Element")


class FieldWriter:
    """Writes fields one after another."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def getvalue(self) -> bytes:
        """All that was written."""
        return b"".join(self._parts)

    def byte(self, value: int) -> None:
        self._parts.append(bytes([value]))

    def raw(self, data: bytes) -> None:
        """Bytes whose number the reader knows."""
        self._parts.append(data)

    def integer(self, value: int) -> None:
        self._parts.append(struct.pack("<q", value))

    def real(self, value: float) -> None:
        self._parts.append(struct.pack("<d", value))

    def block(self, data: bytes) -> None:
        """Bytes behind their number."""
        self.integer(len(data))
        self.raw(data)

    def text(self, value: str) -> None:
        self.block(value.encode())

    def list(self, elements: Iterable[Element], write: Callable[[Element], object]) -> None:
        """``write`` is called for each element."""
        elements = elements if isinstance(elements, Sized) else tuple(elements)
        self.integer(len(elements))
        for element in elements:
            write(element)

    def integer_pair(self, values: tuple[int, int]) -> None:
        for value in values:
            self.integer(value)

    def integers(self, values: Iterable[int]) -> None:
        self.list(tuple(values), self.integer)
