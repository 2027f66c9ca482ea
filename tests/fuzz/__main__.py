"""Command line of the fuzzer: ``make fuzz ARGS="…"``, or ``python -m fuzz`` in ``tests``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent

DESCRIPTION = """\
Draws programs at random, runs each at sizes chosen to break, and compares all that can be seen with eager PyTorch.
What is found is made small and written to tests/fuzz/found, where it is a test of the suite."""

EPILOG = """\
exit status:
  0  nothing was found
  1  something was
  2  the command line is wrong

examples:
  make fuzz ARGS="--minutes 60"
  make fuzz ARGS="--kind sizes --frontend torchscript:script --seed 1000 --count 200"
  make fuzz ARGS="--device mdla --options precision=float32 --frontend torchscript"
  make fuzz ARGS="--show sizes/torchscript:script/1017"
  make fuzz ARGS="--replay tests/fuzz/found/sizes_script_1017.py"
"""


def parser(kinds: dict[str, str], installed: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    lines = "\n".join(f"  {name:<10} {text}" for name, text in kinds.items())
    command_line = argparse.ArgumentParser(
        prog="make fuzz",
        description=DESCRIPTION,
        epilog=f"kinds:\n{lines}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command_line.add_argument(
        "--minutes", type=float, metavar="N", help="begin no program after N; 1, with --count any time"
    )
    command_line.add_argument("--count", type=int, metavar="N", help="so many programs")
    command_line.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed, the others follow; 0")
    command_line.add_argument(
        "--kind", default=",".join(installed), metavar="NAMES", help="kinds of programs between commas; all"
    )
    command_line.add_argument(
        "--frontend", "--road", default="", metavar="NAMES", help="frontends between commas; drawn, most TorchScript"
    )
    command_line.add_argument("--device", default="cpu", metavar="NAME", help="the device that groups are for; cpu")
    command_line.add_argument(
        "--options", default="", metavar="LIST", help="the device's own, NAME=VALUE between commas"
    )
    command_line.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time; 1")
    command_line.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="for one program; 120")
    command_line.add_argument("--out", type=Path, default=HERE / "found", metavar="FOLDER", help="for what is found")
    command_line.add_argument(
        "--as-drawn", action="store_true", help="write what is found as it was drawn, not made small"
    )
    command_line.add_argument("--show", metavar="NAME", help="print the program KIND/WAY/SEED and end")
    command_line.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="run programs of files and end")
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="torchmdla-fuzz-") as folder:
        # The user's cache is not read. The variables are set before torchmdla is imported. Processes that run programs
        # inherit them.
        os.environ.setdefault("TORCHMDLA_CACHE_DIR", folder)
        os.environ.setdefault("TORCHMDLA_VERIFY", "values")
        from fuzz.sources import INSTALLED, SOURCES, draw
        from torchmdla.testing.frontends import NotAvailableError, check_device, variant_names

        command_line = parser({name: source.help for name, source in SOURCES.items()}, INSTALLED)
        options = command_line.parse_args(arguments)
        kinds = options.kind.split(",")
        if unknown := set(kinds) - set(INSTALLED):
            command_line.error(f"no kind {', '.join(unknown)}, or it is not installed")
        if options.show:
            kind, way, seed = options.show.split("/")
            print(draw(kind, int(seed), way))
            return 0
        try:
            chosen = variant_names(options.frontend) if options.frontend else []
            check_device(options.device, options.options, chosen)
        except NotAvailableError as error:
            command_line.error(str(error))
        if options.replay:
            return _replay(options)
        return _hunt(options, kinds, chosen, Path(folder))


def _replay(options: argparse.Namespace) -> int:
    from fuzz.cases import job_of
    from fuzz.hunt import FAULTS
    from torchmdla.testing.runner import CheckedOutcome, run

    jobs = [job_of(path.resolve(), options.device, options.options) for path in options.replay]
    status = 0
    for event in run(jobs, options.jobs, options.timeout):
        if isinstance(event, CheckedOutcome):
            print(f"{event.outcome.status}: {event.outcome.program}: {event.outcome.detail}")
            status |= event.outcome.status in FAULTS
    return int(status)


def _hunt(options: argparse.Namespace, kinds: Sequence[str], variant_names: Sequence[str], folder: Path) -> int:
    from fuzz.hunt import Hunt, Options

    minutes = options.minutes or (None if options.count else 1)
    console = Console(file=sys.stderr, highlight=False)
    hunt = Hunt(
        Options(
            kinds=kinds,
            ways=variant_names,
            seed=options.seed,
            count=options.count,
            seconds=minutes and 60 * minutes,
            device=options.device,
            options=options.options,
            processes=options.jobs,
            timeout=options.timeout,
            folder=options.out,
            small=not options.as_drawn,
        ),
        folder,
        lambda line: console.print(line, markup=False, soft_wrap=True),
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    for number in (signal.SIGINT, signal.SIGTERM):  # Shells make background jobs ignore SIGINT.
        signal.signal(number, signal.default_int_handler)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=1.0)
            for part in hunt.run():
                counts = ", ".join(f"{count} {status}" for status, count in hunt.counts.most_common())
                progress.update(task, completed=part, description=f"{counts}; {len(hunt.findings)} written")
    except KeyboardInterrupt:
        console.print("interrupted")
    print(", ".join(f"{count} {status}" for status, count in hunt.counts.most_common()) or "nothing was run")
    for reason, count in hunt.reasons.most_common(10):
        print(f"  {count} fell back: {reason}"[:200])
    for path in hunt.findings:
        print(f"found: {path}")
    return int(bool(hunt.findings))


if __name__ == "__main__":
    raise SystemExit(main())
