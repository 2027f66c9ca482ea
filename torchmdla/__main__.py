"""Command line of torchmdla: ``python -m torchmdla``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from torchmdla import devices
from torchmdla.cli import bench, doctor, explain, mdla, mlir, opt, package, run, store, tune
from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.records import Records
from torchmdla.report.environment import environment
from torchmdla.report.rendering import count_text, size_text
from torchmdla.version import __version__

# Exit status that shells report for a program whose output pipe was closed: 128 plus the number of SIGPIPE.
_BROKEN_PIPE_STATUS = 141


@dataclass(frozen=True)
class Command:
    """Command of the command line: a line in the help, and a function to run or a set of subcommands.

    Attributes:
        help: line in the help.
        run: function that runs the command and returns the exit status; None for a command with subcommands.
        commands: subcommands by name.
        add_arguments: function that adds the command's own arguments to a parser.
        epilog: text at the end of the command's help, printed verbatim.
        takes_flags: whether undeclared options are accepted. They are passed as ``flags``, in order and without dashes.
    """

    help: str
    run: Callable[[argparse.Namespace], int] | None = None
    commands: Mapping[str, Command] = field(default_factory=dict)
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    epilog: str = ""
    takes_flags: bool = False


def show_environment(options: argparse.Namespace) -> int:
    if options.file is not None:
        show = package.show_native_model if package.is_native_model(options.file) else package.show
        return show(options.file)
    _print_pairs(environment())
    return 0


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        help="a program's file: what it has of a package; or the file of torchmdla.export_native",
    )


def show_cmake_prefix(_: argparse.Namespace) -> int:
    import torch.utils

    print(";".join([str(Path(__file__).parent / "share" / "cmake"), torch.utils.cmake_prefix_path]))
    return 0


def show_cache(_: argparse.Namespace) -> int:
    cache = DiskCache()
    info = cache.info()
    _print_pairs(
        {
            "path": str(info.path),
            "artifacts": str(info.entries),
            "measured kernels": str(len(Records(devices.get("cpu"), cache).load())),
            "size": size_text(info.size),
            "limit": size_text(info.limit),
            "in use": f"no: {info.problem}" if info.problem else "yes",
        }
    )
    return 0


def clear_cache(options: argparse.Namespace) -> int:
    cache = DiskCache()
    message = f"{cache.clear()} artifacts removed from {cache.path}"
    if options.records:
        message += f", and what was measured on {count_text(cache.clear_records(), 'machine')}"
    Console().print(message, soft_wrap=True, markup=False, highlight=False)
    return 0


def _add_clear_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", action="store_true", help="what tune has measured, too")


COMMANDS = {
    "info": Command(
        "versions, devices and target, for a bug report; or what the package of a program's file has",
        show_environment,
        add_arguments=_add_info_arguments,
    ),
    "doctor": Command(
        "check what compiled calls need: versions, processor, cache, store, compiler, a model",
        doctor.run,
        add_arguments=doctor.add_arguments,
        epilog=doctor.EPILOG,
    ),
    "cache": Command(
        "the artifacts on disk",
        commands={
            "info": Command("where it is, how much is in it, and why it is not used if so", show_cache),
            "clear": Command("remove every artifact", clear_cache, add_arguments=_add_clear_arguments),
        },
    ),
    "store": Command(
        "the artifacts that machines share (TORCHMDLA_STORE)",
        commands={"push": Command("put every artifact on disk into it", store.push, epilog=store.PUSH_EPILOG)},
    ),
    "run": Command(
        "call a program in a file, compiled, and compare it with eager PyTorch",
        run.run,
        add_arguments=run.add_arguments,
        epilog=run.EPILOG,
    ),
    "bench": Command(
        "time a program in a file: eager, frozen and compiled, side by side",
        bench.run,
        add_arguments=bench.add_arguments,
        epilog=bench.EPILOG,
    ),
    "package": Command(
        "write a program's file with the compiled code of its groups",
        package.run,
        add_arguments=package.add_arguments,
        epilog=package.EPILOG,
    ),
    "cmake": Command("print where CMake finds torchmdla and libtorch: -DCMAKE_PREFIX_PATH", show_cmake_prefix),
    "tune": Command(
        "measure schedules for the kernels of a program in a file, and keep the fastest",
        tune.run,
        add_arguments=tune.add_arguments,
        epilog=tune.EPILOG,
    ),
    "explain": Command(
        "report what runs compiled, how fast, and why the rest does not",
        explain.run,
        add_arguments=explain.add_arguments,
        epilog=explain.EPILOG,
    ),
    "mlir": Command(
        "write a program in a file as MLIR", mlir.run, add_arguments=mlir.add_arguments, epilog=mlir.EPILOG
    ),
    "opt": Command(
        "run passes over MLIR", opt.run, add_arguments=opt.add_arguments, epilog=opt.EPILOG, takes_flags=True
    ),
    "keys": Command(
        "the keys that packages are signed with",
        commands={
            "generate": Command(
                "make a key: a private file to sign with, and a public one to trust",
                package.generate_keys,
                add_arguments=package.add_generate_arguments,
                epilog=package.GENERATE_EPILOG,
            ),
        },
    ),
    "sign": Command(
        "sign the package in a file",
        package.sign_package,
        add_arguments=package.add_sign_arguments,
        epilog=package.SIGN_EPILOG,
    ),
    "mdla": Command(
        "print a C compiler's options for the mdla device's library",
        mdla.run,
        add_arguments=mdla.add_arguments,
        epilog=mdla.EPILOG,
    ),
}


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


def _add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Command]) -> None:
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in commands.items():
        child = below.add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=not command.takes_flags,
        )
        child.set_defaults(run=command.run, takes_flags=command.takes_flags)
        command.add_arguments(child)
        if command.commands:
            _add_commands(child, command.commands)


def _print_pairs(pairs: Mapping[str, str]) -> None:
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:  # One line per pair, for other programs and for reports.
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


if __name__ == "__main__":
    raise SystemExit(main())
