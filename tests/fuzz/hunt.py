"""Runs programs of one seed after the other until the time is up, and makes small what fails."""

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
from fuzz.drawing import way_of
from fuzz.shrinking import Shrinking, shrunk
from fuzz.text import Input, Text
from torchmdla.testing.checking import Outcome
from torchmdla.testing.runner import Job, Judged, run

# What is a fault. A program that eager does not run is drawn badly, one that falls back is right.
FAULTS = frozenset({"wrong", "error", "crash", "time-out", "not compiled"})


@dataclass(frozen=True)
class Options:
    """What is run, and for how long.

    Attributes:
        kinds: of programs, as in :data:`fuzz.sources.SOURCES`.
        ways: where; empty: drawn by seed.
        seed: the first one; the others follow it.
        count: programs at most; None: no limit.
        seconds: after which no program is begun; None: no limit.
        found: the folder for what is found.
        small: whether what is found is made small.
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
    found: Path
    small: bool = True


@dataclass(frozen=True)
class Finding:
    """A program that fails."""

    name: str
    text: Text
    outcome: Outcome


class Hunt:
    """One run. :attr:`counts` says what programs ended as, :attr:`findings` what was found."""

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
        """Runs; yields from time to time which part of the work is done."""
        for event in run(self._jobs(), self._options.processes, self._options.timeout):
            if isinstance(event, Judged):
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
        way = options.ways[seed // len(options.kinds) % len(options.ways)] if options.ways else way_of(seed)
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
        # Names of values and sizes aside, what is left of two findings is often the same.
        essence = re.sub(r"\b([vxi])\d+\b", r"\1", "\n".join([*finding.text.body, _way_of_failing(finding.outcome)]))
        if essence in self._known:
            return
        self._known.add(essence)
        kind, way, seed = finding.name.split("/")
        path = self._options.found / f"{kind}_{way.partition(':')[2]}_{seed}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        said = f"{finding.outcome.status}: {finding.outcome.detail}".replace("\\", "/").replace('"""', "'")
        path.write_text(f'"""Drawn as {finding.name}, made small.\n\n{said}\n"""\n\n{finding.text}', encoding="utf-8")
        self.findings.append(path)
        self._report(f"written: {path}")


class _Shrinking:
    """A finding that is being made small, one candidate at a time."""

    def __init__(self, finding: Finding, folder: Path, options: Options) -> None:
        self.result: Finding | None = None
        self._best, self._folder, self._options = finding, folder, options
        self._steps: Shrinking = shrunk(finding.text)
        self._count = 0
        self._candidate: Text | None = next(self._steps)
        self._in_flight: str | None = None

    def next(self) -> Job | None:
        """The next program to try; None while one is running."""
        if self._in_flight is not None or self._candidate is None:
            return None
        path = self._folder / f"candidate_{id(self)}_{self._count}.py"
        self._count += 1
        path.write_text(str(self._candidate), encoding="utf-8")
        self._in_flight = str(path)
        return cases.job(str(path), self._candidate.way, self._options.device, self._options.options)

    def take(self, outcome: Outcome) -> bool:
        """Whether the outcome is of a program of this one."""
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
    """What stays while a program is made small: that values differ, or strides, not where."""
    found = re.search(
        r"raises|elements of|strides|dtype|sizes|sharing|requires_grad|length|was expected", outcome.detail
    )
    return f"{outcome.status} {found[0] if found else ''}"


def _text_of(name: str) -> Text | None:
    """The program of a seed, drawn in a process of its own: eager, which draws, may be what crashes."""
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
    """A text from what ``asdict`` made of it."""
    fields: dict[str, object] = {
        name: tuple(tuple(item) if isinstance(item, list) else item for item in value)
        if isinstance(value, list)
        else value
        for name, value in entry.items()
    }
    fields["inputs"] = tuple(Input(**one) for one in entry["inputs"])  # type: ignore[attr-defined]
    return Text(**fields)  # type: ignore[arg-type]
