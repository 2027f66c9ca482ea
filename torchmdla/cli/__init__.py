"""Commands of ``python -m torchmdla`` that have their own module."""

from __future__ import annotations

import sys


def report_failure(reason: object) -> int:
    """Print why a command failed, and return its exit status, 2 as in argparse.

    Raises:
        BrokenPipeError: it is the reason: the reader closed the pipe. The command line's main function handles it.
    """
    if isinstance(reason, BrokenPipeError):
        raise reason
    print(f"error: {_file_error_text(reason) if isinstance(reason, OSError) else reason}", file=sys.stderr)
    return 2


def one_line(error: Exception) -> str:
    """Return the error in one line.

    A script's error ends with the message, after the script's traceback.
    """
    if isinstance(error, OSError):
        return _file_error_text(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_script = lines and lines[0].startswith("The following operation failed in the TorchScript interpreter")
    if not is_script and len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1]}"
    return (lines[-1] if is_script else lines[0]) if lines else type(error).__name__


def _file_error_text(error: OSError) -> str:
    """Return ``model.pt: No such file or directory``, the format of shells."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
