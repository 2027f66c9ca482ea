"""Atomic replacement of files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a new, empty file beside ``path``, and replace ``path`` with it after the block.

    Other processes may be reading the old file. Other users may not write to the new file, whatever the umask, because
    packages in such files are refused.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
