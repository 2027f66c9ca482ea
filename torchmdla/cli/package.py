"""Command ``python -m torchmdla package``: write a program file that includes the compiled code of its groups."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdla.cli import failed, one_line
from torchmdla.cli.files import add_program_arguments, check_inputs, load_program
from torchmdla.cli.inputs import FROM_FILES, read_inputs
from torchmdla.report.rendering import counted, size_text

if TYPE_CHECKING:
    from torchmdla.packages import PackageInfo

EPILOG = """\
examples:
  python -m torchmdla package model.pt --input 1x3x224x224
  python -m torchmdla package model.pt --input 1x3x224x224 --target x86-64-v3 --target x86-64-v4 -o fleet.pt
  python -m torchmdla package model.pt --input 2x128:int64 --call 2x96:int64 --call 2x64:int64     for any lengths
  python -m torchmdla info fleet.pt

The file that it writes is one of TorchScript, or an exported program, as the one that it reads: PyTorch without
torchmdla takes it as any other. Where torchmdla is present, in Python or in C++, nothing is compiled for the calls that
it was made with, and no compiler is needed (docs/packages.md).

exit status:
  0  the file is written
  2  it is not: there is no program to read, or no code for it
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_program_arguments(parser, FROM_FILES)
    parser.add_argument(
        "--call",
        action="append",
        default=[],
        metavar="INPUT,…",
        help="a further call to have code for: its inputs between commas, each as for --input",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME",
        help="native (default), x86-64-v2, x86-64-v3 or x86-64-v4; once for each",
    )
    parser.add_argument(
        "--no-freeze", action="store_true", help="leave weights of TorchScript attributes; the first call packs them"
    )
    parser.add_argument(
        "--sign", metavar="KEY", help="a private key to sign it with (python -m torchmdla keys generate)"
    )
    parser.add_argument(
        "--pack-weights",
        action="store_true",
        help="weights as the code reads them, too: they are mapped, and shared by processes; the file is larger",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="default: beside the program, as model.packaged.pt")


def run(options: argparse.Namespace) -> int:
    """Write the package. Return the exit status."""
    path = Path(options.file)
    output = Path(options.output or path.with_name(f"{path.stem}.packaged{path.suffix}"))
    try:
        package = _package(options, output)
    except Exception as error:  # Includes errors of the model.
        return failed(one_line(error))
    print(f"{output}: {size_text(output.stat().st_size)}")
    print_package(package)
    return 0


def _package(options: argparse.Namespace, output: Path) -> PackageInfo:
    from torchmdla.packages import other_extra_files, save

    program = load_program(options.file, options.allow_pickle)
    inputs = read_inputs(options.input)
    check_inputs(program, inputs)
    calls: list[tuple[Any, ...]] = [tuple(inputs)] if inputs else []
    calls += [tuple(read_inputs(call.split(","))) for call in options.call]
    extra = other_extra_files(options.file)
    return save(
        program,
        output,
        calls,
        options.target or ["native"],
        freeze=not options.no_freeze,
        pack_weights=options.pack_weights,
        extra=extra or None,
        sign=options.sign,
    )


def show(path: str) -> int:
    """Print the package in a file. Return the exit status."""
    from torchmdla.packages import DamagedPackage, info

    try:
        package = info(path)
    except (DamagedPackage, RuntimeError, OSError) as error:
        return failed(f"{path}: {one_line(error)}")
    if package is None:
        return failed(f"{path} has no package: python -m torchmdla package {path}")
    print_package(package)
    return 0


def print_package(package: PackageInfo) -> None:
    """Print the contents of a package to standard output."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for target in package.targets:
        several = counted(len(target.groups), "specialisation")
        weights = f"{size_text(target.weights)} of packed weights" if target.weights else ""
        table.add_row(target.name, size_text(target.size), several, weights, _features(target.features))
    console.print(table)
    for line in package.targets[0].groups if package.targets else ():
        console.print(f"  {line}")
    console.print(f"made by {', '.join(f'{name} {version}' for name, version in package.versions.items())}")
    if package.signer:
        console.print(f"signed, as it says, by key {package.signer[:16]}")


def _features(names: Sequence[str]) -> str:
    """Return the vector features, which distinguish processors for humans."""
    vectors = [name for name in names if name.startswith(("avx", "sse4", "amx"))]
    return " ".join(vectors) or "no vectors beyond SSE2"
