"""Command ``python -m torchmdla bench``: time a program in a file, run by PyTorch and by torchmdla."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from torchmdla import api, stats
from torchmdla.cli import Command, argument, one_line, report_failure
from torchmdla.cli.files import FileError, program_arguments, read_mlir
from torchmdla.cli.inputs import DEVICE_ARGUMENTS, FROM_FILES, number, numbers, read_inputs, use_device
from torchmdla.cli.programs import Call, Reference, Subject, warm_up
from torchmdla.report.environment import environment
from torchmdla.testing import timing

OURS = "torchmdla"
_OTHERS = ("eager", "frozen")


class _WrongResult(Exception):
    """Error: a result differs from eager's."""


@dataclass(frozen=True)
class _Row:
    """Times of the program in one configuration.

    Attributes:
        threads: threads of each operator.
        batch: the batch size; None if the inputs have their given sizes.
        instances: number of threads that call at once.
        compile_seconds: seconds in the compiler before the measurement.
        seconds: seconds of one call in each round, by variant.
    """

    threads: int
    batch: int | None
    instances: int
    compile_seconds: float
    seconds: Mapping[str, Sequence[float]]

    def minimum(self, variant: str) -> float:
        return min(self.seconds[variant])

    def median(self, variant: str) -> float:
        return statistics.median(self.seconds[variant])

    def calls_per_second(self, variant: str) -> float:
        """Return the calls per second of all instances together, by the median."""
        return self.instances / self.median(variant)

    def gain(self, variant: str) -> float | None:
        """Return the speedup of torchmdla over ``variant``, by the minimum; None if it was not measured."""
        return self.minimum(variant) / self.minimum(OURS) if variant in self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        variants = {
            variant: {
                "min": self.minimum(variant) * 1e3,
                "median": self.median(variant) * 1e3,
                "calls_per_second": self.calls_per_second(variant),
            }
            for variant in self.seconds
        }
        gains = {variant: self.gain(variant) for variant in _OTHERS}
        sizes = {"threads": self.threads, "batch": self.batch, "instances": self.instances}
        return {**sizes, "compile_seconds": self.compile_seconds, "ms": variants, "gain": gains}


def _run(options: argparse.Namespace) -> int:
    try:
        if read_mlir(options.file) is not None:
            raise FileError("bench compares with PyTorch, which runs no MLIR: python -m torchmdla run times a module")
        use_device(options)
        torch.manual_seed(options.seed)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = list(_rows(options))
    except _WrongResult as difference:
        print(f"error: {difference}", file=sys.stderr)
        return 1
    except Exception as error:  # Includes errors of the model.
        return report_failure(one_line(error))
    (_print_json if options.json else _print)(rows, options)
    return 0


def _rows(options: argparse.Namespace) -> Iterator[_Row]:
    program = Subject.of(options.file, options.allow_pickle, read_inputs(options.input), options.seed)
    batches = options.batches or [None]
    threads = options.threads or [torch.get_num_threads()]
    total = len(batches) * len(threads) * len(options.instances) * options.rounds
    # Disabled if standard error is not a terminal.
    with tqdm(total=total, unit="round", file=sys.stderr, dynamic_ncols=True, leave=False, disable=None) as bar:
        for batch in batches:
            bar.set_postfix_str("compiling")
            subject = program if batch is None else program.with_batch(batch)
            torch.set_num_threads(threads[0])
            before = stats().compile_seconds
            calls = _prepare(subject, options.device)
            compile_seconds = stats().compile_seconds - before
            for number_of_threads, instances in itertools.product(threads, options.instances):
                torch.set_num_threads(number_of_threads)
                bar.set_postfix_str(f"{number_of_threads} threads, batch {batch or 'as given'}, {instances} instances")
                seconds = _times(calls, instances, options.rounds, lambda _: bar.update())
                yield _Row(number_of_threads, batch, instances, compile_seconds, seconds)


def _prepare(subject: Subject, device: str) -> dict[str, Call]:
    """Return the variants by name, each warmed up."""
    with api.without_groups():
        calls = {"eager": subject.eager()}
        warm_up(calls["eager"])
        try:
            if frozen := subject.freeze():
                calls["frozen"] = frozen
                _check("frozen", frozen, subject, "cpu")
        except (RuntimeError, TypeError) as error:
            calls.pop("frozen", None)
            print(f"frozen is left out: {one_line(error)}", file=sys.stderr)
    calls[OURS] = subject.compile()
    _check(OURS, calls[OURS], subject, device)
    return calls


def _check(variant: str, call: Call, subject: Subject, device: str) -> None:
    """Warm up a variant, and compare it with an eager program that is called equally often."""
    calls = warm_up(call)
    results = subject.once(call)
    if difference := Reference.of(subject, subject.eager(), calls + 1).difference(results, device):
        raise _WrongResult(f"{variant} differs from eager: {difference}; nothing was timed")


def _times(
    calls: Mapping[str, Call], instances: int, rounds: int, on_round: Callable[[int], object]
) -> dict[str, list[float]]:
    """Return the seconds of one call of each variant in each round."""
    if instances == 1:
        return timing.time_interleaved(calls, rounds, on_round=on_round)
    counts = {variant: timing.calls_in(call, timing.SPAN) for variant, call in calls.items()}
    with ExitStack() as stack:
        pool = stack.enter_context(_callers(instances))
        together = {
            variant: partial(_call_concurrently, pool, instances, call, counts[variant])
            for variant, call in calls.items()
        }
        seconds_of_rounds = timing.time_interleaved(together, rounds, span=0, on_round=on_round)
    return {variant: [seconds / counts[variant] for seconds in taken] for variant, taken in seconds_of_rounds.items()}


@contextmanager
def _callers(instances: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads that call without gradients.

    Both the gradient mode and the number of operator threads are per-thread settings.
    """
    threads = torch.get_num_threads()

    def begin() -> None:
        torch.set_grad_enabled(False)
        torch.set_num_threads(threads)

    with ThreadPoolExecutor(instances, initializer=begin) as pool:
        yield pool


def _call_concurrently(pool: ThreadPoolExecutor, instances: int, call: Call, calls: int) -> None:
    """Have each instance call the program ``calls`` times."""

    def call_repeatedly() -> None:
        for _ in range(calls):
            call()

    for ended in [pool.submit(call_repeatedly) for _ in range(instances)]:
        ended.result()


def _print_json(rows: Sequence[_Row], options: argparse.Namespace) -> None:
    result = {"file": options.file, "device": options.device, "rounds": options.rounds}
    result["rows"] = [row.to_dict() for row in rows]
    print(json.dumps({**result, "environment": environment()}, indent=1))


def _print(rows: Sequence[_Row], options: argparse.Namespace) -> None:
    title = f"{options.file} on {options.device}: ms of a call, least / median of {options.rounds} rounds"
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)

    def milliseconds(row: _Row, variant: str) -> str:
        return f"{row.minimum(variant) * 1e3:.4g} / {row.median(variant) * 1e3:.4g}"

    def throughput(row: _Row, variant: str) -> str:
        rate = row.calls_per_second(variant)
        return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"

    console.print(_table(title, rows, milliseconds, gains=True))
    if any(row.instances > 1 for row in rows):
        console.print(_table("calls a second, of all instances together", rows, throughput))


def _table(title: str, rows: Sequence[_Row], cell: Callable[[_Row, str], str], gains: bool = False) -> Table:
    variants = [*_OTHERS, OURS]
    table = Table(title=title)
    compiling = ["compile, s"] if gains else []
    for name in (
        "threads",
        "batch",
        "instances",
        *compiling,
        *variants,
        *(f"× {variant}" for variant in _OTHERS if gains),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row.threads), str(row.batch or "-"), str(row.instances)]
        cells += [f"{row.compile_seconds:.2f}"] if gains else []
        cells += [cell(row, variant) if variant in row.seconds else "-" for variant in variants]
        speedups = [row.gain(variant) for variant in _OTHERS if gains]
        table.add_row(*cells, *("-" if gain is None else f"{gain:.2f}" for gain in speedups))
    return table


COMMAND = Command(
    "bench",
    "time a program in a file: eager, frozen and compiled, side by side",
    _run,
    [
        *program_arguments(FROM_FILES),
        *DEVICE_ARGUMENTS,
        argument("--threads", type=numbers, metavar="LIST", help="of each operator (default: PyTorch's choice)"),
        argument(
            "--batches", type=numbers, metavar="LIST", help="first sizes of all inputs (default: as the inputs are)"
        ),
        argument(
            "--instances", type=numbers, default=[1], metavar="LIST", help="threads that call at once (default: 1)"
        ),
        argument("--rounds", type=number, default=20, metavar="N", help="(default: %(default)s)"),
        argument("--json", action="store_true", help="print one JSON object instead of tables"),
    ],
    epilog="""\
examples:
  python -m torchmdla bench model.pt --input 1x3x224x224
  python -m torchmdla bench model.pt --input 1x3x224x224 --threads 1,2 --batches 1,8
  python -m torchmdla bench model.pt --input 1x3x224x224 --threads 1 --instances 1,2 --json > times.json

The ways to run the program are timed in turn, round by round, in one process, without gradients, each after its warm-up
and after its results were compared with eager's:
  eager      PyTorch alone; a TorchScript program as it is, in PyTorch's interpreter
  frozen     PyTorch alone, after torch.jit.optimize_for_inference; "-" of exported programs and in training mode
  torchmdla  torchmdla.compile

"compile, s" are the seconds that were spent in the compiler, 0 where the cache had all programs. All other times are
milliseconds of a call, the least and the median of the rounds. "× eager" and "× frozen" are how many times faster
torchmdla is, by the least. With several instances so many threads call at once, and a call takes longer.

exit status:
  0  all is timed
  1  a result differs from eager's: nothing is timed
  2  the command line is wrong, or the program fails
""",
)
