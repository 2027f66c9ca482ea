"""Operands that come from memory for few rows: to fetch them takes longer than to compute with them."""

from __future__ import annotations

import math
from functools import lru_cache

from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, stored
from torchmdla.devices.cpu.kernel_spec import KernelSpec, Operand
from torchmdla.devices.cpu.machine import Machine

# Rows for which they are read again at most.
_MOST_ROWS = 8


@lru_cache(maxsize=4096)
def streams(nest: KernelSpec, machine: Machine) -> tuple[Operand, ...]:
    """The inputs of a nest that reduces of which each element is read for a few rows, and which no cache holds."""
    return tuple(o for o in nest.inputs if any(nest.reduction) and _is_stream(nest, o, machine))


def _is_stream(nest: KernelSpec, operand: Operand, machine: Machine) -> bool:
    loops = [(stride, size) for stride, size in zip(operand.strides, nest.sizes, strict=True) if size > 1]
    rows = math.prod(size for stride, size in loops if not stride)
    elements = 1
    # Windows that overlap read again what lies in a cache.
    for stride, size in sorted((stride, size) for stride, size in loops if stride):
        if stride < elements:
            return False
        elements = stride * size
    size = ELEMENT_BYTES[stored(operand.element)]
    return rows <= _MOST_ROWS and machine.streams(size * math.prod(n for stride, n in loops if stride))


def is_read_once(nest: KernelSpec, operand: Operand) -> bool:
    """Whether a stream is read for a single row."""
    return all(stride for stride, size in zip(operand.strides, nest.sizes, strict=True) if size > 1)
