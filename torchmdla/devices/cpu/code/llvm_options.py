"""Options of the LLVM that compiles kernels. They are command-line options and apply to the whole process."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from torch_mlir import _mlir_libs

# Schedules specify how far loops are unrolled. Further unrolling by LLVM was not observed to make kernels faster, and
# takes a third of LLVM's time. LLVM unrolls much for processors whose model keeps long loops decoded.
_NEVER_UNROLL = ("-unroll-full-max-count=0", "-unroll-runtime=false", "-unroll-allow-partial=false")

# Loop strength reduction takes a third of LLVM's time. Kernels advance a few pointers by multiples of an index in a
# register. They are as fast without it: inner loops have the same instructions, except for the addresses.
_KEEP_INDICES = "-disable-lsr"


@cache
def configure() -> None:
    """Set the options that apply to all compilations of this process."""
    set_options(*_NEVER_UNROLL, _KEEP_INDICES)


def set_options(*options: str) -> None:
    """Set options, as on LLVM's command line. Unknown options are ignored."""
    arguments = [b"torchmdla", *(option.encode() for option in options)]
    _library().LLVMParseCommandLineOptions(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments), None)


@cache
def _library() -> ctypes.CDLL:
    """Return the LLVM library of MLIR's bindings."""
    (path,) = Path(next(iter(_mlir_libs.__path__))).glob("libTorchMLIRAggregateCAPI.*")
    return ctypes.CDLL(str(path))
