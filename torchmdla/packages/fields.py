"""Encoding of numbers, texts and lists as bytes, for readers in C++ (``src/base/byte_reader.h``).

Integers and floats take 8 bytes, little-endian. Kinds and booleans take one byte. A list or a text is preceded by the
number of its elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from torchmdla.capture.symbolic.size_program import Node, SizeNodes

Element = TypeVar("Element")

# The numbers of dtypes in c10 (c10/core/ScalarType.h), which TorchScript files also contain.
SCALAR_TYPES: Mapping[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


class FieldWriter:
    """Writer of consecutive fields."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def getvalue(self) -> bytes:
        """Return all bytes written so far."""
        return b"".join(self._parts)

    def byte(self, value: int) -> None:
        self._parts.append(bytes([value]))

    def raw(self, data: bytes) -> None:
        """Write bytes whose number the reader knows."""
        self._parts.append(data)

    def integer(self, value: int) -> None:
        self._parts.append(struct.pack("<q", value))

    def real(self, value: float) -> None:
        self._parts.append(struct.pack("<d", value))

    def block(self, data: bytes) -> None:
        """Write bytes, preceded by their number."""
        self.integer(len(data))
        self.raw(data)

    def text(self, value: str) -> None:
        self.block(value.encode())

    def list(self, elements: Iterable[Element], write: Callable[[Element], object]) -> None:
        """Write the number of elements, and call ``write`` for each element."""
        elements = elements if isinstance(elements, Sized) else tuple(elements)
        self.integer(len(elements))
        for element in elements:
            write(element)

    def integer_pair(self, values: tuple[int, int]) -> None:
        for value in values:
            self.integer(value)

    def integers(self, values: Iterable[int]) -> None:
        self.list(tuple(values), self.integer)


# Sizes that depend on the sizes of a call (``src/codeimage/size_fields.cpp`` reads them)


def write_varying_lists(writer: FieldWriter, *lists: Sequence[Any]) -> None:
    """Write the numbers of all lists, with 0 for those that vary; then those, which are polynomials."""
    for numbers in lists:
        writer.integers(0 if isinstance(number, tuple) else int(number) for number in numbers)
    for numbers in lists:
        varying = [(place, number) for place, number in enumerate(numbers) if isinstance(number, tuple)]
        writer.integer(len(varying))
        for place, polynomial in varying:
            writer.integer(place)
            write_polynomial(writer, polynomial)


def write_polynomial(writer: FieldWriter, terms: Sequence[tuple[Sequence[int], int]]) -> None:
    writer.integer(len(terms))
    for exponents, factor in terms:
        writer.integers(exponents)
        writer.integer(factor)


def write_size_program(writer: FieldWriter, sizes: SizeNodes) -> None:
    def write_node(node: Node) -> None:
        name, number, left, right = node
        writer.text(name)
        writer.byte(isinstance(number, float))
        writer.real(number) if isinstance(number, float) else writer.integer(number)
        writer.integer(left)
        writer.integer(right)

    nodes, computed, conditions = sizes
    writer.list(nodes, write_node)
    writer.integers(computed)
    writer.integers(conditions)
