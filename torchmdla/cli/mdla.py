"""Command ``python -m torchmdla mdla``: print C compiler options for programs that call the mdla device's library."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from torchmdla.cli import Command, argument
from torchmdla.devices.mdla.options import include_path, library_path


def _run(options: argparse.Namespace) -> int:
    library = library_path()
    # At run time, a program finds the library in the folder where it was linked.
    linked = [library, f"-Wl,-rpath,{Path(library).parent}"]
    flags = [f"-I{include_path()}"] * options.cflags + linked * options.libs
    if not flags:
        options.parser.error("choose --cflags, --libs or both")
    print(shlex.join(flags))
    return 0


COMMAND = Command(
    "mdla",
    "print a C compiler's options for the mdla device's library",
    _run,
    [
        argument("--cflags", action="store_true", help="where microndla.h is, as options of the compiler"),
        argument("--libs", action="store_true", help="the emulator's library, as options of the linker"),
    ],
    epilog="""\
examples:
  python -m torchmdla mdla --cflags
  cc program.c $(python -m torchmdla mdla --cflags --libs) -o program
  cc program.c $(python -m torchmdla mdla --cflags) -lmicrondla -o program     with the vendor's library

exit status:
  0  all is well
  2  the command line is wrong
""",
)
