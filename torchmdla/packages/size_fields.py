"""Encoding of sizes that depend on the sizes of a call (``src/package/size_fields.cpp`` reads them)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchmdla.packages.fields import FieldWriter

if TYPE_CHECKING:
    from torchmdla.capture.size_program import Node, SizeNodes


def mask_varying(numbers: Sequence[Any]) -> list[int]:
    """Return the numbers, with 0 for those that vary."""
    return [0 if isinstance(number, tuple) else int(number) for number in numbers]


def write_varying(writer: FieldWriter, numbers: Sequence[Any]) -> None:
    """Write the numbers that vary, which are polynomials."""
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
