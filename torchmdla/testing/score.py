"""Score of a device: how many samples of its declared operators run on it and are right, and why the others do not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchmdla.report.rendering import count_text
from torchmdla.testing.checking import PASSING, RIGHT, Outcome
from torchmdla.testing.samples import operator_of

_REPLACED = "capture replaces it by other operators"

DEFINITION = """\
The score is the number of samples that ran on the device and were right, divided by the number of samples. The samples
are calls of each operator that the device declares (Device.ops), in the dtypes that it declares (Device.dtypes)."""


@dataclass(frozen=True)
class OperatorScore:
    """Samples of one declared operator.

    Attributes:
        samples: number of samples that the device declares and that a frontend captures as they are.
        compiled: number of samples whose operator ran in compiled code of the device.
        right: number of these that are as eager's.
        reasons: reason → number of samples that are not right on the device, or that capture replaces.
    """

    samples: int
    compiled: int
    right: int
    reasons: dict[str, int]


@dataclass(frozen=True)
class WayScore:
    """Programs of one frontend variant that are not samples.

    Attributes:
        programs: number of programs.
        declared: number of programs in which the frontend captured an operator that the device declares.
        formed: number of programs in which a group was formed.
        compiled: number of programs in which a group was compiled.
        ran: number of programs in which compiled code of the device was called.
        right: number of these whose results are as eager's.
        fell_back: number of programs in which a group, or a call in a group, fell back to PyTorch.
    """

    programs: int
    declared: int
    formed: int
    compiled: int
    ran: int
    right: int
    fell_back: int


@dataclass(frozen=True)
class Score:
    """Score of a device.

    Attributes:
        device: name of the device.
        operators: score of each declared operator of the run, by schema name.
        ways: programs that are not samples, by frontend variant.
        reasons: declared operator and reason → number of programs in which it did not run on the device. Samples count.
    """

    device: str
    operators: dict[str, OperatorScore]
    ways: dict[str, WayScore]
    reasons: dict[str, int]

    @property
    def samples(self) -> int:
        """Return the number of samples of all operators."""
        return sum(operator.samples for operator in self.operators.values())

    @property
    def right(self) -> int:
        """Return the number of samples that ran on the device and were right."""
        return sum(operator.right for operator in self.operators.values())

    @property
    def percent(self) -> float:
        """Return the score in percent, rounded down to a tenth; 0 without samples."""
        return math.floor(1000 * self.right / self.samples) / 10 if self.samples else 0.0

    def __str__(self) -> str:
        sampled = sum(operator.samples > 0 for operator in self.operators.values())
        return (
            f"score of {self.device}: {self.percent:.1f} % ({self.right} of {count_text(self.samples, 'sample')} of "
            f"{count_text(sampled, 'declared operator')} ran on it and were right)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the score as plain data."""
        return {"score": self.percent, "samples": self.samples, "right": self.right, **asdict(self)}


def score_of(device: str, declared: Iterable[str], outcomes: Sequence[Outcome]) -> Score:
    """Return the score of a run.

    Args:
        device: name of the device.
        declared: the declared operators whose samples the run contains.
        outcomes: outcomes of samples and of other programs.
    """
    samples: dict[str, list[Outcome]] = {op: [] for op in declared}
    ways: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if op := operator_of(outcome.program):
            samples.setdefault(op, []).append(outcome)
        else:
            ways.setdefault(outcome.way, []).append(outcome)
    reasons = Counter(f"{op}: {reason}" for outcome in outcomes for op, reason in outcome.operators.items() if reason)
    return Score(
        device,
        {op: _operator_score(op, entries) for op, entries in samples.items()},
        {way: _way_score(entries) for way, entries in ways.items()},
        dict(reasons.most_common()),
    )


def is_captured(outcome: Outcome) -> bool:
    """Return whether the frontend captured a declared operator of a program; of a sample, its operator."""
    op = operator_of(outcome.program)
    return op in outcome.operators if op else bool(outcome.operators)


def has_run(outcome: Outcome) -> bool:
    """Return whether a program ran on the device, at least in part; a sample, whether its operator did."""
    op = operator_of(outcome.program)
    return outcome.operators.get(op) == "" if op else outcome.compiled_calls > 0


def is_right(outcome: Outcome) -> bool:
    """Return whether a program ran on the device and its results are eager's."""
    return has_run(outcome) and outcome.status in RIGHT


def _is_replaced(outcome: Outcome) -> bool:
    """Return whether the frontend captured a sample without its operator."""
    return outcome.status in PASSING | RIGHT and not is_captured(outcome)


def failure_of(outcome: Outcome) -> str:
    """Return why a program is not right on the device; empty if it is."""
    if is_right(outcome):
        return ""
    if outcome.status not in PASSING | RIGHT:
        return f"{outcome.status}: {outcome.detail}"
    if op := operator_of(outcome.program):
        return outcome.operators.get(op, _REPLACED)
    return outcome.detail or "no declared operator ran on the device"


def _operator_score(op: str, outcomes: Sequence[Outcome]) -> OperatorScore:
    return OperatorScore(
        samples=sum(not _is_replaced(outcome) for outcome in outcomes),
        compiled=sum(outcome.operators.get(op) == "" for outcome in outcomes),
        right=sum(map(is_right, outcomes)),
        reasons=dict(Counter(filter(None, map(failure_of, outcomes))).most_common()),
    )


def _way_score(outcomes: Sequence[Outcome]) -> WayScore:
    return WayScore(
        programs=len(outcomes),
        declared=sum(map(is_captured, outcomes)),
        formed=sum(outcome.groups > 0 for outcome in outcomes),
        compiled=sum(outcome.specialisations > 0 for outcome in outcomes),
        ran=sum(map(has_run, outcomes)),
        right=sum(map(is_right, outcomes)),
        fell_back=sum(bool(outcome.fallbacks) for outcome in outcomes),
    )
