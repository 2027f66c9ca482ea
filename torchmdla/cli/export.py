"""Commands ``export`` and ``serve-check``: programs for the runtime without PyTorch."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchmdla.cli import Argument, Command, argument, one_line, report_failure
from torchmdla.cli.files import load_program, program_arguments
from torchmdla.cli.inputs import FROM_FILES, read_inputs
from torchmdla.report.rendering import count_text, size_text

_METHOD = re.compile(r"(?P<method>[A-Za-z_]\w*):")


def _arguments(*further: Argument) -> list[Argument]:
    return [
        *program_arguments(FROM_FILES),
        argument(
            "--call",
            action="append",
            default=[],
            metavar="[METHOD:]INPUT,…",
            help="a further call: its inputs between commas, each as for --input; of forward if there is not a method",
        ),
        *further,
    ]


def _export(options: argparse.Namespace) -> int:
    from torchmdla.packages.native import export_native

    output = Path(options.output or Path(options.file).with_suffix(".tmdla"))
    try:
        program = load_program(options.file, options.allow_pickle)
        info = export_native(program, _calls(options), output, options.target or ["native"])
    except Exception as error:  # Includes errors of the model.
        return report_failure(str(error).strip() if "\n" in str(error) else one_line(error))
    print(f"{output}: {size_text(output.stat().st_size)}, {size_text(info.weight_bytes)} of weights")
    print(f"try it: python -m torchmdla info {output}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from torchmdla.packages.native import check_native

    try:
        calls = _calls(options)
        refused = check_native(load_program(options.file, options.allow_pickle), calls)
    except Exception as error:  # Includes errors of the model.
        return report_failure(one_line(error))
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for method in calls:
        count = sum(item.method == method for item in refused)
        console.print(f"{method}: " + (f"{count_text(count, 'part')} cannot run" if count else "runs without PyTorch"))
    table = Table.grid(padding=(0, 2))
    for item in refused:
        table.add_row("", item.method, item.op, item.source or "unknown place", item.reason)
    if refused:
        console.print(table)
    return int(bool(refused))


def _calls(options: argparse.Namespace) -> dict[str, list[tuple[Any, ...]]]:
    """Return the calls of each method."""
    calls: dict[str, list[tuple[Any, ...]]] = {}
    if options.input or not options.call:
        calls["forward"] = [tuple(read_inputs(options.input))]
    for text in options.call:
        match = _METHOD.match(text)
        method, inputs = (match["method"], text[match.end() :]) if match else ("forward", text)
        calls.setdefault(method, []).append(tuple(read_inputs(inputs.split(",") if inputs else [])))
    return calls


EXPORT = Command(
    "export",
    "write a program to a file that the runtime without PyTorch runs",
    _export,
    _arguments(
        argument(
            "--target",
            action="append",
            default=[],
            metavar="NAME",
            help="native (default), x86-64-v2, x86-64-v3 or x86-64-v4; once for each",
        ),
        argument("-o", "--output", metavar="FILE", help="default: beside the program, as model.tmdla"),
    ),
    epilog="""\
examples:
  python -m torchmdla export model.pt --input 1x3x224x224
  python -m torchmdla export model.pt --input 1x3x224x224 --target x86-64-v3 --target x86-64-v4 -o model.tmdla
  python -m torchmdla export vad.pt --input 1x512 --input =16000 --call reset_states: -o vad.tmdla

The file has the methods that are called, the code for these calls, and the weights (docs/native.md).

exit status:
  0  the file is written
  2  the file is not written: the program cannot be read, or a part of it does not run without PyTorch
""",
)

CHECK = Command(
    "serve-check",
    "tell which parts of a program run without PyTorch, and which do not, with their lines",
    _check,
    _arguments(),
    epilog="""\
examples:
  python -m torchmdla serve-check model.pt --input 1x3x224x224
  python -m torchmdla serve-check vad.pt --input 1x512 --input =16000 --call reset_states:

exit status:
  0  all methods that are called run without PyTorch
  1  a part does not
  2  the program cannot be read, or fails
""",
)
