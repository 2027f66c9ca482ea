"""Search for programs that fail: programs of consecutive seeds run until the time is up, and failures are reduced."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from fuzz import cases
from fuzz.drawing import draw_frontend
from fuzz.shrinking import Shrinking, shrunk
from fuzz.text import Input, Text
from torchmdla.testing.checking import Outcome
from torchmdla.testing.runner import CheckedOutcome, Job, run

# Statuses that are faults. A program that eager does not run is badly drawn. A program that falls back is correct.
FAULTS = frozenset({"wrong", "error", "crash", "time-out", "not compiled"})


@dataclass(frozen=True)
class Options:
    """Options of a run.

    Attributes:
        kinds: kinds of programs, as in :data:`fuzz.sources.SOURCES`.
        ways: frontends. If it is empty, the seed determines the frontend.
        seed: the first seed. The others follow it.
        count: the largest number of programs. None means no limit.
        seconds: the time after which no program starts. None means no limit.
        folder: the folder of the findings.
        small: whether findings are reduced.
    """

    kinds: Sequence[str]
    ways: Sequence[str]
    seed: int
    count: int | None
    seconds: float | None
    device: str
    options: str
    processes: int
    timeout: float
    folder: Path
    small: bool = True


@dataclass(frozen=True)
class Finding:
    """Program that fails."""

    name: str
    text: Text
    outcome: Outcome


class Hunt:
    """Run over many programs. :attr:`counts` has the number of each status, and :attr:`findings` the written files."""

    def __init__(self, options: Options, folder: Path, report: Callable[[str], None] = print) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.findings: list[Path] = []
        self._options, self._folder, self._report = options, folder, report
        self._begin = monotonic()
        self._drawn = 0
        self._waiting: deque[Finding] = deque()
        self._shrinking: _Shrinking | None = None
        self._known: set[str] = set()

    def run(self) -> Iterator[float]:
        """Run the programs and repeatedly yield the fraction of the work that is done."""
        for event in run(self._jobs(), self._options.processes, self._options.timeout):
            if isinstance(event, CheckedOutcome):
                self._judge(event.outcome)
            yield self._part()

    def _part(self) -> float:
        parts = [0.0]
        if self._options.seconds:
            parts.append((monotonic() - self._begin) / self._options.seconds)
        if self._options.count:
            parts.append(self._drawn / self._options.count)
        return min(1.0, max(parts))

    def _jobs(self) -> Iterator[Job | None]:
        while True:
            if self._shrinking is None and self._waiting:
                self._shrinking = self._begun(self._waiting.popleft())
            candidate = self._shrinking.next() if self._shrinking else None
            if candidate is not None:
                yield candidate
            elif self._part() < 1 or self._drawn == 0:
                yield self._next_drawn()
            elif self._shrinking or self._waiting:
                yield None
            else:
                return

    def _next_drawn(self) -> Job:
        options = self._options
        seed = options.seed + self._drawn
        self._drawn += 1
        kind = options.kinds[seed % len(options.kinds)]
        way = options.ways[seed // len(options.kinds) % len(options.ways)] if options.ways else draw_frontend(seed)
        return cases.job(f"{kind}/{way}/{seed}", way, options.device, options.options)

    def _judge(self, outcome: Outcome) -> None:
        if self._shrinking and self._shrinking.take(outcome):
            if self._shrinking.result is not None:
                self._write(self._shrinking.result)
                self._shrinking = None
            return
        self.counts[outcome.status] += 1
        self.reasons.update(outcome.fallbacks.keys())
        if outcome.status in FAULTS:
            text = _text_of(outcome.program)
            if text is None:
                self.counts["eager crashed"] += 1
                return
            finding = Finding(outcome.program, text, outcome)
            self._report(f"{outcome.status}: {outcome.program}: {outcome.detail}"[:400])
            if self._options.small:
                self._waiting.append(finding)
            else:
                self._write(finding)

    def _begun(self, finding: Finding) -> _Shrinking:
        return _Shrinking(finding, self._folder, self._options)

    def _write(self, finding: Finding) -> None:
        # Reduced findings are often equal except for sizes and names of values.
        essence = re.sub(r"\b([vxi])\d+\b", r"\1", "\n".join([*finding.text.body, _way_of_failing(finding.outcome)]))
        if essence in self._known:
            return
        self._known.add(essence)
        kind, way, seed = finding.name.split("/")
        path = self._options.folder / f"{kind}_{way.partition(':')[2]}_{seed}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        summary = f"{finding.outcome.status}: {finding.outcome.detail}".replace("\\", "/").replace('"""', "'")
        path.write_text(
            f'"""Drawn as {finding.name}, made small.\n\n{summary}\n"""\n\n{finding.text}', encoding="utf-8"
        )
        self.findings.append(path)
        self._report(f"written: {path}")


class _Shrinking:
    """Reduction of a finding, one candidate at a time."""

    def __init__(self, finding: Finding, folder: Path, options: Options) -> None:
        self.result: Finding | None = None
        self._best, self._folder, self._options = finding, folder, options
        self._steps: Shrinking = shrunk(finding.text)
        self._count = 0
        self._candidate: Text | None = next(self._steps)
        self._in_flight: str | None = None

    def next(self) -> Job | None:
        """Return the next program to try, or None while one is running."""
        if self._in_flight is not None or self._candidate is None:
            return None
        path = self._folder / f"candidate_{id(self)}_{self._count}.py"
        self._count += 1
        path.write_text(str(self._candidate), encoding="utf-8")
        self._in_flight = str(path)
        return cases.job(str(path), self._candidate.way, self._options.device, self._options.options)

    def take(self, outcome: Outcome) -> bool:
        """Use the outcome if it is of the current candidate, and return whether it is."""
        if outcome.program != self._in_flight:
            return False
        assert self._candidate is not None
        Path(self._in_flight).unlink()
        self._in_flight = None
        fails = _way_of_failing(outcome) == _way_of_failing(self._best.outcome)
        if fails:
            self._best = Finding(self._best.name, self._candidate, outcome)
        try:
            self._candidate = self._steps.send(fails)
        except StopIteration:
            self._candidate, self.result = None, self._best
        return True


def _way_of_failing(outcome: Outcome) -> str:
    """Return the property that a reduction preserves, such as differing values or strides, but not their place."""
    match = re.search(
        r"raises|elements of|strides|dtype|sizes|sharing|requires_grad|length|was expected", outcome.detail
    )
    return f"{outcome.status} {match[0] if match else ''}"


def _text_of(name: str) -> Text | None:
    """Return the program of a seed, or None if it cannot be drawn.

    It is drawn in a separate process, because drawing runs eager, which may crash.
    """
    script = (
        "import json, sys; from dataclasses import asdict; from fuzz.sources import draw; "
        "kind, way, seed = sys.argv[1].split('/'); print(json.dumps(asdict(draw(kind, int(seed), way))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, name], capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    if done.returncode:
        return None
    return read(json.loads(done.stdout.splitlines()[-1]))


def read(entry: dict[str, object]) -> Text:
    """Return a text from its dictionary, which ``asdict`` created."""
    fields: dict[str, object] = {
        name: tuple(tuple(item) if isinstance(item, list) else item for item in value)
        if isinstance(value, list)
        else value
        for name, value in entry.items()
    }
    fields["inputs"] = tuple(Input(**arguments) for arguments in entry["inputs"])  # type: ignore[attr-defined]
    return Text(**fields)  # type: ignore[arg-type]
