"""Command line of torchmdla: ``python -m torchmdla``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.utils

from torchmdla.cli import (
    Command,
    argument,
    bench,
    cache,
    doctor,
    explain,
    export,
    legalise,
    mdla,
    mlir,
    new_device,
    opt,
    package,
    print_pairs,
    read,
    run,
    tune,
)
from torchmdla.report.environment import environment
from torchmdla.version import __version__

# Exit status that shells report for a program whose output pipe was closed: 128 plus the number of SIGPIPE.
_BROKEN_PIPE_STATUS = 141


def _show_information(options: argparse.Namespace) -> int:
    if options.file is not None:
        return package.show(options.file)
    print_pairs(environment())
    return 0


def _show_cmake_prefix(_: argparse.Namespace) -> int:
    print(";".join([str(Path(__file__).parent / "share" / "cmake"), torch.utils.cmake_prefix_path]))
    return 0


COMMANDS = (
    Command(
        "info",
        "versions, devices and target, for a bug report; or what the package of a program's file has",
        _show_information,
        [
            argument(
                "file",
                nargs="?",
                help="a program's file: what it has of a package; or the file of torchmdla.export_native",
            )
        ],
    ),
    doctor.COMMAND,
    cache.CACHE,
    cache.STORE,
    run.COMMAND,
    bench.COMMAND,
    package.COMMAND,
    read.COMMAND,
    export.EXPORT,
    export.CHECK,
    Command("cmake", "print where CMake finds torchmdla and libtorch: -DCMAKE_PREFIX_PATH", _show_cmake_prefix),
    tune.COMMAND,
    explain.COMMAND,
    mlir.COMMAND,
    opt.COMMAND,
    legalise.COMMAND,
    new_device.COMMAND,
    package.KEYS,
    package.SIGN,
    mdla.COMMAND,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m torchmdla", description="Runs PyTorch programs through MLIR.")
    parser.add_argument("--version", action="version", version=f"torchmdla {__version__}")
    _add_commands(parser, COMMANDS)
    parsed, rest = parser.parse_known_args(arguments)
    parsed.flags = [text.removeprefix("--") for text in rest]
    if rest and not (parsed.takes_flags and all(text.startswith("--") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (| head). Python would report the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE_STATUS
    return status


def _add_commands(parser: argparse.ArgumentParser, commands: Sequence[Command]) -> None:
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        child = below.add_parser(
            command.name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=not command.takes_flags,
        )
        child.set_defaults(run=command.run, takes_flags=command.takes_flags, parser=child)
        for names, settings in command.arguments:
            child.add_argument(*names, **settings)
        if command.commands:
            _add_commands(child, command.commands)


if __name__ == "__main__":
    raise SystemExit(main())
