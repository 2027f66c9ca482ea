"""Command ``python -m torchmdla explain``: report how torchmdla compiles a program in a file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from torchmdla.cli import Command, argument, one_line, report_failure
from torchmdla.cli.files import check_inputs, load_program, program_arguments
from torchmdla.cli.inputs import FROM_FILES, read_inputs


def _run(options: argparse.Namespace) -> int:
    from torchmdla.explaining import explain

    try:
        inputs = read_inputs(options.input)
        program = load_program(options.file, options.allow_pickle)
        check_inputs(program, inputs)
        report = replace(explain(program, *inputs, compare=options.compare), model=Path(options.file).name)
        if options.save:
            report.save(options.save)
    except Exception as error:  # Includes errors of the model.
        return report_failure(one_line(error))
    print(report.to_json(indent=2) if options.json else report)
    return 0


COMMAND = Command(
    "explain",
    "report what runs compiled, how fast, and why the rest does not",
    _run,
    [
        *program_arguments(FROM_FILES),
        argument("--compare", action="store_true", help="compare every operator's result with eager's"),
        argument("--json", action="store_true", help="print one JSON object instead of tables"),
        argument("--save", metavar="FILE", help="write a page with graph, kernels, roofline and timeline, too"),
    ],
    epilog="""\
examples:
  python -m torchmdla explain model.pt --input 1x3x224x224
  python -m torchmdla explain bert.pt --input 1x128:int64 --input 1x128:int64 --compare
  python -m torchmdla explain exported.pt2 --json > report.json      an exported program has its inputs
  python -m torchmdla explain model.pt --input 1x3x224x224 --save report.html

Inputs are normal random numbers; integers, which may be indices, are 0.
""",
)
