"""Command ``python -m torchmdla tune``: measure schedules and algorithms for the kernels of a program in a file."""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from torchmdla.cli import Command, argument, one_line, report_failure
from torchmdla.cli.files import FileError, program_arguments, read_mlir
from torchmdla.cli.inputs import DEVICE_ARGUMENTS, FROM_FILES, number, read_inputs, use_device
from torchmdla.cli.programs import Reference, Subject, warm_up
from torchmdla.testing import timing

if TYPE_CHECKING:
    from torchmdla.tuning.report import TuningReport

# Rounds in which the model is timed, before and after tuning, and seconds of each. Each of the two models has its own
# weights, which evict the other's from the caches.
_ROUNDS, _SPAN = 10, 0.25


def _run(options: argparse.Namespace) -> int:
    try:
        if read_mlir(options.file) is not None:
            raise FileError("tune takes programs of PyTorch's, no MLIR")
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report, difference = _tune(options)
    except Exception as error:  # Includes errors of the model.
        return report_failure(one_line(error))
    print(report.to_json(indent=2) if options.json else report)
    return report_failure(f"the results differ from eager's: {difference}") - 1 if difference else 0


def _tune(options: argparse.Namespace) -> tuple[TuningReport, str]:
    """Return the tuning report, and the difference from eager's results after tuning."""
    from torchmdla.tuning import tune

    subject = Subject.of(options.file, options.allow_pickle, read_inputs(options.input), options.seed)
    with contextlib.suppress(TypeError):  # A device without this option uses no tuning records, or always uses them.
        use_device(options)
        use_device(options, tuned=False)
    before = subject.compile()
    warm_up(before)
    use_device(options)
    report = tune(before, options.seconds)
    after = subject.compile()
    warm_up(after)
    calls = warm_up(after)
    results = subject.once(after)
    difference = Reference.of(subject, subject.eager(), calls + 1).difference(results, options.device)
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = timing.time_interleaved({"before": before, "after": after}, _ROUNDS, _SPAN, clock=clock)
    return replace(report, before=min(times["before"]), after=min(times["after"])), difference


COMMAND = Command(
    "tune",
    "measure schedules for the kernels of a program in a file, and keep the fastest",
    _run,
    [
        *program_arguments(FROM_FILES),
        *DEVICE_ARGUMENTS,
        argument("--threads", type=number, metavar="N", help="of each operator (default: PyTorch's choice)"),
        argument("--seconds", type=number, default=120, metavar="N", help="to take (default: %(default)s)"),
        argument("--json", action="store_true", help="print one JSON object instead of tables"),
    ],
    epilog="""\
examples:
  python -m torchmdla tune model.pt --input 1x3x224x224
  python -m torchmdla tune model.pt --input 1x3x224x224 --seconds 600 --threads 1
  python -m torchmdla tune model.pt --input 1x3x224x224 --json > tuned.json

Algorithms of convolutions and products are measured in the whole program, then schedules of the kernels that take most
of the time. What wins is kept on disk, for this machine: an algorithm must be more than 3 % faster, twice, a kernel
more than 3 % faster alone, twice, and faster in the whole program. Every program that is compiled here
from then on uses them, this one and others. What was measured to its end is not measured again; a "+" behind a number
says that the time was over before, and a second run goes on there. The columns have the time of a kernel alone, by the
cost model's choice and by the best that was found, how many times faster that is alone, and in the whole program.

exit status:
  0  all is measured
  1  a result differs from eager's with what was found
  2  the command line is wrong, or the program fails
""",
)
