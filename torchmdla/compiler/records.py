"""Measurements of a machine, as data that a program carries, so that lowering stays a function of the program.

A record belongs to one kernel, by the name that its device gives it. It has the fastest decisions, as text of the
device's own that the device checks before use. All records of a machine are part of every program that is compiled
there (the option ``records``), and so of its key. Constants describe the machine itself (the option ``machine``).
Constants that equal the device's defaults are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# Option of the program with decisions by kernel: ``{"9c2f04d1be35a7c8": {…}}``.
OPTION = "records"

# Option of the program with constants of the machine by name: ``{"splits": true}``.
MACHINE = "machine"

Number = bool | int | float


@dataclass(frozen=True)
class Record:
    """Measurement of one kernel.

    Attributes:
        kernel: name of the kernel.
        loops: description of its loops, for humans.
        decisions: the fastest decisions (JSON); empty if those of the cost model are the fastest known.
        chosen_seconds: seconds of a call with the cost model's decisions, the kernel being run alone.
        best_seconds: seconds of a call with these decisions, the kernel being run alone.
        tried: number of decisions that were timed.
        finished: whether none were left to try when the time was over.
        gain_among_others: speed-up of these decisions in the program that the kernel was measured for; 0 if unknown.
    """

    kernel: str
    loops: str
    decisions: str
    chosen_seconds: float
    best_seconds: float
    tried: int
    finished: bool
    gain_among_others: float = 0.0

    @property
    def gain(self) -> float:
        """Return the speed-up of the best decisions over the cost model's, in a program if that is known."""
        return self.gain_among_others or self.gain_alone

    @property
    def gain_alone(self) -> float:
        """Return :attr:`gain` for the kernel alone."""
        return self.chosen_seconds / self.best_seconds if self.best_seconds > 0 else 1.0

    @property
    def without_decisions(self) -> Record:
        """Return the record of a kernel for which the cost model's decisions turned out to be the fastest."""
        return replace(self, decisions="", best_seconds=self.chosen_seconds, gain_among_others=0.0)

    def to_raw(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Record:
        """Return the record with the fields of ``raw``.

        Raises:
            ValueError, TypeError, KeyError: ``raw`` is not a record.
        """
        record = cls(
            str(raw["kernel"]),
            str(raw["loops"]),
            str(raw["decisions"]),
            float(raw["chosen_seconds"]),
            float(raw["best_seconds"]),
            int(raw["tried"]),
            bool(raw["finished"]),
            float(raw["gain_among_others"]),
        )
        if record.decisions and not isinstance(json.loads(record.decisions), dict):
            raise ValueError(f"the decisions of {record.kernel} are not a JSON object")
        return record


def option_of(records: Iterable[Record]) -> tuple[tuple[str, str], ...]:
    """Return the program options for ``records``; empty if the cost model's choices are the fastest."""
    decisions = {record.kernel: json.loads(record.decisions) for record in records if record.decisions}
    return ((OPTION, json.dumps(decisions, sort_keys=True, separators=(",", ":"))),) if decisions else ()


@dataclass(frozen=True)
class Constant:
    """Number that the cost model uses.

    Attributes:
        name: its name.
        value: the measured value.
        default: the value that is used without a measurement.
        meaning: its meaning, for humans.
    """

    name: str
    value: Number
    default: Number
    meaning: str


def option_of_machine(constants: Mapping[str, Number]) -> tuple[tuple[str, str], ...]:
    """Return the program options for a machine's constants that differ from their defaults."""
    return ((MACHINE, json.dumps(constants, sort_keys=True, separators=(",", ":"))),) if constants else ()


@dataclass(frozen=True)
class TunedKernel:
    """Kernel of a program.

    Attributes:
        kernel: its name.
        loops: description of its loops.
        count: how often a call of the program runs it.
        seconds: seconds that it takes in a call of the program, in all.
        record: its measurement, or None.
        reason: why there is not a record.
        is_algorithm: whether it is a contraction whose algorithm was measured. The kernels of the contraction are other
            entries.
    """

    kernel: str
    loops: str
    count: int
    seconds: float
    record: Record | None = None
    reason: str = ""
    is_algorithm: bool = False

    @property
    def saved(self) -> float:
        """Return the seconds of a call of the program that the best decisions save."""
        return self.seconds * (1 - 1 / self.record.gain) if self.record else 0.0

    def to_raw(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> TunedKernel:
        """Return the kernel with the fields of ``raw``.

        Raises:
            ValueError, TypeError, KeyError: ``raw`` is not such a kernel.
        """
        record = Record.from_raw(raw["record"]) if raw["record"] is not None else None
        return cls(
            raw["kernel"], raw["loops"], raw["count"], raw["seconds"], record, raw["reason"], raw["is_algorithm"]
        )
