"""Command line of ``python -m torchmdla.testing.pytorch_tests``."""

from __future__ import annotations

import argparse
import json
import operator
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from torchmdla.support.limits import size
from torchmdla.testing.pytorch_tests.listed import reason
from torchmdla.testing.pytorch_tests.runs import DEVICE, Limits, NotImportedError, Result, run_tests, sample

DESCRIPTION = """\
Runs PyTorch's own tests of accelerators on the device acap, and reports how many of the tests that the CPU passes acap
passes.

FOLDER is the folder `test` of PyTorch's sources, best of the installed version. Its files that make tests for each type
of device are run: first all tests on the CPU, then those that pass on acap. They run in processes of their own, so that
a crash costs one test. Known failures are listed in torchmdla/testing/pytorch_tests/listed.py."""

EPILOG = """\
exit status:
  0  acap passes, or skips as PyTorch wants, every test that the CPU passes and that is not listed
  1  it does not, or a file cannot be imported
  2  the command line is wrong

examples:
  python -m torchmdla.testing.pytorch_tests pytorch/test --samples 2 --jobs 4 --json results.jsonl
  python -m torchmdla.testing.pytorch_tests pytorch/test --file test_view_ops.py --filter test_diagonal --verbose
"""

# Text of the files whose tests PyTorch makes for each device type.
_MARK = "instantiate_device_type_tests("

# Columns of the report behind the file's name. "skipped": acap skips the test, as PyTorch's marks of the test want. The
# percentages are of passed tests: among those that are not skipped, and among those that are not listed either.
_COLUMNS = ("tests", "CPU passes", "acap passes", "skipped", "listed", "failed", "%", "% of unlisted")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="python -m torchmdla.testing.pytorch_tests",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of tests")
    result.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="NAME",
        help="a file in it; by default all for devices",
    )
    result.add_argument(
        "--filter", action="append", default=[], metavar="TEXT", help="tests with TEXT in their name; any of several"
    )
    result.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="at most N tests of each operator, module and optimiser in a class, and of each other test function",
    )
    result.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), metavar="N", help="processes at a time"
    )
    result.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for one test; 300")
    result.add_argument("--memory", type=size, default=0, metavar="SIZE", help="for one process, as 6GiB; no limit")
    result.add_argument("--json", type=Path, metavar="FILE", help="write results here as they come, as JSON lines")
    result.add_argument("--resume", action="store_true", help="of --json: run the tests that FILE does not have")
    result.add_argument("--verbose", action="store_true", help="print the trace of each failure")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line. Return its exit status."""
    command_line = parser()
    options = command_line.parse_args(arguments)
    if options.resume and not options.json:
        command_line.error("--resume needs --json FILE")
    files = options.file or sorted(
        file.name for file in options.folder.glob("test_*.py") if _MARK in file.read_text(encoding="utf-8")
    )
    if not files:
        command_line.error(
            f"{options.folder} does not contain a file with tests that PyTorch makes for each type of device"
        )
    if missing := [name for name in files if not (options.folder / name).is_file()]:
        command_line.error(f"{options.folder} does not contain {missing[0]}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    results = _Results(options.json, options.resume)
    try:
        errors = _run(files, results, options, console)
    except KeyboardInterrupt:
        os._exit(130)  # The processes of tests end when their standard input is closed.
    return _report(files, results, errors, console)


class _Results:
    """Results by file, test and device; appended to a file of JSON lines if there is one."""

    def __init__(self, file: Path | None, resumed: bool) -> None:
        self._all: dict[tuple[str, str, str], Result] = {}
        self._lock = threading.Lock()
        if file is not None and resumed and file.exists():
            whole, _, torn = file.read_bytes().rpartition(b"\n")
            os.truncate(file, file.stat().st_size - len(torn))
            for line in whole.splitlines():
                self._keep(Result(**json.loads(line)))
        self._stream = None if file is None else file.open("a" if resumed else "w", encoding="utf-8")

    def _keep(self, result: Result) -> None:
        self._all[result.file, result.test, result.device] = result

    def add(self, result: Result) -> None:
        """Add a result, on any thread."""
        with self._lock:
            self._keep(result)
            if self._stream is not None:
                self._stream.write(json.dumps(asdict(result)) + "\n")
                self._stream.flush()

    def status(self, file: str, test: str, device: str) -> str:
        """Return the status of a test; empty if it did not run, or does not exist on the device."""
        result = self._all.get((file, test, device))
        return result.status if result else ""

    def of_file(self, file: str, device: str) -> list[Result]:
        """Return the results of a file on a device."""
        with self._lock:
            return [result for result in self._all.values() if (result.file, result.device) == (file, device)]


def _run(files: Sequence[str], results: _Results, options: argparse.Namespace, console: Console) -> list[str]:
    """Run the tests of all files. Return a message for each file that cannot be imported."""
    errors = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar_console = Console(file=sys.stderr)
    with (
        Progress(*columns, console=bar_console, transient=True) as progress,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        bar = progress.add_task("", total=0)

        def run_file(file: str) -> None:
            selected: list[str] = []

            def choose(tests: Mapping[str, str], device: str) -> list[str]:
                if device == "cpu":
                    names = sample(tests, options.samples)
                    selected.extend(name for name in names if _is_selected(name, options.filter))
                wanted = [name for name in selected if device == "cpu" or results.status(file, name, "cpu") == "ok"]
                left = [name for name in wanted if name in tests and not results.status(file, name, device)]
                progress.update(bar, total=(progress.tasks[0].total or 0) + len(left))
                return left

            limits = Limits(options.timeout, options.memory)
            for device in ("cpu", DEVICE):
                for result in run_tests(options.folder, file, device, partial(choose, device=device), limits):
                    results.add(result)
                    progress.update(bar, advance=1, description=file)
                    if options.verbose and result.trace and device == DEVICE:
                        console.print(f"{file}: {result.test}\n{result.trace}", markup=False, soft_wrap=True)

        runs = {pool.submit(run_file, file): file for file in files}
        for run in as_completed(runs):
            try:
                run.result()
            except NotImportedError as error:
                errors.append(f"{runs[run]} cannot be imported: {error}")
    return errors


def _is_selected(name: str, filters: Sequence[str]) -> bool:
    return not filters or any(text.lower() in name.lower() for text in filters)


@dataclass(frozen=True)
class _Score:
    """Counts of the tests of one file, or of all."""

    tests: int = 0
    cpu: int = 0
    passed: int = 0
    skipped: int = 0
    listed: int = 0
    failed: int = 0

    def __add__(self, other: _Score) -> _Score:
        return _Score(*map(operator.add, astuple(self), astuple(other)))

    def cells(self) -> list[str]:
        """Return the counts and the two percentages."""
        unlisted = self.passed + self.failed
        return [
            *map(str, astuple(self)),
            *(f"{100 * self.passed / run:.2f}" if run else "" for run in (unlisted + self.listed, unlisted)),
        ]


def _report(files: Sequence[str], results: _Results, errors: Sequence[str], console: Console) -> int:
    """Print the failures and a table of the files. Return the exit status."""
    failures = []
    table = Table(
        Column("file", no_wrap=True),
        *(Column(name, justify="right") for name in _COLUMNS),
        title="PyTorch's tests on acap",
    )
    total = _Score()
    for file in files:
        on_cpu, on_device = results.of_file(file, "cpu"), results.of_file(file, DEVICE)
        bad = [result for result in on_device if result.status not in ("ok", "skipped")]
        unlisted = [result for result in bad if not reason(result.test)]
        score = _Score(
            len(on_cpu),
            sum(result.status == "ok" for result in on_cpu),
            sum(result.status == "ok" for result in on_device),
            sum(result.status == "skipped" for result in on_device),
            len(bad) - len(unlisted),
            len(unlisted),
        )
        table.add_row(file, *score.cells())
        total += score
        failures += unlisted
    table.add_section()
    table.add_row("all", *total.cells())
    lines = [f"{result.status:<8} {result.file}: {result.test}: {result.detail}" for result in failures]
    for line in (*lines, *errors):
        console.print(f"! {line}", markup=False, soft_wrap=True)
    console.print(table)
    return int(bool(failures or errors))


if __name__ == "__main__":
    raise SystemExit(main())
