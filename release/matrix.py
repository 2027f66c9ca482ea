"""Build torchmdla for each supported PyTorch and each CPython of this machine, run tests, and write the table.

A combination that fails does not end the run. ``make matrix`` runs it with a core of the tests.

    make matrix                                       # each combination
    make matrix ARGS="--torch 2.15 --python 3.11"     # one of them
    make matrix ARGS="--keep"                         # keep the environments, 2 to 6 GB each
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import make_wheel
from environments import PYTHON_VERSIONS, ROOT, TORCH_VERSIONS, CommandError, Environment, interpreters

TABLE = ROOT / "docs" / "versions.md"

# Packages that the tests import beside those that torchmdla needs.
TEST_PACKAGES = ("cryptography", "expecttest", "hypothesis", "lark", "onnx", "pytest", "pytest-xdist")

# What the tests read of the checkout.
TEST_FILES = ("tests", "examples", "docs", "README.md", "pyproject.toml")

# Summary of pytest, as "2 failed, 1609 passed, 3 skipped, 12 warnings in 181.02s (0:03:01)".
SUMMARY = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """Row of the table: what became of one combination."""

    torch: str
    python: str
    installed: str = "–"
    build: str = "–"
    tests: str = "–"

    def text(self) -> str:
        return f"| {self.torch} | {self.python} | {self.installed} | {self.build} | {self.tests} |\n"


def main() -> int:
    options = parse_options()
    paths = interpreters()
    failed = False
    for torch in reversed(options.torch):
        for python in options.python:
            begin = time.monotonic()
            if python in paths:
                row = try_combination(Environment(paths[python], python, torch), options)
            else:
                row = Row(torch, python, "skipped: no such CPython on this machine")
            replace_row(row)
            failed |= "failed" in row.text()
            print(f"{row.text().strip()} {time.monotonic() - begin:.0f} s", flush=True)
    return int(failed)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", default=TORCH_VERSIONS, metavar="2.15", help="default: all supported")
    parser.add_argument("--python", nargs="+", default=PYTHON_VERSIONS, metavar="3.11", help="default: all supported")
    parser.add_argument("--jobs", default="2", help="processes that run tests at once; default: 2")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--tests", nargs="+", default=["tests/fusion"], help="tests to run; default: tests/fusion")
    return parser.parse_args()


def try_combination(environment: Environment, options: argparse.Namespace) -> Row:
    """Install, build and test; return the row. The first stage that fails is the last."""
    row = Row(environment.torch, environment.python_version)
    environment.log.unlink(missing_ok=True)
    try:
        report(environment, "installing PyTorch")
        try:
            environment.create()
            installed = environment.torch_version()
        except CommandError as error:
            return Row(row.torch, row.python, f"skipped: {error}")
        report(environment, f"building for torch {installed}")
        try:
            wheel = build_wheel(environment)
            environment.install(str(wheel), *TEST_PACKAGES)
        except CommandError as error:
            return Row(row.torch, row.python, installed, f"failed: {error}")
        report(environment, "running tests")
        return Row(row.torch, row.python, installed, "ok", run_tests(environment, options))
    finally:
        if not options.keep:
            environment.remove()


def build_wheel(environment: Environment) -> Path:
    """Return a wheel for this combination only."""
    stage = environment.folder / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    make_wheel.copy_sources(stage)
    make_wheel.build(environment.python, stage, environment.objects, environment.log)
    make_wheel.narrow_range(stage)
    return make_wheel.pack(environment.python, stage, environment.folder, environment.log)


def run_tests(environment: Environment, options: argparse.Namespace) -> str:
    """Run the tests on the installed wheel, in a folder without the package, and return their summary."""
    folder = environment.folder / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in TEST_FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    command = [str(environment.python), "-m", "pytest", "-q", "--rows", "sampled", "-n", options.jobs, *options.tests]
    try:
        output, problem = environment.run(*command, folder=folder), ""
    except CommandError as error:
        output, problem = environment.log.read_text(), f"failed: {error}"
    summaries = SUMMARY.findall(output)
    return ("failed: " if problem else "ok: ") + counts(summaries[-1]) if summaries else problem


def counts(summary: str) -> str:
    """Return a summary of pytest without its warnings and the tests that were not selected."""
    return ", ".join(part for part in summary.split(", ") if not part.endswith(("warnings", "warning", "deselected")))


def replace_row(row: Row) -> None:
    """Replace the row of the table that has the same combination."""
    pattern = re.compile(rf"^\| {re.escape(row.torch)} \| {re.escape(row.python)} \|.*\n", re.MULTILINE)
    text, count = pattern.subn(lambda _: row.text(), TABLE.read_text())
    if count != 1:
        raise SystemExit(f"{TABLE} cannot be written: it has {count} rows of torch {row.torch} and Python {row.python}")
    TABLE.write_text(text)


def report(environment: Environment, stage: str) -> None:
    name = f"torch {environment.torch}, Python {environment.python_version}"
    print(f"{time.strftime('%H:%M:%S')}  {name}: {stage} … ({environment.log.relative_to(ROOT)})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
