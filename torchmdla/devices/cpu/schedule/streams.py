"""Streams: operands that come from memory and are used for few rows. Fetching them takes longer than computing."""

from __future__ import annotations

import math
from functools import lru_cache

from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.target.machine import Machine

# The most rows for which a stream is read.
_MOST_ROWS = 8


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


def is_read_once(nest: KernelSpec, operand: Operand) -> bool:
    """Return whether a stream is used for a single row."""
    return all(stride for stride, size in zip(operand.strides, nest.sizes, strict=True) if size > 1)
