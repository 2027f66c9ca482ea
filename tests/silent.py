"""Programs for which compilers were once silently wrong. Every frontend runs them, and they are compared with eager."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torchmdla.testing.checking import Outcome, Status, check
from torchmdla.testing.frontends import variant_of
from torchmdla.testing.programs import Program

VARIANTS = ("torchscript:trace", "torchscript:script", "dynamo:compile", "lazy:step", "acap:device")

# (way, name of a program) → the outcome of PyTorch alone without torchmdla, and the reason.
Exceptions = Mapping[tuple[str, str], tuple[Status, str]]


def assert_as_eager(program: Program, exceptions: Exceptions) -> None:
    """Check that every frontend gives eager's results, except ``exceptions``, and that groups were formed."""
    outcomes = [outcome for way in VARIANTS if (outcome := _outcome(program, way))]
    unexpected = [outcome for outcome in outcomes if not _is_expected(outcome, exceptions)]
    assert not unexpected, "\n".join(f"{outcome.way}: {outcome.status}: {outcome.detail}" for outcome in unexpected)
    assert any(outcome.groups for outcome in outcomes), "no group was formed"


def _outcome(program: Program, way: str) -> Outcome | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check(program, way, variant_of(way))


def _is_expected(outcome: Outcome, exceptions: Exceptions) -> bool:
    expected, _ = exceptions.get((outcome.way, outcome.program), ("", ""))
    return outcome.status == expected if expected else outcome.status in ("ok", "fallback")
