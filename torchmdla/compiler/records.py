"""What was measured on a machine: data that a program carries, so that lowering stays a function of it.

A record is of one kernel, by the name that its device gives it, and says which decisions were fastest: text of the
device's own, which it checks before it uses them. Those of a machine are part of every program that is compiled there
(the option ``records``), and so of its key. Constants are of the machine itself (the option ``machine``): those that
are what the device takes without measuring are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# The program's option that holds decisions by kernel: ``{"9c2f04d1be35a7c8": {…}}``.
OPTION = "records"

# That holds constants of the machine by name: ``{"splits": true}``.
MACHINE = "machine"

Number = bool | int | float


@dataclass(frozen=True)
class Record:
    """``decisions`` of a ``kernel`` (JSON; empty where the cost model's are the fastest known), and seconds of a call
    with the cost model's and with these, the kernel being run alone; ``gain_among_others``: how many times faster these
    are in the program that it was measured for, 0 where that is not known. ``loops``: what it is, for people.
    ``tried``: how many were timed; ``finished``: no more were left to try when the time was over."""

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
        """How many times faster the best is than what the cost model chooses, in a program where that is known."""
        return self.gain_among_others or self.gain_alone

    @property
    def gain_alone(self) -> float:
        """As :attr:`gain`, of the kernel alone."""
        return self.chosen_seconds / self.best_seconds if self.best_seconds > 0 else 1.0

    @property
    def without_decisions(self) -> Record:
        """That of a kernel for which the cost model's decisions turned out to be the fastest."""
        return replace(self, decisions="", best_seconds=self.chosen_seconds, gain_among_others=0.0)

    def to_raw(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Record:
        """
        Raises:
            ValueError, TypeError, KeyError: it is no record.
        """
        made = cls(
            str(raw["kernel"]),
            str(raw["loops"]),
            str(raw["decisions"]),
            float(raw["chosen_seconds"]),
            float(raw["best_seconds"]),
            int(raw["tried"]),
            bool(raw["finished"]),
            float(raw["gain_among_others"]),
        )
        if made.decisions and not isinstance(json.loads(made.decisions), dict):
            raise ValueError(f"the decisions of {made.kernel} are no object")
        return made


def option_of(records: Iterable[Record]) -> tuple[tuple[str, str], ...]:
    """What programs carry of records: nothing where the cost model's choices are the fastest."""
    decisions = {record.kernel: json.loads(record.decisions) for record in records if record.decisions}
    return ((OPTION, json.dumps(decisions, sort_keys=True, separators=(",", ":"))),) if decisions else ()


@dataclass(frozen=True)
class Constant:
    """A number that costs are counted by: its name and its ``meaning`` for people, what was measured, and what is taken
    for it where nothing is."""

    name: str
    value: Number
    default: Number
    meaning: str


def option_of_machine(constants: Mapping[str, Number]) -> tuple[tuple[str, str], ...]:
    """What programs carry of a machine's constants: nothing of those that are as they are taken to be."""
    return ((MACHINE, json.dumps(constants, sort_keys=True, separators=(",", ":"))),) if constants else ()


@dataclass(frozen=True)
class TunedKernel:
    """A kernel of a program: its name and loops, how often a call of the program runs it, the seconds that this takes
    in all, and what is known of it; without a ``record`` the ``reason``. ``is_algorithm``: it is a contraction, whose
    algorithm was measured; its kernels are others of these."""

    kernel: str
    loops: str
    count: int
    seconds: float
    record: Record | None = None
    reason: str = ""
    is_algorithm: bool = False

    @property
    def saved(self) -> float:
        """Seconds of a call of the program that the best decisions save."""
        return self.seconds * (1 - 1 / self.record.gain) if self.record else 0.0

    def to_raw(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> TunedKernel:
        """
        Raises:
            ValueError, TypeError, KeyError: it is none.
        """
        record = Record.from_raw(raw["record"]) if raw["record"] is not None else None
        return cls(
            raw["kernel"], raw["loops"], raw["count"], raw["seconds"], record, raw["reason"], raw["is_algorithm"]
        )
