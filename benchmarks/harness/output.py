"""Options, progress, JSON and tables that all benchmarks share."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

# The mean number of runnable processes on the machine in the last minute, before this one started.
LOAD = os.getloadavg()[0]
_QUIET = 0.5


def parser(documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser described by a module's docstring, with ``--quick`` and ``--json``."""
    result = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    result.add_argument("--quick", action="store_true", help="the smallest settings: shows that all works, no more")
    result.add_argument("--json", type=new_file, metavar="FILE", help="write the results here")
    return result


def fill_in(options: argparse.Namespace, defaults: Mapping[bool, Mapping[str, Any]]) -> None:
    """Set the options that are not given to the ``defaults`` for ``--quick`` or for its absence."""
    for name, value in defaults[options.quick].items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def new_file(text: str) -> Path:
    """Parse an option that names a file to write. Raise now if its folder is missing, not after the work."""
    file = Path(text)
    if not file.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: no such folder")
    return file


def number(text: str) -> int:
    """Parse one positive integer."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: not a number of at least 1")
    return int(text)


def numbers(text: str) -> list[int]:
    """Parse positive integers that are separated by commas: ``1,2``."""
    return [number(part) for part in text.split(",")]


def positive(text: str) -> float:
    """Parse one number above 0, such as seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: not a number above 0")
    return value


def one_of(known: Iterable[str]) -> Any:
    """Return a parser of names that are separated by commas, each of ``known``."""

    def names(text: str) -> list[str]:
        parts = text.split(",")
        unknown = sorted(set(parts) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return parts

    return names


def progress(total: int, unit: str) -> tqdm[Any]:
    """Return a progress bar on standard error. Print a warning first if the machine is busy.

    ``set_postfix_str`` shows the current step.
    """
    if LOAD > _QUIET:
        print(f"other processes are busy (load {LOAD:.1f}): times on several threads mean little", file=sys.stderr)
    return tqdm(total=total, unit=unit, file=sys.stderr, dynamic_ncols=True)


def environment() -> dict[str, str]:
    """Return the facts that results depend on: the processor, versions, the target."""
    from torchmdla.report.environment import environment as facts

    return {"processor": processor(), "load at the start": f"{LOAD:.2f}", **facts()}


def processor() -> str:
    """Return the name of the processor, as precise as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def write_json(file: Path | None, results: Mapping[str, Any]) -> None:
    """Write ``results`` and the environment if ``file`` is given. Numbers that are not finite become null."""
    if file is not None:
        content = {"environment": environment(), **results}
        file.write_text(json.dumps(_plain(content), indent=1, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(title: str, columns: Sequence[str], caption: str | None = None) -> Table:
    """Return a table whose first column is text and whose other columns are numbers."""
    result = Table(title=title, caption=caption)
    for index, column in enumerate(columns):
        result.add_column(column, justify="right" if index else "left")
    return result


def show(*items: Any, width: int = 150) -> None:
    """Print tables and lines. ``width`` applies if the output is not a terminal."""
    console = Console(width=None if sys.stdout.isatty() else width, highlight=False)
    for item in items:
        console.print(item, markup=not isinstance(item, str))


def pair(times: Mapping[str, float] | None) -> str:
    """Return ``least / median`` of milliseconds, to three digits; a dash for None."""
    return "–" if times is None else f"{digits(times['min'])} / {digits(times['median'])}"


def digits(value: float) -> str:
    """Return three significant digits, without powers of ten."""
    decimals = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:.{max(0, decimals)}f}"


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; NaN for no values."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
