"""Command ``python -m torchmdla opt``: run passes over an MLIR file, or over a loop program of the cpu device."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

from torchmdla.cli import Command, argument, report_failure
from torchmdla.errors import CompileError, unknown_name

# Matches the start of a loop program.
_LOOPS = re.compile(r"(\s|//.*)*(typical|varying|not_negative|buffer|pack|entry)\b")


def _run(options: argparse.Namespace) -> int:
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text()
        result = _optimise_loops(text, options) if _LOOPS.match(text) else _optimise_mlir(text, options)
        if options.path:
            Path(options.path).write_text(result)
        else:
            print(result, end="")
    except UnicodeDecodeError:
        return report_failure(
            f"{options.file} is not text: opt reads MLIR or a loop program, which the command mlir writes"
        )
    except (CompileError, OSError) as error:
        return report_failure(error)
    return 0


def _optimise_loops(text: str, options: argparse.Namespace) -> str:
    from torchmdla.devices import get
    from torchmdla.mlir.process import run_job

    return run_job(
        "opt-loops",
        "running passes",
        shows_output=True,
        text=text,
        passes=[name.strip() for name in [*options.pipeline.split(","), *options.flags] if name.strip()],
        print_after=["*"] if options.print_after_all else options.print_after,
        stop_after=options.stop_after,
        target=astuple(get("cpu").target()),
    )


def _optimise_mlir(text: str, options: argparse.Namespace) -> str:
    from torchmdla.mlir.process import run_job

    if not (options.pipeline or options.flags) or options.stop_after:
        raise CompileError("MLIR needs passes, as --canonicalize or --pipeline …; --stop-after is of loop programs")
    with tempfile.TemporaryFile() as dumps:
        try:
            return run_job(
                "opt",
                "running passes",
                shows_output=True,
                stderr=dumps if options.print_after and not options.print_after_all else None,
                text=text,
                file="standard input" if options.file == "-" else options.file,
                pipeline=options.pipeline,
                flags=options.flags,
                print_after_all=bool(options.print_after_all or options.print_after),
                locations=options.locations,
            )
        finally:
            dumps.seek(0)
            for dump in _select_dumps(dumps.read().decode(errors="replace"), options.print_after):
                print(dump, end="", file=sys.stderr, flush=True)


# MLIR's heading of a dump names the class of the pass and its argument. Depending on the version, it is "Canonicalizer:
# canonicalize" or "Canonicalizer (canonicalize)".
_HEADING = re.compile(r"^// -----// IR Dump After (?P<class>[^\s:]+)(?::? \(?(?P<argument>[\w.-]+)\)?)?", re.MULTILINE)


def _select_dumps(text: str, passes: Sequence[str]) -> Iterator[str]:
    """Yield the text before the first dump, and the dumps after ``passes``."""
    headings = list(_HEADING.finditer(text))
    yield text[: headings[0].start()] if headings else text
    ran = [heading["argument"] or heading["class"] for heading in headings]
    known = {name for heading in headings for name in (heading["class"], heading["argument"])}
    for name in passes:
        if ran and name not in known:
            raise CompileError(f"--print-after: {unknown_name('pass', name, dict.fromkeys(ran))}")
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading, end in zip(headings, ends, strict=False):
        if heading["class"] in passes or heading["argument"] in passes:
            yield text[heading.start() : end]


COMMAND = Command(
    "opt",
    "run passes over MLIR",
    _run,
    [
        argument("file", nargs="?", default="-", help="MLIR, or a loop program (default: standard input)"),
        argument("--pipeline", default="", metavar="PASSES", help="as 'canonicalize,func.func(cse)'"),
        argument("-o", dest="path", metavar="FILE", help="where to write the result (default: standard output)"),
        argument("--stop-after", default="", metavar="PASS", help="of a loop program: the last pass to run"),
        argument("--print-after-all", action="store_true", help="print the module after every pass, on stderr"),
        argument(
            "--print-after",
            action="append",
            default=[],
            metavar="PASS",
            help="print it after this pass; may be repeated",
        ),
        argument("--locations", action="store_true", help="keep locations in the result"),
    ],
    epilog="""\
examples:
  python -m torchmdla opt model.mlir --pipeline 'canonicalize,func.func(cse)'
  python -m torchmdla opt model.mlir --canonicalize --cse
  python -m torchmdla opt model.mlir --pipeline torch-backend-to-linalg-on-tensors-backend-pipeline --print-after-all
  python -m torchmdla mlir model.pt --input 1x128 --output aten | python -m torchmdla opt \\
      --pipeline 'aten-layer-name,aten-op-report{format=table}' -o /dev/null

  python -m torchmdla mlir model.pt --input 8x64 --output loops | python -m torchmdla opt --stop-after merge-epilogues

A pipeline is written as MLIR does, builtin.module(…) around it may be left out. Passes are those of MLIR, torch-mlir
and the aten dialect (docs/aten.md). Each is a flag, too, as of mlir-opt: --NAME or --NAME='option=value'; they run in
their order, after --pipeline, on functions where they are made for these.

A loop program (docs/debugging.md: what "mlir --output loops" and TORCHMDLA_DUMP write) goes through the passes of the
cpu device, for this machine: those that --pipeline lists between commas, or all of them in order.
""",
    takes_flags=True,
)
