"""Commands of ``python -m torchmdla``; each module of this package has one or several."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

# Names and settings of ``ArgumentParser.add_argument``.
Argument = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Command:
    """Command of the command line: a line in the help, and a function to run or a set of subcommands.

    Attributes:
        name: the word on the command line.
        help: line in the help.
        run: function that runs the command and returns the exit status; None for a command with subcommands.
        arguments: the command's own arguments.
        epilog: text at the end of the command's help, printed verbatim.
        commands: subcommands.
        takes_flags: whether undeclared options are accepted. They are passed as ``flags``, in order and without dashes.
    """

    name: str
    help: str
    run: Callable[[argparse.Namespace], int] | None = None
    arguments: Sequence[Argument] = ()
    epilog: str = ""
    commands: Sequence[Command] = ()
    takes_flags: bool = False


def argument(*names: str, **settings: Any) -> Argument:
    """Return an argument of a command, as ``ArgumentParser.add_argument`` takes it."""
    return names, settings


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


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print names with their values: a table on a terminal, else one line per pair, for other programs and reports."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        longest = max(map(len, pairs))
        for name, value in pairs.items():
            print(f"{name:{longest}}  {value}")
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    # Folded instead of truncated: users copy these lines into reports.
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name, value)
    console.print(table)


def _file_error_text(error: OSError) -> str:
    """Return ``model.pt: No such file or directory``, the format of shells."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
