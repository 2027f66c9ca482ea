"""Baseline of a device: the programs that were right on it in an earlier run, and the operators that ran on it there.

The file is JSON with one line for each program, so that a version control system shows its changes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torchmdla.testing.checking import Outcome
from torchmdla.testing.frontends import AUTOMATIC
from torchmdla.testing.samples import operator_of
from torchmdla.testing.score import failure_of, is_right


@dataclass(frozen=True)
class Baseline:
    """Programs that are right on a device.

    Attributes:
        device, options, frontend: the arguments of the run on the command line.
        right: program → its declared operators that ran on the device, between spaces. With named frontends, a program
            is ``PROGRAM on WAY``.
    """

    device: str
    options: str
    frontend: str
    right: dict[str, str] = field(default_factory=dict)

    def with_run(self, outcomes: Sequence[Outcome]) -> Baseline:
        """Return the baseline with the outcomes of a run. Programs that it does not contain are kept."""
        run = self._by_name(outcomes)
        others = {name: ops for name, ops in self.right.items() if name not in run}
        right = {name: " ".join(_ran(outcome)) for name, outcome in run.items() if is_right(outcome)}
        return Baseline(self.device, self.options, self.frontend, dict(sorted({**others, **right}.items())))

    def compare(self, outcomes: Sequence[Outcome], declared: Collection[str]) -> Changes:
        """Return the changes of a run since the baseline.

        ``declared`` are the operators that the device declares now. Programs that the run does not contain do not
        count, except samples of an operator that is not declared any more.
        """
        run = self._by_name(outcomes)
        undeclared = dict.fromkeys(
            op for name in self.right if name not in run and (op := operator_of(name)) and op not in declared
        )
        regressions = [f"{op}: the device does not declare it any more" for op in undeclared]
        for name in self.right.keys() & run.keys():
            regressions += (f"{name}: {text}" for text in _losses(run[name], self.right[name].split()))
        improvements = [
            name for name, outcome in run.items() if is_right(outcome) and set(_ran(outcome)) - set(self._ops(name))
        ]
        return Changes(sorted(regressions), sorted(improvements))

    def _ops(self, name: str) -> list[str]:
        return self.right.get(name, "").split()

    def _by_name(self, outcomes: Sequence[Outcome]) -> Mapping[str, Outcome]:
        is_automatic = self.frontend == AUTOMATIC
        return {
            outcome.program if is_automatic else f"{outcome.program} on {outcome.way}": outcome for outcome in outcomes
        }


@dataclass(frozen=True)
class Changes:
    """Changes since a baseline.

    Attributes:
        regressions: programs and operators that were right on the device and are not any more, with the reasons.
        improvements: programs that are right on the device with more operators than in the baseline.
    """

    regressions: list[str]
    improvements: list[str]


def _ran(outcome: Outcome) -> list[str]:
    return sorted(op for op, reason in outcome.operators.items() if not reason)


def _losses(outcome: Outcome, ops: Collection[str]) -> Iterator[str]:
    """Yield why a program, or each of ``ops``, is not right on the device any more."""
    if not is_right(outcome):
        yield failure_of(outcome)
        return
    for op in ops:
        if reason := outcome.operators.get(op, "the program does not contain it any more"):
            yield f"{op} does not run on the device: {reason}"


def read_baseline(file: Path, expected: Baseline) -> Baseline:
    """Return the baseline of a file, which is for the device, options and frontends of ``expected``.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a baseline, or it is one of other arguments.
    """
    try:
        baseline = Baseline(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise ValueError(f"{file}: not written by --update-baseline") from None
    for name in ("device", "options", "frontend"):
        stored, wanted = getattr(baseline, name), getattr(expected, name)
        if stored != wanted:
            raise ValueError(f"{file} is the baseline of --{name} {stored or '(none)'}, not of {wanted or '(none)'}")
    return baseline


def write_baseline(baseline: Baseline, file: Path) -> None:
    """Write a baseline to a file."""
    file.write_text(json.dumps(asdict(baseline), indent=1) + "\n", encoding="utf-8")
