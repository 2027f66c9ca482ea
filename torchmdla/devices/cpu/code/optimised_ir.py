"""LLVM IR after LLVM's passes, as instructions are selected of it.

MLIR's execution engine hands out object code alone. LLVM prints the IR, where an option of its command line says so, on
the standard error stream of the process: it goes to a file instead while it does.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from torchmdla.devices.cpu.code.llvm_options import set_options
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
            set_options("-print-isel-input=true")
            try:
                yield result
            finally:
                set_options("-print-isel-input=false")
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
