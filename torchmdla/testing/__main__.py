"""Command line of ``python -m torchmdla.testing``."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from torchmdla.support.limits import size
from torchmdla.testing import opinfo, programs
from torchmdla.testing.checking import STATUSES
from torchmdla.testing.frontends import FRONTENDS, NotAvailableError, check_device, variant_names
from torchmdla.testing.record import Comparison, Record, compare_runs, write_table
from torchmdla.testing.runner import CheckedOutcome, Job, run

DESCRIPTION = """\
Runs programs on a frontend and a device and compares all that can be seen of them with eager PyTorch: values, dtypes,
sizes, strides, sharing of memory, inputs and buffers afterwards, gradients, steps of training. Each runs in one of
several processes, so that a crash costs one program.

Programs are those of torchmdla itself, with --programs those of another module, or with --opinfo the samples of
PyTorch's operator database. What is known to fail is listed by name in torchmdla/testing/expected.py; a listed program
that passes is an error, too."""

_FRONTEND_LINES = [f"  {name:<12} {frontend.help}" for name, frontend in FRONTENDS.items()]
_VARIANTS = [f"{name}:{variant}" for name, frontend in FRONTENDS.items() for variant in frontend.variants]

EPILOG = f"""\
frontends:
{chr(10).join(_FRONTEND_LINES)}
  One variant of a frontend by a colon: {", ".join(_VARIANTS)}.

what a program ends as:
{chr(10).join(f"  {status:<13} {meaning}" for status, meaning in STATUSES.items())}

exit status:
  0  every program ended as it should
  1  some did not
  2  the command line is wrong, or a frontend or device is not there

examples:
  python -m torchmdla.testing --frontend torchscript --filter conv --verbose
  python -m torchmdla.testing --frontend dynamo,export --jobs 4 --json results.jsonl --resume
  python -m torchmdla.testing --device mdla --options precision=fixed8,clusters=2 --filter conv
  python -m torchmdla.testing --opinfo --dtype float32,int64 --filter nn.functional --samples 10
  python -m torchmdla.testing --programs packages_of_others.models --memory 6GiB --table docs/packages_of_others.md
  python -m torchmdla.testing --compare before.jsonl after.jsonl
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="python -m torchmdla.testing",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument(
        "--frontend", "--road", default="torchscript", metavar="NAMES", help="frontends between commas; torchscript"
    )
    result.add_argument("--device", default="cpu", metavar="NAME", help="the device that groups are for; cpu")
    result.add_argument(
        "--options", default="", metavar="LIST", help="the device's own, NAME=VALUE between commas, as for enable()"
    )
    result.add_argument(
        "--filter", action="append", default=[], metavar="TEXT", help="programs with TEXT in their name; any of several"
    )
    result.add_argument("--skip", action="append", default=[], metavar="TEXT", help="no program with TEXT in its name")
    result.add_argument("--list", action="store_true", help="list the programs, run nothing")
    result.add_argument("--opinfo", action="store_true", help="run PyTorch's operator database instead")
    result.add_argument(
        "--programs",
        default=programs.__name__,
        metavar="MODULE",
        help="run those of a module instead: it has PROGRAMS, by name, and programs(name, seed, limit) like "
        f"{programs.__name__}",
    )
    result.add_argument(
        "--dtype",
        default=",".join(opinfo.DTYPES),
        metavar="NAMES",
        help=f"of --opinfo: dtypes between commas; {','.join(opinfo.DTYPES)}",
    )
    result.add_argument(
        "--forms",
        default="plain",
        metavar="NAMES",
        help=f"of --opinfo: how operators are called, between commas, of {','.join(opinfo.FORMS)}; plain",
    )
    result.add_argument(
        "--samples",
        type=_positive,
        metavar="N",
        help="of --opinfo: at most N of each operator and dtype, evenly spread",
    )
    result.add_argument(
        "--jobs", type=_positive, default=max(1, (os.cpu_count() or 2) // 2), metavar="N", help="processes at a time"
    )
    result.add_argument("--seed", type=int, default=0, metavar="N", help="for inputs and weights; 0")
    result.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for one program; 300")
    result.add_argument(
        "--memory", type=size, default=0, metavar="SIZE", help="for one process, as 6GiB; no limit by default"
    )
    result.add_argument(
        "--table", type=Path, metavar="FILE", help="write what programs end as behind the heading Results of a page"
    )
    result.add_argument(
        "--json", type=_new_file, metavar="FILE", help="write outcomes here as they come, as JSON lines"
    )
    result.add_argument("--resume", action="store_true", help="of --json: run what FILE does not hold yet")
    result.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("OLD", "NEW"),
        help="run nothing; list the programs that differ in code or outcome between two files of --json",
    )
    result.add_argument("--verbose", action="store_true", help="a line for every program, fallbacks with their reasons")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line. Return its exit status."""
    command_line = parser()
    options = command_line.parse_args(arguments)
    if options.resume and not options.json:
        command_line.error("--resume needs --json FILE")
    if options.compare:
        try:
            return _compare(compare_runs(*options.compare))
        except (OSError, ValueError) as error:
            command_line.error(str(error))
    try:
        chosen = variant_names(options.frontend)
        check_device(options.device, options.options, chosen)
        names = _names(options)
    except NotAvailableError as error:
        command_line.error(str(error))
    if not names:
        command_line.error("no program has such a name; --list shows all")
    if options.list:
        print("\n".join(names))
        return 0
    source = opinfo.__name__ if options.opinfo else options.programs
    jobs = [
        Job(source, name, way, options.device, options.seed, options.samples, options=options.options)
        for way in chosen
        for name in names
    ]
    console = Console(highlight=False)
    try:
        record = Record(options.json, options.resume)
    except ValueError as error:
        command_line.error(str(error))
    with record:
        _run(record.unfinished(jobs), record, options, console)
    results = record.results()
    _report(results, console)
    if options.table:
        write_table(results, options.table)
    return 0 if all(result.expected for result in results) else 1


def _names(options: argparse.Namespace) -> list[str]:
    """Return the names of the programs to run."""
    if options.opinfo:
        candidates = opinfo.names(options.dtype.split(","), options.forms.split(","))
    else:
        candidates = _module_of(options.programs).PROGRAMS
    return [name for name in candidates if _is_selected(name, options.filter, options.skip)]


def _module_of(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NotAvailableError(f"--programs {name} cannot be imported: {error}") from None


def _compare(comparison: Comparison) -> int:
    print(f"{len(comparison.same)} programs with the same code")
    for what, names in (
        ("other code", comparison.code),
        ("ends otherwise", comparison.status),
        ("of one run", comparison.only_one),
    ):
        for name in names:
            print(f"{what}: {name}")
    return int(bool(comparison.code or comparison.status))


def _is_selected(name: str, filters: Sequence[str], skipped: Sequence[str]) -> bool:
    """Return whether the filters select ``name``. The comparison ignores case."""

    def is_named(texts: Sequence[str]) -> bool:
        return any(text.lower() in name.lower() for text in texts)

    return (not filters or is_named(filters)) and not is_named(skipped)


def _run(jobs: Sequence[Job], record: Record, options: argparse.Namespace, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # Print the progress bar to standard error, so that standard output can be piped.
    bar_console = Console(file=sys.stderr)
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=bar_console, transient=True
    ) as progress:
        task = progress.add_task("", total=len(jobs))
        for event in run(jobs, options.jobs, options.timeout, options.memory):
            record.add(event)
            if isinstance(event, CheckedOutcome):
                if options.verbose or not event.expected:
                    console.print(_line(event), markup=False, soft_wrap=True)
            else:
                progress.update(task, advance=1, description=event.name)


def _line(result: CheckedOutcome) -> str:
    outcome = result.outcome
    mark = "  " if result.expected else "! "
    described = [f"{mark}{outcome.status:<12} {outcome.program} on {outcome.way}", f"{outcome.seconds:.2f} s"]
    described.append(f"{outcome.groups} groups, {outcome.specialisations} compiled")
    described += [text for text in (outcome.detail, result.reason) if text]
    return ": ".join([described[0], ", ".join(described[1:3]), *described[3:]])


def _report(results: Sequence[CheckedOutcome], console: Console) -> None:
    table = Table(title="programs by what they ended as", show_footer=True)
    table.add_column("way", footer="all")
    counts = {way: Counter(r.outcome.status for r in results if r.outcome.way == way) for way in _variants_of(results)}
    total = Counter(result.outcome.status for result in results)
    seen = [status for status in STATUSES if total[status]]
    for status in seen:
        table.add_column(status, str(total[status]), justify="right")
    table.add_column("unexpected", str(sum(not r.expected for r in results)), justify="right", style="bold")
    table.add_column("with groups", str(sum(r.outcome.groups > 0 for r in results)), justify="right")
    for way, count in counts.items():
        mine = [r for r in results if r.outcome.way == way]
        numbers = [count[status] for status in seen]
        numbers += [sum(not r.expected for r in mine), sum(r.outcome.groups > 0 for r in mine)]
        table.add_row(way, *map(str, numbers))
    console.print(table)
    reasons = Counter(reason for result in results for reason in result.outcome.fallbacks)
    if reasons:
        shown = Table(title="programs that fell back, by reason")
        shown.add_column("programs", justify="right")
        shown.add_column("reason", overflow="fold")
        for reason, programs in reasons.most_common(20):
            shown.add_row(str(programs), reason)
        console.print(shown, markup=False)


def _variants_of(results: Sequence[CheckedOutcome]) -> list[str]:
    return list(dict.fromkeys(result.outcome.way for result in results))


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: not a number of at least 1")
    return int(text)


def _new_file(text: str) -> Path:
    file = Path(text)
    if not file.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: no such folder")
    return file


if __name__ == "__main__":
    raise SystemExit(main())
