"""Files that appear whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new, empty file beside ``path``, which takes its place after the block: a fleet may be reading what is there.

    Others may not write to it, whatever the umask: packages in such files are refused.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
