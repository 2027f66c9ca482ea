"""The executable's ABI: names, and what its functions are given (``docs/architecture.md``)."""

from __future__ import annotations

from dataclasses import dataclass

from torchmdla.devices.cpu.schedule import Symbols

ENTRY = "mdla_forward"
WORKSPACE = "mdla_workspace"
PARALLEL_FOR = "mdla_parallel_for"
BEGIN_KERNEL = "mdla_begin_kernel"

# Of kernels: operands, and the range that a call computes.
KERNEL_TYPE = "(!llvm.ptr, i64, i64) -> ()"

# Places in the array that the entry is given: the workspace is first in every function's.
PACKED = 1
SIZES = 2
ARGUMENTS = 3

# Places in the array that a pack is given.
DESTINATION = 1
PACK_ARGUMENTS = 2

# Bytes of a pointer, of a size, and of a scalar argument.
WORD = 8


@dataclass(frozen=True)
class Abi:
    """What functions of a module are given: ``symbols`` whose values are the sizes, ``packed`` buffers, and how many
    ``arguments`` and results. ``attributes``: of these functions."""

    symbols: Symbols
    packed: int
    arguments: int
    attributes: str
