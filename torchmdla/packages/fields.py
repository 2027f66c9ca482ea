"""Numbers, texts and lists as bytes, for readers in C++ (``src/support/byte_reader.h``).

Integers and floats take 8 bytes, little-endian; kinds and truth values one byte. The number of elements stands before a
list or a text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import TypeVar

import torch

Element = TypeVar("Element")

# c10's numbers of dtypes (c10/core/ScalarType.h), which files of TorchScript hold, too.
SCALAR_TYPES: Mapping[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


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
