"""Command ``python -m torchmdla run``: call a program in a file, compiled, and compare it with eager PyTorch."""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._pytree import keystr, tree_flatten_with_path

import torchmdla
from torchmdla.cli import Command, argument, one_line, report_failure
from torchmdla.cli.files import program_arguments, read_mlir
from torchmdla.cli.inputs import DEVICE_ARGUMENTS, FROM_FILES, draw, number, read_inputs, use_device
from torchmdla.cli.programs import Reference, Subject, warm_up
from torchmdla.report.environment import environment
from torchmdla.report.rendering import time_text
from torchmdla.testing.timing import time_calls

_SECONDS, _LEAST_CALLS, _MOST_CALLS = 0.5, 3, 1000
_SHOWN = 4  # number of elements of a result to print


@dataclass(frozen=True)
class _RunResult:
    """Results and times of the calls.

    Attributes:
        inputs: the types of the inputs.
        drawn: number of further inputs of an MLIR module, which are random.
        results: path, type and first elements of each result.
        first: seconds of the first call.
        ready: seconds of preparing the program and of all calls until nothing was compiled any more.
        least: minimum of the later calls, in seconds.
        median: median of the later calls, in seconds.
        calls: number of later calls.
        statistics: torchmdla's statistics of all these calls.
        layers: number of operators that sum products, which determines the tolerance; None without a reference.
        error: the largest error, relative to the largest element; None without a reference.
        difference: the first difference beyond the tolerance.
    """

    inputs: tuple[str, ...]
    drawn: int
    results: tuple[tuple[str, str, str], ...]
    first: float
    ready: float
    least: float
    median: float
    calls: int
    statistics: torchmdla.Statistics
    layers: int | None = None
    error: float | None = None
    difference: str = ""


def _run(options: argparse.Namespace) -> int:
    try:
        use_device(options)
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed)
        text = read_mlir(options.file)
        with torch.no_grad(), warnings.catch_warnings():
            # The report lists the fallbacks at the end.
            warnings.filterwarnings("ignore", "torchmdla: ")
            inputs = read_inputs(options.input)
            ran = _program(options, inputs) if text is None else _mlir(text, options, inputs)
    except Exception as error:  # Includes errors of the model.
        return report_failure(one_line(error))
    (_print_json if options.json else _print)(ran, options)
    return int(bool(ran.difference))


def _program(options: argparse.Namespace, inputs: Sequence[Any]) -> _RunResult:
    subject = Subject.of(options.file, options.allow_pickle, inputs, options.seed)
    start = time.perf_counter()
    call = subject.compile()
    before = time.perf_counter()
    call()
    first = time.perf_counter() - before
    calls = 1 + warm_up(call)
    ready = time.perf_counter() - start
    results = subject.once(call)
    timed = _time_call(call)
    statistics = torchmdla.stats()  # Read now, because groups are destroyed with their program.
    reference = Reference.of(subject, subject.eager(), calls + 1)
    return _RunResult(
        tuple(map(_type, [*subject.inputs, *subject.keywords.values()])),
        0,
        tuple(_describe_results(results)),
        first,
        ready,
        *timed,
        statistics,
        reference.layers,
        reference.error(results),
        reference.difference(results, options.device),
    )


def _mlir(text: str, options: argparse.Namespace, inputs: Sequence[Any]) -> _RunResult:
    from torchmdla.mlir.running import MlirFunction

    function = MlirFunction(text)
    further = function.arguments[len(inputs) :]
    tensors = [*inputs, *map(_weight, further)]
    start = time.perf_counter()
    compiled = function.compile(options.device, weights=len(further) if inputs else 0)
    before = time.perf_counter()
    results = compiled(*tensors)
    first, ready = time.perf_counter() - before, time.perf_counter() - start
    timed = _time_call(lambda: compiled(*tensors))
    return _RunResult(
        tuple(map(_type, inputs)),
        len(further),
        tuple(_describe_results(results)),
        first,
        ready,
        *timed,
        torchmdla.stats(),
    )


def _weight(spec: Any) -> Any:
    """Return a random weight that is positive, because it may be a variance.

    Weights whose rows are summed are small, so that values stay finite after many layers.
    """
    drawn = draw(spec).abs()
    is_summed = drawn.dim() > 1 and drawn.is_floating_point() and drawn.numel()
    return drawn / (drawn.numel() / drawn.size(0)) if is_summed else drawn


def _time_call(call: Callable[[], Any]) -> tuple[float, float, int]:
    """Return the minimum and the median of the seconds of a call, and the number of calls."""
    taken: list[float] = []
    while len(taken) < _LEAST_CALLS or (sum(taken) < _SECONDS and len(taken) < _MOST_CALLS):
        taken.append(time_calls(call, 1))
    return min(taken), statistics.median(taken), len(taken)


def _describe_results(results: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the path, type and first elements of each result."""
    leaves, _ = tree_flatten_with_path(results)
    for path, leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            more = ", …" if leaf.numel() > _SHOWN else ""
            values = ", ".join(f"{value:.5g}" for value in leaf.flatten()[:_SHOWN].tolist()) + more
        else:
            values = str(leaf)
        yield f"result{keystr(path)}", _type(leaf), values


def _type(value: Any) -> str:
    """Return the type of a value, for example ``float32[1, 3]``."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _print_json(ran: _RunResult, options: argparse.Namespace) -> None:
    result = {"file": options.file, "device": options.device, "seed": options.seed, **asdict(ran)}
    print(json.dumps({**result, "environment": environment()}, indent=1))


def _print(ran: _RunResult, options: argparse.Namespace) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    more = f" and {ran.drawn} drawn at random" if ran.drawn else ""
    threads = torch.get_num_threads()
    several = "" if threads == 1 else "s"
    console.print(f"{options.file} on {options.device}, seed {options.seed}, {threads} thread{several}")
    console.print(f"inputs: {', '.join(ran.inputs) or 'none'}{more}")
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for row in ran.results:
        table.add_row(*row)
    console.print(table)
    console.print(
        f"first call {time_text(ran.first)}, ready after {time_text(ran.ready)}; then {time_text(ran.least)} the "
        f"fastest and {time_text(ran.median)} the middle of {ran.calls} calls"
    )
    if ran.layers is None:
        console.print("not compared: a module of MLIR has no eager reference")
    else:
        tolerance = f"at the tolerance for {ran.layers} layer{'' if ran.layers == 1 else 's'}"
        error = "" if ran.error is None else f"; the largest error is {ran.error:.2g} of the largest element"
        verdict = f"differs from eager PyTorch: {ran.difference}" if ran.difference else "as eager PyTorch"
        console.print(f"{verdict} ({tolerance}{error})")
        print(ran.statistics)


COMMAND = Command(
    "run",
    "call a program in a file, compiled, and compare it with eager PyTorch",
    _run,
    [
        *program_arguments(FROM_FILES),
        *DEVICE_ARGUMENTS,
        argument("--threads", type=number, metavar="N", help="of each operator (default: PyTorch's choice)"),
        argument("--json", action="store_true", help="print one JSON object instead of tables"),
    ],
    epilog="""\
examples:
  python -m torchmdla run model.pt --input 1x3x224x224
  python -m torchmdla run bert.pt --input @ids.pt --input @mask.npy --threads 1
  python -m torchmdla run exported.pt2               an exported program has its inputs
  python -m torchmdla mlir model.pt --input 1x3x224x224 --output linalg -o model.mlir
  python -m torchmdla run model.mlir --input 1x3x224x224

Inputs are normal random numbers; integers, which may be indices, are 0. A program of PyTorch's is compared with eager
PyTorch, at the tolerance of the tests (torchmdla/testing/compare.py).

A module of MLIR needs one public function, in the Torch dialect or in linalg on tensors. What it takes beyond the
inputs given is drawn at random, positive and small, and packed as weights are. The results are not compared, since
eager PyTorch does not run such a module.

exit status:
  0  it ran, with eager PyTorch's results
  1  it ran, and a result differs
  2  the command line is wrong, or the program fails
""",
)
