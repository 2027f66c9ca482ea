"""What made a program: an artifact made by anything else is never reused."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


@lru_cache(maxsize=1)
def producers() -> tuple[tuple[str, str], ...]:
    """Name and version of each producer.

    torchmdla's is a hash of its compiling sources, so that a changed working copy does not meet old artifacts.
    """
    digest = hashlib.sha256()
    for folder in ("compiler", "devices"):
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return ("torchmdla", digest.hexdigest()[:16]), ("torch-mlir", version("torch-mlir"))
