"""ABI of the executable: the names and arguments of its functions (``docs/design/abi.md``)."""

from __future__ import annotations

from dataclasses import dataclass

from torchmdla.devices.cpu.schedule import Symbols

ENTRY = "mdla_forward"
WORKSPACE = "mdla_workspace"
PARALLEL_FOR = "mdla_parallel_for"
BEGIN_KERNEL = "mdla_begin_kernel"
SHARE_ENTRY = "mdla_share_entry"
SHARE_KERNEL = "mdla_share_kernel"

# The function that threads share, and the constants of its kernels.
SHARED = "mdla_shared"
SHARED_KERNELS = "mdla_shared_kernels"

# The type of kernels: operands, and the range that a call computes.
KERNEL_TYPE = "(!llvm.ptr, i64, i64) -> ()"

# Positions in the array that the entry receives. The workspace is first in the array of every function.
PACKED = 1
SIZES = 2
ARGUMENTS = 3

# Positions in the array that a pack receives.
DESTINATION = 1
PACK_ARGUMENTS = 2

# The size in bytes of a pointer, of a size, and of a scalar argument.
WORD = 8


@dataclass(frozen=True)
class Abi:
    """Arguments and attributes of a module's functions.

    Attributes:
        symbols: the symbols whose values are passed as sizes.
        packed: the number of packed buffers.
        arguments: the number of arguments and results.
        attributes: the attributes of the functions, as MLIR text.
    """

    symbols: Symbols
    packed: int
    arguments: int
    attributes: str
