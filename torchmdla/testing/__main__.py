"""Command line of ``python -m torchmdla.testing``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchmdla import devices
from torchmdla.support.limits import size
from torchmdla.testing import opinfo, programs, samples
from torchmdla.testing.baseline import Baseline, read_baseline, write_baseline
from torchmdla.testing.checking import STATUSES
from torchmdla.testing.device_use import declared_operators
from torchmdla.testing.frontends import AUTOMATIC, FRONTENDS, NotAvailableError, check_device, variant_names
from torchmdla.testing.record import Comparison, Record, compare_runs, write_table
from torchmdla.testing.reporting import print_changes, print_tables, write_page
from torchmdla.testing.runner import CheckedOutcome, Job, run
from torchmdla.testing.samples import operator_of
from torchmdla.testing.score import DEFINITION, score_of

DESCRIPTION = f"""\
Runs programs on a device and compares all that can be seen of them with eager PyTorch: values, dtypes, sizes, strides,
sharing of memory, inputs and buffers afterwards, gradients, steps of training. Each runs in one of several processes,
so that a crash costs one program.

Programs are samples of the device's operators and the programs of torchmdla itself, with --programs those of another
module, or with --opinfo the samples of PyTorch's operator database. What is known to fail is listed by name in
torchmdla/testing/expected.py; a listed program that passes is an error, too.

{DEFINITION}"""

_FRONTEND_LINES = [f"  {name:<12} {frontend.help}" for name, frontend in FRONTENDS.items()]
_VARIANTS = [f"{name}:{variant}" for name, frontend in FRONTENDS.items() for variant in frontend.variants]

EPILOG = f"""\
frontends:
{chr(10).join(_FRONTEND_LINES)}
  {AUTOMATIC:<12} for each program the first variant that runs a part of it on the device
  One variant of a frontend by a colon: {", ".join(_VARIANTS)}.

what a program ends as:
{chr(10).join(f"  {status:<13} {meaning}" for status, meaning in STATUSES.items())}

exit status:
  0  every program ended as it should, and none regressed since --baseline
  1  some did not, or regressed
  2  the command line is wrong, or a frontend or device is not there

examples:
  python -m torchmdla.testing --device acme.npu:Npu --quick
  python -m torchmdla.testing --device acme.npu:Npu --html score.html --json score.jsonl
  python -m torchmdla.testing --device acme.npu:Npu --baseline score.json --update-baseline
  python -m torchmdla.testing --frontend torchscript --filter conv --verbose
  python -m torchmdla.testing --frontend dynamo,export --jobs 4 --json results.jsonl --resume
  python -m torchmdla.testing --device mdla --options precision=fixed8,clusters=2 --filter conv
  python -m torchmdla.testing --opinfo --dtype float32,int64 --filter nn.functional --samples 10
  python -m torchmdla.testing --programs packages_of_others.models --memory 6GiB --table docs/packages_of_others.md
  python -m torchmdla.testing --compare before.jsonl after.jsonl
"""


# Seconds between two lines about the progress where standard error is not a terminal.
_LINE_SECONDS = 60


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
        "--frontend", "--road", default=AUTOMATIC, metavar="NAMES", help=f"frontends between commas; {AUTOMATIC}"
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
    result.add_argument(
        "--quick", action="store_true", help="run one sample of each operator of the device, and no other programs"
    )
    result.add_argument("--opinfo", action="store_true", help="run PyTorch's operator database instead")
    result.add_argument(
        "--programs",
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
        help="at most N samples of each operator of the device; of --opinfo, of each operator and dtype, evenly spread",
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
        "--json",
        type=_new_file,
        metavar="FILE",
        help="write outcomes here as they come, as JSON lines; the last is a summary",
    )
    result.add_argument("--html", type=_new_file, metavar="FILE", help="write the score and all outcomes as a page")
    result.add_argument(
        "--baseline",
        type=_new_file,
        metavar="FILE",
        help="list the programs that were right on the device by FILE and are not",
    )
    result.add_argument(
        "--update-baseline", action="store_true", help="of --baseline: write this run to FILE; regressions are accepted"
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
    if problem := _contradiction(options):
        command_line.error(problem)
    try:
        if options.compare:
            return _compare(compare_runs(*options.compare))
        ways = variant_names(options.frontend)
        check_device(options.device, options.options, ways)
        names = _names(options)
        if options.list:
            print("\n".join(name for _, name in names))
            return 0
        baseline = _baseline(options)
        record = Record(options.json, options.resume)
    except (NotAvailableError, OSError, ValueError) as error:
        command_line.error(str(error))
    limit = 1 if options.quick else options.samples
    jobs = [
        Job(source, name, way, options.device, options.seed, limit, options=options.options)
        for way in ways
        for source, name in names
    ]
    with record:
        console = Console(highlight=False)
        _run(record.unfinished(jobs), record, options, console)
        return _finish(record, options, [operator_of(name) for _, name in names], baseline, console)


def _contradiction(options: argparse.Namespace) -> str:
    """Return why the options do not fit together; empty if they do."""
    if options.resume and not options.json:
        return "--resume needs --json FILE"
    if options.update_baseline and not options.baseline:
        return "--update-baseline needs --baseline FILE"
    if options.quick and (options.opinfo or options.programs):
        return "--quick runs samples of the device's operators: leave --opinfo and --programs out"
    return ""


def _baseline(options: argparse.Namespace) -> Baseline:
    """Return the baseline to compare with; an empty one if the file is to be written first.

    Raises:
        OSError: the file cannot be read.
        ValueError: it belongs to another command line.
    """
    empty = Baseline(devices.get(options.device).name, options.options, options.frontend)
    if not options.baseline or (options.update_baseline and not options.baseline.exists()):
        return empty
    return read_baseline(options.baseline, empty)


def _names(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the programs to run: the module that makes them, and their names.

    Raises:
        NotAvailableError: no program is selected, or a module, a dtype or a form is not available.
    """
    if options.opinfo:
        sources = {opinfo.__name__: opinfo.names(options.dtype.split(","), options.forms.split(","))}
    elif options.programs:
        sources = {options.programs: list(_module_of(options.programs).PROGRAMS)}
    else:
        sources = {samples.__name__: samples.names(devices.get(options.device))}
        if not options.quick:
            # The samples have the calls of the family "operators", too, in the device's dtypes.
            rest = [name for name, program in programs.PROGRAMS.items() if program.family != "operators"]
            sources[programs.__name__] = rest
    selected = [
        (source, name)
        for source, names in sources.items()
        for name in names
        if _is_selected(name, options.filter, options.skip)
    ]
    if not selected:
        raise NotAvailableError("no program has such a name; --list shows all")
    return selected


def _finish(
    record: Record, options: argparse.Namespace, sampled: Sequence[str], baseline: Baseline, console: Console
) -> int:
    """Report the outcomes. Return the exit status."""
    results = record.results()
    outcomes = [result.outcome for result in results]
    device = devices.get(options.device)
    score = score_of(device.name, filter(None, sampled), outcomes)
    record.add_summary(
        {"device": device.name, "options": options.options, "frontend": options.frontend, **score.to_dict()}
    )
    print_tables(results, score, console)
    changes = None
    if options.baseline and options.baseline.exists():
        changes = baseline.compare(outcomes, declared_operators(device))
        print_changes(changes, console)
    if options.html:
        write_page(results, score, changes, options.html)
    if options.table:
        write_table(results, options.table)
    if options.update_baseline:
        write_baseline(baseline.with_run(outcomes), options.baseline)
    if score.samples:
        console.print(str(score), style="bold", markup=False, soft_wrap=True)
    has_regressed = changes is not None and changes.regressions and not options.update_baseline
    return 1 if has_regressed or not all(result.expected for result in results) else 0


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
    # Print the progress bar to standard error, so that standard output can be piped. A log gets lines in its place.
    bar_console = Console(file=sys.stderr)
    start = line_time = monotonic()
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
            if not bar_console.is_terminal and monotonic() - line_time > _LINE_SECONDS:
                line_time = monotonic()
                done = progress.tasks[task].completed
                print(f"{done:.0f} of {len(jobs)} jobs after {line_time - start:.0f} s", file=sys.stderr)


def _line(result: CheckedOutcome) -> str:
    outcome = result.outcome
    mark = "  " if result.expected else "! "
    described = [f"{mark}{outcome.status:<12} {outcome.program} on {outcome.way}", f"{outcome.seconds:.2f} s"]
    described.append(f"{outcome.groups} groups, {outcome.specialisations} compiled, {outcome.compiled_calls} calls")
    left_out = [
        f"{op}: {reason}" for op, reason in outcome.operators.items() if reason and reason not in outcome.detail
    ]
    described += [text for text in (outcome.detail, *left_out, result.reason) if text]
    return ": ".join([described[0], ", ".join(described[1:3]), *described[3:]])


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
