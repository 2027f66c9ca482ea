"""Command ``python -m torchmdla mdla``: print C compiler options for programs that call the mdla device's library."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

EPILOG = """\
examples:
  python -m torchmdla mdla --cflags
  cc program.c $(python -m torchmdla mdla --cflags --libs) -o program
  cc program.c $(python -m torchmdla mdla --cflags) -lmicrondla -o program     with the vendor's library

exit status:
  0  all is well
  2  the command line is wrong
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--cflags", action="store_true", help="where microndla.h is, as options of the compiler")
    parser.add_argument("--libs", action="store_true", help="the emulator's library, as options of the linker")
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the options on one line. Return the exit status."""
    from torchmdla import mdla

    library = mdla.library_path()
    # At run time, a program finds the library in the folder where it was linked.
    linked = [library, f"-Wl,-rpath,{Path(library).parent}"]
    flags = [f"-I{mdla.include_path()}"] * options.cflags + linked * options.libs
    if not flags:
        options.parser.error("choose --cflags, --libs or both")
    print(shlex.join(flags))
    return 0
