"""Commands ``package``, ``info FILE``, ``keys`` and ``sign``: write, print and sign files with compiled code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from torchmdla.cli import Command, argument, one_line, report_failure
from torchmdla.cli.files import check_inputs, load_program, program_arguments
from torchmdla.cli.inputs import FROM_FILES, read_inputs
from torchmdla.compile_service.signatures import generate_key
from torchmdla.report.rendering import count_text, size_text

if TYPE_CHECKING:
    from torchmdla.packages import PackageInfo


def _run(options: argparse.Namespace) -> int:
    path = Path(options.file)
    output = Path(options.output or path.with_name(f"{path.stem}.packaged{path.suffix}"))
    try:
        package = _package(options, output)
    except Exception as error:  # Includes errors of the model.
        return report_failure(one_line(error))
    print(f"{output}: {size_text(output.stat().st_size)}")
    _print_package(package)
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
    """Check a package, or a model file of the runtime without libtorch, and print what it has. Return the status."""
    from torchmdla.packages import DamagedPackage, info
    from torchmdla.packages.native_file import has_model_header

    try:
        if has_model_header(path):
            return _show_native_model(path)
        package = info(path)
    except (DamagedPackage, RuntimeError, OSError) as error:
        return report_failure(f"{path}: {one_line(error)}")
    if package is None:
        return report_failure(f"{path} has no package: python -m torchmdla package {path}")
    _print_package(package)
    return 0


def _print_package(package: PackageInfo) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for target in package.targets:
        several = count_text(len(target.groups), "specialisation")
        weights = f"{size_text(target.weights)} of packed weights" if target.weights else ""
        # Vector features distinguish processors for humans, and devices have their own.
        shown = [name for name in target.features if name.startswith(("avx", "sse4", "amx")) or ":" in name]
        features = " ".join(shown) or "no vectors beyond SSE2"
        table.add_row(target.name, size_text(target.size), several, weights, features)
    console.print(table)
    for line in package.targets[0].groups if package.targets else ():
        console.print(f"  {line}")
    console.print(f"made by {', '.join(f'{name} {version}' for name, version in package.versions.items())}")
    if package.signer:
        console.print(f"claims a signature by key {package.signer[:16]}")


def _show_native_model(path: str) -> int:
    from torchmdla.packages.native_file import DamagedModel, info_of

    try:
        info = info_of(path)
    except (DamagedModel, OSError) as error:
        return report_failure(f"{path}: {one_line(error)}")
    kinds = {
        "method": info.methods, "state": info.attributes, "input": info.inputs, "output": info.outputs,
        "code for": info.codes, "target": info.targets,
    }  # fmt: skip
    for kind, lines in kinds.items():
        for line in lines:
            print(f"{kind:8}  {line}")
    print(f"weights   {len(info.weights)}, {size_text(info.weight_bytes)}; all checksums match")
    print(f"made by   {', '.join(f'{name} {version}' for name, version in info.versions.items())}")
    return 0


def _generate_keys(options: argparse.Namespace) -> int:
    try:
        key = generate_key(options.name)
    except (ImportError, OSError) as error:
        return report_failure(one_line(error))
    print(f"{options.name}.pem and {options.name}.pub.pem: key {key.number[:16]}")
    return 0


def _sign_package(options: argparse.Namespace) -> int:
    from torchmdla.packages import signing

    try:
        key = signing.sign(options.file, options.key, options.output)
    except (ImportError, OSError, ValueError) as error:
        return report_failure(one_line(error))
    print(f"{options.output or options.file}: signed by key {key.number[:16]}")
    return 0


COMMAND = Command(
    "package",
    "write a program's file with the compiled code of its groups",
    _run,
    [
        *program_arguments(FROM_FILES),
        argument(
            "--call",
            action="append",
            default=[],
            metavar="INPUT,…",
            help="a further call to have code for: its inputs between commas, each as for --input",
        ),
        argument(
            "--target",
            action="append",
            default=[],
            metavar="NAME",
            help="native (default), x86-64-v2 to x86-64-v4, x86-64-v4-amx, armv8-a or armv8.6-a; once for each",
        ),
        argument(
            "--no-freeze",
            action="store_true",
            help="leave weights of TorchScript attributes; the first call packs them",
        ),
        argument("--sign", metavar="KEY", help="a private key to sign it with (python -m torchmdla keys generate)"),
        argument(
            "--pack-weights",
            action="store_true",
            help="weights as the code reads them, too: they are mapped, and shared by processes; the file is larger",
        ),
        argument("-o", "--output", metavar="FILE", help="default: beside the program, as model.packaged.pt"),
    ],
    epilog="""\
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
  2  the file is not written: the program cannot be read, or has no compiled code
""",
)

KEYS = Command(
    "keys",
    "the keys that packages are signed with",
    commands=[
        Command(
            "generate",
            "make a key: a private file to sign with, and a public one to trust",
            _generate_keys,
            [argument("name", help="what the files' names begin with: NAME.pem and NAME.pub.pem")],
            epilog="""\
examples:
  python -m torchmdla keys generate release

Keep release.pem secret: it signs packages. Give release.pub.pem to users who load them.
""",
        )
    ],
)

SIGN = Command(
    "sign",
    "sign the package in a file",
    _sign_package,
    [
        argument("file", help="a package, as torchmdla.save writes it"),
        argument("--key", required=True, metavar="FILE", help="the private key (PEM)"),
        argument("-o", "--output", metavar="FILE", help="where to write it (default: in its place)"),
    ],
    epilog="""\
examples:
  python -m torchmdla sign model.pt --key release.pem
  python -m torchmdla sign model.pt --key release.pem -o signed.pt
  TORCHMDLA_REQUIRE_SIGNATURE=release.pub.pem python serve.py

Nothing is compiled again. A signature that the package has is replaced.
""",
)
