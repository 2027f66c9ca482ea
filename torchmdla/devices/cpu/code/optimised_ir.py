"""LLVM IR after LLVM's passes, as instructions are selected of it.

MLIR's execution engine hands out object code alone. LLVM prints the IR, where an option of its command line says so, on
the standard error stream of the process: it goes to a file instead while it does.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

from torch_mlir import _mlir_libs

from torchmdla.support import forks

# The options are the process's, and so is the stream.
_lock = forks.held(threading.RLock())

_HEADING = re.compile(r"^\*\*\* .* \*\*\*\n", re.MULTILINE)

# What the engine links beside the module.
_OF_THE_LINKER = re.compile(r"^define .*@(?:atexit|__lljit\w*)\(", re.MULTILINE)


class Printed:
    """What LLVM printed, once its block has ended."""

    text = ""


@contextmanager
def printed(is_wanted: bool = True) -> Iterator[Printed]:
    """What LLVM makes object code of in the block, in any thread; nothing unless it ``is_wanted``."""
    result = Printed()
    if not is_wanted:
        yield result
        return
    with _lock, tempfile.TemporaryFile() as file:
        with _standard_error(file):
            _set_option("-print-isel-input=true")
            try:
                yield result
            finally:
                _set_option("-print-isel-input=false")
        file.seek(0)
        functions = (text.strip("\n") for text in _HEADING.split(file.read().decode(errors="replace")))
    result.text = "\n\n".join(text for text in functions if text and not _OF_THE_LINKER.search(text)) + "\n"


@contextmanager
def _standard_error(file: IO[bytes]) -> Iterator[None]:
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _set_option(option: str) -> None:
    arguments = (ctypes.c_char_p * 2)(b"torchmdla", option.encode())
    _library().LLVMParseCommandLineOptions(len(arguments), arguments, None)


@cache
def _library() -> ctypes.CDLL:
    """The LLVM of MLIR's bindings."""
    (path,) = Path(next(iter(_mlir_libs.__path__))).glob("libTorchMLIRAggregateCAPI.*")
    return ctypes.CDLL(str(path))
