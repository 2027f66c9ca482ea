"""What became of programs, written as it comes: a run that is interrupted keeps what it had, and can be taken up again.

A file of JSON lines: one for each outcome, and one for each job that is done. A program may stand there twice, since a
job that was interrupted is run again; its last line counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from torchmdla.testing.checking import STATUSES, Outcome
from torchmdla.testing.runner import Job, Judged, judged

_OUTCOME = [field.name for field in fields(Outcome)]


class Record:
    """A file of outcomes and of the jobs that are done; a context manager that closes it.

    Args:
        file: where; None: in memory alone.
        resumed: go on behind what the file holds. Otherwise it begins anew.

    Raises:
        ValueError: ``file`` holds something else.
    """

    def __init__(self, file: Path | None, resumed: bool = False) -> None:
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self._done: set[Job] = set()
        if file is not None and resumed and file.exists():
            torn = self.read(file)
            os.truncate(file, file.stat().st_size - torn)
        self._stream = None if file is None else file.open("a" if resumed else "w", encoding="utf-8")

    def read(self, file: Path) -> int:
        """Takes what another file holds; returns how many bytes of a torn line are at its end.

        Raises:
            ValueError: it holds something else.
        """
        whole, _, torn = file.read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{file}, line {number}: not written by --json ({error})") from None
        return len(torn)

    def _take(self, entry: Any) -> None:
        if "done" in entry:
            self._done.add(Job(**entry["done"]))
        else:
            entry["code"] = tuple(entry["code"])
            outcome = Outcome(**{name: entry[name] for name in _OUTCOME})
            self._outcomes[outcome.program, outcome.way] = outcome

    def left_of(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of ``jobs`` that are not done."""
        return [job for job in jobs if job not in self._done]

    def add(self, event: Judged | Job) -> None:
        """Writes what :func:`torchmdla.testing.runner.run` yields."""
        if isinstance(event, Job):
            self._done.add(event)
            self._write({"done": asdict(event)})
        else:
            outcome = event.outcome
            self._outcomes[outcome.program, outcome.way] = outcome
            self._write({**asdict(outcome), "expected": event.expected, "reason": event.reason})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._stream is not None:
            # Flushed by line, whole: whatever ends this process leaves at most one torn line behind.
            self._stream.write(json.dumps(entry) + "\n")
            self._stream.flush()

    def results(self) -> list[Judged]:
        """Every outcome, those of before included, against what is expected now."""
        return [judged(outcome) for outcome in self._outcomes.values()]

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._stream is not None:
            self._stream.close()


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same programs, each named by program and way.

    Attributes:
        same: those that ended alike and compiled to the same code.
        code: those whose code differs.
        status: those that ended otherwise.
        only_one: those of one run alone.
    """

    same: list[str]
    code: list[str]
    status: list[str]
    only_one: list[str]


def compared(before: Path, after: Path) -> Comparison:
    """What differs between the runs that two files hold.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file holds something else.
    """
    runs = []
    for file in (before, after):
        record = Record(None)
        record.read(file)
        runs.append({f"{o.outcome.program} on {o.outcome.way}": o.outcome for o in record.results()})
    old, new = runs
    found = Comparison([], [], [], sorted(old.keys() ^ new.keys()))
    for name in (name for name in old if name in new):
        one, other = old[name], new[name]
        kind = found.status if one.status != other.status else found.code if one.code != other.code else found.same
        kind.append(name)
    return found


# --- pages -------------------------------------------------------------------------------------------------------

_HEADING = "## Results\n"


def write_table(results: Sequence[Judged], page: Path) -> None:
    """Write what programs ended as behind the heading ``Results`` of a page in Markdown. What stands above it stays."""
    before, _, _ = page.read_text(encoding="utf-8").partition(_HEADING)
    page.write_text("\n".join([before.rstrip("\n"), "", _HEADING, *_tables(results)]) + "\n", encoding="utf-8")


def _tables(results: Sequence[Judged]) -> Iterator[str]:
    """The lines of three tables: counts, each program on each way, and why some are not ``ok``."""
    outcomes = sorted((result.outcome for result in results), key=lambda outcome: outcome.program)
    ways = list(dict.fromkeys(result.outcome.way for result in results))
    counts = Counter((outcome.way, outcome.status) for outcome in outcomes)
    statuses = [status for status in STATUSES if any(counts[way, status] for way in ways)]
    yield from _head("way", *statuses)
    yield from (_row(way, *(str(counts[way, status] or "") for status in statuses)) for way in ways)
    yield ""
    # A program and the same with gradients are one row: "ok / fallback".
    cells: dict[str, dict[str, list[str]]] = {}
    for outcome in outcomes:
        name = outcome.program.partition(":")[0]
        cells.setdefault(name, {}).setdefault(outcome.way, []).append(outcome.status)
    yield from _head("program", *ways)
    for name, found in cells.items():
        yield _row(name, *(" / ".join(dict.fromkeys(found.get(way, []))) for way in ways))
    yield ""
    reasons = Counter((outcome.status, outcome.detail) for outcome in outcomes if outcome.status != "ok")
    yield from _head("programs", "ended as", "reason")
    yield from (_row(str(count), status, detail) for (status, detail), count in sorted(reasons.items()))


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield _row(*("---" for _ in names))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"
