"""Command ``python -m torchmdla mlir``: print a program in a file as MLIR."""

from __future__ import annotations

import argparse
from pathlib import Path

from torchmdla.cli import Command, argument, report_failure
from torchmdla.cli.files import FileError, check_inputs, load_program, program_arguments
from torchmdla.errors import CompileError

OUTPUTS = ("torch", "linalg", "tosa", "stablehlo", "loops", "llvm", "aten")


def _run(options: argparse.Namespace) -> int:
    try:
        text = _text(options)
        if options.path:
            Path(options.path).write_text(text)
        else:
            print(text, end="")
    except (FileError, CompileError, TypeError, ValueError, OSError) as error:
        return report_failure(error)
    return 0


def _text(options: argparse.Namespace) -> str:
    from torchmdla.mlir import TensorSpec, get_mlir
    from torchmdla.mlir.get import get_loops

    specs = [TensorSpec.parse(text) for text in options.input]
    if options.dynamic:
        specs = [TensorSpec((None, *spec.shape[1:]), spec.dtype) if spec.shape else spec for spec in specs]
    program = load_program(options.file, options.allow_pickle)
    check_inputs(program, specs)
    if options.output == "loops":
        return get_loops(program, *specs)
    module = get_mlir(program, *specs, output=options.output, weights=options.weights)
    return str(module.operation.get_asm(enable_debug_info=options.locations)).rstrip("\n") + "\n"


COMMAND = Command(
    "mlir",
    "write a program in a file as MLIR",
    _run,
    [
        *program_arguments("? for a size that varies; "),
        argument(
            "--output",
            choices=OUTPUTS,
            default="torch",
            help="the dialect, or the cpu device's loop program (default: %(default)s)",
        ),
        argument("-o", dest="path", metavar="FILE", help="where to write it (default: standard output)"),
        argument("--dynamic", action="store_true", help="the first size of every input varies"),
        argument("--weights", choices=("arguments", "literals"), default="arguments", help="what weights become"),
        argument("--locations", action="store_true", help="write the place of each op in the user's program"),
    ],
    epilog="""\
examples:
  python -m torchmdla mlir model.pt --input 1x3x224x224 --output linalg
  python -m torchmdla mlir bert.pt --input 1x128:int64 --input 1x128:int64 -o bert.mlir
  python -m torchmdla mlir model.pt --input ?x3x224x224      the first size varies
  python -m torchmdla mlir exported.pt2 --output stablehlo   an exported program has its inputs
  python -m torchmdla mlir model.pt --input 8x64 --output loops | python -m torchmdla opt
                                                             the cpu device's own IR, through its passes
""",
)
