"""The commands of ``python -m torchmdla`` that need a file each."""

from __future__ import annotations

import sys


def failed(reason: object) -> int:
    """Says why a command cannot do what it is asked for, and returns its exit status, 2 as argparse has it."""
    print(f"error: {reason}", file=sys.stderr)
    return 2
