"""Files that are whole, or as they were before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Whole or not at all: a fleet may be reading what is replaced."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
        written = Path(temporary.name)
        try:
            write(temporary)
            temporary.flush()
            written.chmod(0o666 & ~_umask())
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
