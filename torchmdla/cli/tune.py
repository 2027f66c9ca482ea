"""Command ``python -m torchmdla tune``: measure schedules and algorithms for the kernels of a program in a file."""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from typing import TYPE_CHECKING

from torchmdla.cli import one_line, report_failure
from torchmdla.cli.files import FileError, add_program_arguments, read_mlir
from torchmdla.cli.inputs import FROM_FILES, add_device_arguments, number, read_inputs, use_device

if TYPE_CHECKING:
    from torchmdla.cli.programs import Call, Subject
    from torchmdla.tuning.report import TuningReport

EPILOG = """\
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
"""

# Rounds in which the model is timed, before and after tuning, and seconds of each. Each of the two models has its own
# weights, which evict the other's from the caches.
_ROUNDS, _SPAN = 10, 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_program_arguments(parser, FROM_FILES)
    add_device_arguments(parser)
    parser.add_argument("--threads", type=number, metavar="N", help="of each operator (default: PyTorch's choice)")
    parser.add_argument("--seconds", type=number, default=120, metavar="N", help="to take (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(options: argparse.Namespace) -> int:
    """Tune the program and print the report. Return the exit status."""
    import torch

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
    import torch

    from torchmdla.cli.programs import Reference, Subject, warm_up
    from torchmdla.testing import timing
    from torchmdla.tuning import tune

    subject = Subject.of(options.file, options.allow_pickle, read_inputs(options.input), options.seed)
    with contextlib.suppress(TypeError):  # A device without this option uses no tuning records, or always uses them.
        use_device(options)
        use_device(options, tuned=False)
    before = _prepare(subject)
    use_device(options)
    report = tune(before, options.seconds)
    after = _prepare(subject)
    calls = warm_up(after)
    results = subject.once(after)
    difference = Reference.of(subject, subject.eager(), calls + 1).difference(results, options.device)
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = timing.time_interleaved({"before": before, "after": after}, _ROUNDS, _SPAN, clock=clock)
    return report.timed(min(times["before"]), min(times["after"])), difference


def _prepare(subject: Subject) -> Call:
    from torchmdla.cli.programs import warm_up

    call = subject.compiled()
    warm_up(call)
    return call
