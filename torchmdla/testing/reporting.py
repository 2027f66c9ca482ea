"""Tables of a run for a terminal, and its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchmdla.report.environment import environment
from torchmdla.report.page import SHARED_SCRIPTS, fill_page
from torchmdla.report.rendering import count_text
from torchmdla.testing.baseline import Changes
from torchmdla.testing.checking import STATUSES
from torchmdla.testing.runner import CheckedOutcome
from torchmdla.testing.score import DEFINITION, Score, WayScore, failure_of, is_right

# Most rows of the tables of reasons and of improvements, and most reasons of an operator. The page and JSON have all.
_MOST_ROWS, _MOST_REASONS = 20, 3

_NO_SAMPLE = "it does not have a sample"


def print_tables(results: Sequence[CheckedOutcome], score: Score, console: Console) -> None:
    """Print the tables of a run."""
    for table in (
        _statuses(results),
        _ways(score.ways),
        _operators(score),
        _counts("programs that fell back, by reason", _fallbacks(results)),
        _counts("programs in which a declared operator did not run on the device, by reason", score.reasons),
    ):
        if table.row_count:
            console.print(table, markup=False)


def print_changes(changes: Changes, console: Console) -> None:
    """Print the changes since a baseline."""
    for kind, entries in (("improved", changes.improvements[:_MOST_ROWS]), ("regressed", changes.regressions)):
        for entry in entries:
            console.print(f"{kind}: {entry}", markup=False, soft_wrap=True)
    regressed, improved = len(changes.regressions), len(changes.improvements)
    console.print(f"since the baseline: {count_text(regressed, 'regression')}, {count_text(improved, 'improvement')}")


def _statuses(results: Sequence[CheckedOutcome]) -> Table:
    ways = list(dict.fromkeys(result.outcome.way for result in results))
    count = Counter((result.outcome.way, result.outcome.status) for result in results)
    unexpected = Counter(result.outcome.way for result in results if not result.expected)
    seen = [status for status in STATUSES if any(count[way, status] for way in ways)]
    rows = [[way, *(count[way, status] for status in seen), unexpected[way]] for way in ways]
    return _table("programs by what they ended as", ["way", *seen, "unexpected"], rows)


def _ways(ways: Mapping[str, WayScore]) -> Table:
    columns = [field.name.replace("_", " ") for field in fields(WayScore)]
    return _table(
        "programs on the device, without samples", ["way", *columns], [[way, *astuple(ways[way])] for way in ways]
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Return a table whose first column is a name and whose others are numbers, with their sums below."""
    table = Table(title=title, show_footer=len(rows) > 1)
    table.add_column(columns[0], footer="all", no_wrap=True)
    for number, name in enumerate(columns[1:], 1):
        table.add_column(name, str(sum(row[number] for row in rows)), justify="right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _operators(score: Score) -> Table:
    table = Table(title="declared operators with samples that are not right on the device")
    for name in ("samples", "compiled", "right"):
        table.add_column(name, justify="right")
    table.add_column("operator", overflow="fold")
    table.add_column("reason", overflow="fold")
    for op, entry in score.operators.items():
        if entry.right < entry.samples or not entry.samples:
            reasons = [f"{reason} ({count})" for reason, count in entry.reasons.items()] or [_NO_SAMPLE]
            rest = len(reasons) - _MOST_REASONS
            shown = reasons[:_MOST_REASONS] + ([f"{rest} other reasons"] if rest > 0 else [])
            table.add_row(str(entry.samples), str(entry.compiled), str(entry.right), op, "\n".join(shown))
    return table


def _counts(title: str, counts: Mapping[str, int]) -> Table:
    table = Table(title=title)
    table.add_column("programs", justify="right")
    table.add_column("reason", overflow="fold")
    for reason, count in list(counts.items())[:_MOST_ROWS]:
        table.add_row(str(count), reason)
    return table


def _fallbacks(results: Sequence[CheckedOutcome]) -> dict[str, int]:
    return dict(Counter(reason for result in results for reason in result.outcome.fallbacks).most_common())


# --- the page -----------------------------------------------------------------------------------------------------

_FOLDER = Path(__file__).parent


def write_page(results: Sequence[CheckedOutcome], score: Score, changes: Changes | None, file: Path) -> None:
    """Write a run as one HTML file.

    Raises:
        OSError: the file cannot be written.
    """
    data = {
        "score": score.to_dict(),
        "line": str(score),
        "definition": DEFINITION,
        "ways": [field.name for field in fields(WayScore)],
        "changes": None if changes is None else {"regressed": changes.regressions, "improved": changes.improvements},
        "programs": list(_programs(results)),
        "environment": environment(),
    }
    scripts = [*SHARED_SCRIPTS, _FOLDER / "score_page.js"]
    text = fill_page(_FOLDER / "score_page.html", f"score of {score.device} - torchmdla", data, scripts)
    file.write_text(text, encoding="utf-8")


def _programs(results: Sequence[CheckedOutcome]) -> Iterator[list[Any]]:
    """Yield the columns of each program."""
    for result in results:
        outcome = result.outcome
        left_out = [f"{op}: {reason}" for op, reason in outcome.operators.items() if reason]
        reasons = dict.fromkeys(filter(None, (result.reason, failure_of(outcome), *outcome.fallbacks, *left_out)))
        yield [
            outcome.program,
            outcome.way,
            outcome.status if result.expected else f"{outcome.status}, unexpected",
            outcome.groups,
            outcome.specialisations,
            outcome.compiled_calls,
            "yes" if is_right(outcome) else "no",
            list(reasons),
        ]
