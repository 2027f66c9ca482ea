"""Options of the LLVM that compiles kernels, which are those of its command line. They are the process's."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from torch_mlir import _mlir_libs

# Schedules say how far loops are unrolled. What LLVM unrolls beside, a great deal on processors that are said to keep
# long loops decoded, was not seen to make kernels faster, and takes a third of LLVM's time.
_NEVER_UNROLL = ("-unroll-full-max-count=0", "-unroll-runtime=false", "-unroll-allow-partial=false")

# Loop strength reduction takes a third of LLVM's time. Kernels advance a few pointers by multiples of an index that a
# register holds, and are as fast without it: inner loops have the same instructions, but for the addresses.
_KEEP_INDICES = "-disable-lsr"


@cache
def configure() -> None:
    """Sets what holds for all compiles of this process."""
    set_options(*_NEVER_UNROLL, _KEEP_INDICES)


def set_options(*options: str) -> None:
    """Sets options, as on LLVM's command line. One that there is not is ignored."""
    arguments = [b"torchmdla", *(option.encode() for option in options)]
    _library().LLVMParseCommandLineOptions(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments), None)


@cache
def _library() -> ctypes.CDLL:
    """The LLVM of MLIR's bindings."""
    (path,) = Path(next(iter(_mlir_libs.__path__))).glob("libTorchMLIRAggregateCAPI.*")
    return ctypes.CDLL(str(path))
