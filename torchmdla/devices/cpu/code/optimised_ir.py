"""LLVM IR after LLVM's passes, before instruction selection.

MLIR's execution engine returns only object code. With a command-line option, LLVM prints the IR to the standard error
stream of the process. The stream is redirected to a file during that time.
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

# The options and the stream belong to the whole process.
_lock = forks.held(threading.RLock())

_HEADING = re.compile(r"^\*\*\* .* \*\*\*\n", re.MULTILINE)

# Functions that the engine links to the module.
_OF_THE_LINKER = re.compile(r"^define .*@(?:atexit|__lljit\w*)\(", re.MULTILINE)


class Printed:
    """Text that LLVM printed. It is set at the end of the block."""

    text = ""


@contextmanager
def printed(is_wanted: bool = True) -> Iterator[Printed]:
    """Capture the IR that any thread compiles to object code in the block; capture nothing unless ``is_wanted``."""
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
    saved = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
