"""``python -m torchmdla explain``: what torchmdla makes of a program in a file."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchmdla.cli import failed
from torchmdla.cli.files import add_program_arguments, check_inputs, load_program

EPILOG = """\
examples:
  python -m torchmdla explain model.pt --input 1x3x224x224
  python -m torchmdla explain bert.pt --input 1x128:int64 --input 1x128:int64 --compare
  python -m torchmdla explain exported.pt2 --json > report.json      an exported program has its inputs
  python -m torchmdla explain model.pt --input 1x3x224x224 --save report.html

Inputs are normal random numbers; integers, which may be indices, are 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_program_arguments(parser)
    parser.add_argument("--compare", action="store_true", help="compare every operator's result with eager's")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--save", metavar="FILE", help="write a page with graph, kernels, roofline and timeline, too")


def run(options: argparse.Namespace) -> int:
    """Prints the report; the exit status."""
    # PyTorch's profiler says on the standard error stream when it starts and stops, unless this is set before it does.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    from torchmdla.explaining import explain

    try:
        inputs = [_input(text) for text in options.input]
        program = _program(options, inputs)
        report = replace(explain(program, *inputs, compare=options.compare), model=Path(options.file).name)
        if options.save:
            report.save(options.save)
    except Exception as error:  # The model's own, too.
        return failed(_line(error))
    print(report.to_json(indent=2) if options.json else report)
    return 0


def _input(text: str) -> Any:
    import torch

    from torchmdla.mlir import TensorSpec

    spec = TensorSpec.parse(text)
    if None in spec.shape:
        raise ValueError(f"{text!r}: a call has known sizes; write a number in place of ?")
    example = spec.example()
    return torch.randn_like(example) if spec.dtype.is_floating_point or spec.dtype.is_complex else example


def _program(options: argparse.Namespace, inputs: list[Any]) -> Any:
    program = load_program(options.file, options.allow_pickle)
    check_inputs(program, inputs)
    return program


def _line(error: Exception) -> str:
    """What happened, in one line. A script's error ends with it, after the script's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_script = lines and lines[0].startswith("The following operation failed in the TorchScript interpreter")
    return (lines[-1] if is_script else lines[0]) if lines else type(error).__name__
