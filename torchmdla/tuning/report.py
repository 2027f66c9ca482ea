"""Report of a tuning: the distance of the cost model's choices from the best that were found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchmdla.compiler.records import TunedKernel
from torchmdla.report.rendering import as_text, count_text, new_table, time_text

# Most kernels that are shown, the most expensive ones; ``to_dict`` has all.
_MOST_KERNELS = 24


@dataclass(frozen=True)
class TuningReport:
    """Result of tuning a model.

    Attributes:
        kernels: kernels of its programs, the most expensive first.
        seconds: seconds that a call of the model spends in compiled groups.
        spent: seconds that tuning took.
        reasons: why programs were not tuned.
        problem: why nothing is kept on disk; empty if all is kept.
        before: seconds of a call of the model with the cost model's choices; None if it was not timed.
        after: seconds of a call of the model with the best decisions, timed in alternation with ``before``; None if it
            was not timed.
    """

    kernels: tuple[TunedKernel, ...]
    seconds: float
    spent: float
    reasons: tuple[str, ...] = ()
    problem: str = ""
    before: float | None = None
    after: float | None = None

    @property
    def measured(self) -> int:
        """Return the number of kernels whose schedules were measured, now or before."""
        return sum(kernel.record is not None for kernel in self._scheduled)

    @property
    def algorithms(self) -> int:
        """Return the number of contractions whose algorithms were measured."""
        return len(self.kernels) - len(self._scheduled)

    @property
    def _scheduled(self) -> list[TunedKernel]:
        """Return the entries that are kernels, not contractions."""
        return [kernel for kernel in self.kernels if not kernel.is_algorithm]

    @property
    def covered(self) -> float:
        """Return the fraction of the time in compiled groups that the measured kernels take."""
        return (
            sum(kernel.seconds for kernel in self._scheduled if kernel.record) / self.seconds if self.seconds else 0.0
        )

    @property
    def improved(self) -> int:
        """Return the number of kernels and contractions for which faster decisions were found."""
        return sum(kernel.record is not None and bool(kernel.record.decisions) for kernel in self.kernels)

    @property
    def distance(self) -> float:
        """Return the fraction of the time in compiled groups that the best decisions save, by the kernels' times."""
        return sum(kernel.saved for kernel in self.kernels) / self.seconds if self.seconds else 0.0

    @property
    def summary(self) -> str:
        """Return the report in one line."""
        algorithms = f", and the algorithms of {count_text(self.algorithms, 'contraction')}" if self.algorithms else ""
        return (
            f"{count_text(self.measured, 'kernel')} measured, {self.covered * 100:.0f} % of the time{algorithms}; "
            f"{self.improved} of them faster than by the cost model, which is {self.distance * 100:.1f} % from the "
            "best found"
        )

    def to_dict(self) -> dict[str, Any]:
        summed = {name: getattr(self, name) for name in ("measured", "algorithms", "covered", "improved", "distance")}
        return {**asdict(self), **summed}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        return as_text(Group(*self._parts()))

    def _parts(self) -> Iterator[RenderableType]:
        yield Text(self.summary, style="bold")
        if self.before is not None and self.after is not None:
            yield Text(
                f"a call takes {time_text(self.after)} in place of {time_text(self.before)}: "
                f"× {self.before / self.after:.3f}"
            )
        yield from (Text(f"not tuned: {reason}") for reason in self.reasons)
        if self.problem:
            yield Text(f"nothing is kept on disk: {self.problem}")
        if self.kernels:
            yield self._table()

    def _table(self) -> Table:
        table = new_table()
        table.add_column("kernel", no_wrap=True)
        table.add_column("loops", overflow="fold")
        for name in ("calls", "share", "cost model", "best", "alone", "gain", "tried"):
            table.add_column(name, justify="right", no_wrap=True)
        for kernel in sorted(self.kernels, key=lambda kernel: -kernel.seconds)[:_MOST_KERNELS]:
            share = f"{kernel.seconds / self.seconds * 100:.1f} %"
            table.add_row(kernel.kernel, kernel.loops, str(kernel.count), share, *_measurements(kernel))
        if (rest := len(self.kernels) - _MOST_KERNELS) > 0:
            table.add_row(f"{rest} others", *[""] * 8)
        return table


def _measurements(kernel: TunedKernel) -> tuple[str, ...]:
    record = kernel.record
    if record is None:
        return (kernel.reason, "", "", "", "")
    more = "" if record.finished else "+"
    return (
        time_text(record.chosen_seconds),
        time_text(record.best_seconds),
        f"{record.gain_alone:.2f}" if record.decisions else "-",
        f"{record.gain_among_others:.2f}" if record.gain_among_others else "-",
        f"{record.tried}{more}",
    )
