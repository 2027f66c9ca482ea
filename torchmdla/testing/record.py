"""Record of outcomes, written as they arrive, so that an interrupted run keeps its outcomes and can be resumed.

The file contains JSON lines: one for each outcome, one for each job that is done, and at the end of a run its summary.
An interrupted job runs again, so a program may have two lines; the last one counts.
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
from torchmdla.testing.runner import CheckedOutcome, Job, check_outcome

_OUTCOME = [field.name for field in fields(Outcome)]


class Record:
    """File of outcomes and of finished jobs; a context manager that closes it.

    Args:
        file: the path; None: keep the record in memory only.
        resumed: append to the contents of the file, instead of overwriting them.

    Raises:
        ValueError: ``file`` has other contents.
    """

    def __init__(self, file: Path | None, resumed: bool = False) -> None:
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self._done: set[Job] = set()
        if file is not None and resumed and file.exists():
            torn = self.read(file)
            os.truncate(file, file.stat().st_size - torn)
        self._stream = None if file is None else file.open("a" if resumed else "w", encoding="utf-8")

    def read(self, file: Path) -> int:
        """Read the contents of another file. Return the number of bytes of an incomplete line at its end.

        Raises:
            ValueError: the file has other contents.
        """
        whole, _, torn = file.read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._add_entry(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{file}, line {number}: not written by --json ({error})") from None
        return len(torn)

    def _add_entry(self, entry: Any) -> None:
        if "summary" in entry:
            return
        if "done" in entry:
            self._done.add(Job(**entry["done"]))
        else:
            entry["code"] = tuple(entry["code"])
            outcome = Outcome(**{name: entry[name] for name in _OUTCOME})
            self._outcomes[outcome.program, outcome.way] = outcome

    def unfinished(self, jobs: Sequence[Job]) -> list[Job]:
        """Return those of ``jobs`` that are not done."""
        return [job for job in jobs if job not in self._done]

    def add(self, event: CheckedOutcome | Job) -> None:
        """Write an event that :func:`torchmdla.testing.runner.run` yields."""
        if isinstance(event, Job):
            self._done.add(event)
            self._write({"done": asdict(event)})
        else:
            outcome = event.outcome
            self._outcomes[outcome.program, outcome.way] = outcome
            self._write({**asdict(outcome), "expected": event.expected, "reason": event.reason})

    def add_summary(self, summary: dict[str, Any]) -> None:
        """Write the summary of a run."""
        self._write({"summary": summary})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._stream is not None:
            # Flush whole lines, so that a killed process leaves at most one incomplete line.
            self._stream.write(json.dumps(entry) + "\n")
            self._stream.flush()

    def results(self) -> list[CheckedOutcome]:
        """Return every outcome, earlier runs included, compared with the current expectations."""
        return [check_outcome(outcome) for outcome in self._outcomes.values()]

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._stream is not None:
            self._stream.close()


@dataclass(frozen=True)
class Comparison:
    """Comparison of two runs of the same programs, each named by program and variant.

    Attributes:
        same: names with the same status and the same code.
        code: names whose code differs.
        status: names whose status differs.
        only_one: names that occur in one run only.
    """

    same: list[str]
    code: list[str]
    status: list[str]
    only_one: list[str]


def compare_runs(before: Path, after: Path) -> Comparison:
    """Return the differences between the runs in two files.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file has other contents.
    """
    runs = []
    for file in (before, after):
        record = Record(None)
        record.read(file)
        runs.append({f"{o.outcome.program} on {o.outcome.way}": o.outcome for o in record.results()})
    old, new = runs
    result = Comparison([], [], [], sorted(old.keys() ^ new.keys()))
    for name in (name for name in old if name in new):
        earlier, later = old[name], new[name]
        kind = (
            result.status
            if earlier.status != later.status
            else result.code
            if earlier.code != later.code
            else result.same
        )
        kind.append(name)
    return result


# --- pages -------------------------------------------------------------------------------------------------------

_HEADING = "## Results\n"


def write_table(results: Sequence[CheckedOutcome], page: Path) -> None:
    """Write the results below the heading ``Results`` of a page in Markdown. The text above the heading stays."""
    before, _, _ = page.read_text(encoding="utf-8").partition(_HEADING)
    page.write_text("\n".join([before.rstrip("\n"), "", _HEADING, *_tables(results)]) + "\n", encoding="utf-8")


def _tables(results: Sequence[CheckedOutcome]) -> Iterator[str]:
    """Yield the lines of three tables.

    They show counts, each program on each variant, and the reasons for other statuses than ``ok``.
    """
    outcomes = sorted((result.outcome for result in results), key=lambda outcome: outcome.program)
    ways = list(dict.fromkeys(result.outcome.way for result in results))
    counts = Counter((outcome.way, outcome.status) for outcome in outcomes)
    statuses = [status for status in STATUSES if any(counts[way, status] for way in ways)]
    yield from _head("way", *statuses)
    yield from (_row(way, *(str(counts[way, status] or "") for status in statuses)) for way in ways)
    yield ""
    # A program and its variant with gradients share one row: "ok / fallback".
    cells: dict[str, dict[str, list[str]]] = {}
    for outcome in outcomes:
        name = outcome.program.partition(":")[0]
        cells.setdefault(name, {}).setdefault(outcome.way, []).append(outcome.status)
    yield from _head("program", *ways)
    for name, by_way in cells.items():
        yield _row(name, *(" / ".join(dict.fromkeys(by_way.get(way, []))) for way in ways))
    yield ""
    reasons = Counter((outcome.status, outcome.detail) for outcome in outcomes if outcome.status != "ok")
    yield from _head("programs", "ended as", "reason")
    yield from (_row(str(count), status, detail) for (status, detail), count in sorted(reasons.items()))


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield _row(*("---" for _ in names))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"
