"""Command ``python -m torchmdla legalise``: the operations that a device must lower for its ATen operators."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchmdla import devices
from torchmdla.cli import Command, argument, one_line, report_failure
from torchmdla.cli.inputs import use_device
from torchmdla.devices.levels import LEVELS
from torchmdla.testing.legalisation import Legalised, legalise_device, legalise_op, write_table


def _run(options: argparse.Namespace) -> int:
    ops = [op if "::" in op else f"aten::{op}" for op in options.ops]
    if options.device is None and options.table is None and not ops:
        options.parser.error("name operators, or a device with --device")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Samples of deprecated operators.
            if options.table is not None:
                write_table(options.table)
                return 0
            if options.device is None:
                return _print(legalise_op(op, options.level) for op in ops)
            use_device(options)
            return _print(legalise_device(devices.get(options.device), ops))
    except (TypeError, ValueError) as error:
        return report_failure(one_line(error))


def _print(results: Iterable[Legalised]) -> int:
    """Print what becomes of each operator, and return 1 if some samples do not compile."""
    operations: set[str] = set()
    is_complete = True
    for result in results:
        operations |= result.operations
        is_complete &= not result.refused
        for line in _lines(result):
            print(line, flush=True)
    print(f"\n{len(operations)} operations: {' '.join(sorted(operations))}")
    return 0 if is_complete else 1


def _lines(result: Legalised) -> Iterator[str]:
    always, sometimes = " ".join(sorted(result.always)), " ".join(sorted(result.sometimes))
    yield f"{result.op}: {' '.join(filter(None, [always, sometimes and f'({sometimes})']))}"
    for reason, count in sorted(result.refused.items()):
        yield f"    {count} of {result.samples} samples do not compile: {reason}"


COMMAND = Command(
    "legalise",
    "list the operations that a device must lower for its operators, and the samples that it does not compile",
    _run,
    [
        argument("ops", nargs="*", metavar="OP", help="operators by schema name with overload: add.Tensor, aten::mm"),
        argument("--device", metavar="NAME", help="a device: its operators, level, layouts and compiler"),
        argument(
            "--options", default="", metavar="LIST", help="the device's own, NAME=VALUE between commas, as for enable()"
        ),
        argument("--level", default="torch", choices=LEVELS, help="the level without a device (default: torch)"),
        argument(
            "--table",
            type=Path,
            metavar="FILE",
            help="write what operators become below the heading Operators of a page",
        ),
    ],
    epilog="""\
Operations in parentheses occur in some programs only.

examples:
  python -m torchmdla legalise linear addmm mul.Tensor
  python -m torchmdla legalise conv2d --level tosa
  python -m torchmdla legalise --device acme.npu:Npu

exit status:
  0  all samples compile
  1  the device does not compile some samples of its operators
  2  the command line is wrong
""",
)
