"""Streams: operands that come from memory and are used for few rows. Fetching them takes longer than computing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.target.machine import Machine

# The most rows for which a stream is read.
_MOST_ROWS = 8

# The bytes of an element that is not narrow, and the part of the first-level cache for data that each row reads again.
_WORD = 4
_PART_OF_CACHE = 1.0


@lru_cache(maxsize=4096)
def streams(nest: KernelSpec, machine: Machine) -> tuple[Operand, ...]:
    """Return the inputs of a reduction that are each used for a few rows, and exceed the second-level cache."""
    return tuple(o for o in nest.inputs if any(nest.reduction) and _is_stream(nest, o, machine))


def _is_stream(nest: KernelSpec, operand: Operand, machine: Machine) -> bool:
    loops = [(stride, size) for stride, size in zip(operand.strides, nest.sizes, strict=True) if size > 1]
    rows = math.prod(size for stride, size in loops if not stride)
    elements = 1
    # Overlapping windows read elements again that are in a cache, so they are not streams.
    for stride, size in sorted((stride, size) for stride, size in loops if stride):
        if stride < elements:
            return False
        elements = stride * size
    size = ELEMENT_BYTES[storage_type(operand.element)]
    return rows <= _MOST_ROWS and machine.is_streamed(size * math.prod(n for stride, n in loops if stride))


def is_read_in_order(nest: KernelSpec, operand: Operand, vector: int, machine: Machine) -> bool:
    """Return whether a stream is read from front to back, with vectors along the loop ``vector``.

    Vectors of narrow elements take several instructions, so the processor itself looks few lines ahead. It reads them
    fastest in order, with prefetches, if the first-level cache holds the data that each row reads again.
    """
    if operand.strides[vector] != 1 or not nest.reduction[vector]:
        return operand.strides[vector] == 1
    again = (_bytes_along(nest, other, nest.reduction) for other in nest.inputs if other is not operand)
    is_narrow = ELEMENT_BYTES[storage_type(operand.element)] < _WORD
    return is_narrow and is_read_once(nest, operand) and sum(again) <= _PART_OF_CACHE * machine.first_level


def _bytes_along(nest: KernelSpec, operand: Operand, loops: Sequence[bool]) -> int:
    """Return the bytes of an operand along the loops that ``loops`` is true for."""
    walked = zip(nest.sizes, operand.strides, loops, strict=True)
    elements = math.prod(size for size, stride, is_walked in walked if stride and is_walked)
    return elements * ELEMENT_BYTES[storage_type(operand.element)]


def is_read_once(nest: KernelSpec, operand: Operand) -> bool:
    """Return whether a stream is used for a single row."""
    return all(stride for stride, size in zip(operand.strides, nest.sizes, strict=True) if size > 1)
