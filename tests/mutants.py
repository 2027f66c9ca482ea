"""Count how many random one-line changes of the compiler the tests notice: ``make mutants ARGS="--count 20"``.

A mutant is a place of ``torchmdla/devices/cpu``, ``importer`` or ``capture`` that an operator of Cosmic Ray changes:
another binary operator or comparison, a number plus or minus one, ``and`` for ``or``, a loop without iterations. Each
is written into a copy of the repository in ``build/mutants``, where the tests run until one fails: first those of the
mutant's folder, then all others but tests/cxx. A run that takes too long counts as a failure. Changes of annotations
are not drawn.

Results are written to ``build/mutants/results.jsonl``, a line for each mutant. ``--again FILE`` runs the mutants that
survived there once more, for instance by ``--rows all``, and writes ``again.jsonl``: tests that are a part of others
notice no mutant that these do not.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants" / "tree"
RESULTS = ROOT / "build" / "mutants" / "results.jsonl"
AGAIN = RESULTS.with_name("again.jsonl")

# Folders of the package, and the tests that are most likely to notice a change there.
SUBJECTS = {
    "torchmdla/devices/cpu": ("tests/cpu",),
    "torchmdla/importer": ("tests/importer", "tests/group"),
    "torchmdla/capture": ("tests/fx", "tests/group"),
}

# Operators that mostly make programs which compute the same, or take arguments.
LEFT_OUT = ("core/RemoveDecorator", "core/VariableReplacer", "core/VariableInserter", "core/ExceptionReplacer")


@dataclass(frozen=True)
class Mutant:
    """A change of one place. ``occurrence``: the place among those that the operator changes in the file."""

    file: str
    operator: str
    occurrence: int

    def code(self, source: str) -> str:
        """Return the changed source."""
        changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        assert isinstance(changed, str)
        return changed


@dataclass(frozen=True)
class Outcome:
    """The end of a mutant. ``noticed``: the test that failed first, None if it survived."""

    mutant: Mutant
    change: str
    noticed: str | None
    seconds: float


def main() -> int:
    options = parse_options()
    copy_repository()
    if options.again:
        mutants = survivors(options.again)
    else:
        mutants = draw(options.count, random.Random(options.seed))
        if (failed := first_failure(tuple(SUBJECTS), options)) is not None:
            sys.exit(f"{failed} fails without a change: mend it first")
    results = AGAIN if options.again else RESULTS
    results.unlink(missing_ok=True)
    outcomes = []
    for number, mutant in enumerate(mutants, 1):
        outcome = run(mutant, options)
        outcomes.append(outcome)
        with results.open("a") as file:
            print(json.dumps(asdict(outcome)), file=file)
        print(
            f"{number}/{len(mutants)} {mutant.file}: {outcome.noticed or 'survived'}, {outcome.seconds:.0f} s",
            flush=True,
        )
    show(outcomes)
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="mutants to draw (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (%(default)s)")
    parser.add_argument("--rows", default="sampled", help="of the tests, as pytest's --rows (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (%(default)s)")
    parser.add_argument("--minutes", type=float, default=30, help="that the tests may take (%(default)s)")
    parser.add_argument("--near", action="store_true", help="only the tests of the mutant's folder")
    parser.add_argument("--again", type=Path, metavar="FILE", help="the survivors of these results, none drawn")
    return parser.parse_args()


def copy_repository() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(
        ROOT,
        COPY,
        ignore=shutil.ignore_patterns(".venv", "build", "__pycache__", ".*_cache", ".hypothesis"),
        symlinks=True,
    )


def survivors(results: Path) -> list[Mutant]:
    outcomes = map(json.loads, results.read_text().splitlines())
    return [Mutant(**outcome["mutant"]) for outcome in outcomes if outcome["noticed"] is None]


def draw(count: int, random: random.Random) -> list[Mutant]:
    """Return mutants of files that are drawn by their length."""
    files = [file for subject in SUBJECTS for file in sorted((ROOT / subject).rglob("*.py"))]
    lengths = [file.stat().st_size for file in files]
    drawn: dict[Mutant, None] = {}
    while len(drawn) < count:
        (file,) = random.choices(files, lengths)
        source = file.read_text()
        places = places_of(str(file.relative_to(ROOT)), source)
        if places:
            mutant = random.choice(random.choice(places))
            if syntax_tree(mutant.code(source)) not in (None, syntax_tree(source)):
                drawn[mutant] = None
    return list(drawn)


def places_of(file: str, source: str) -> list[list[Mutant]]:
    """Return the mutants of each place of a file: some operators change a place in ten ways, others in one."""
    nodes = list(ast_nodes(get_ast(source)))
    places: dict[tuple[int, int], list[Mutant]] = {}
    for name in operator_names():
        if name in LEFT_OUT:
            continue
        operator = get_operator(name)()
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(starts):
            places.setdefault(start, []).append(Mutant(file, name, occurrence))
    return list(places.values())


def syntax_tree(source: str) -> str | None:
    """Return the syntax tree as text, without annotations, which are not evaluated; None where it is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if hasattr(node, field):
                setattr(node, field, ast.Constant(None))
    return ast.dump(tree)


def run(mutant: Mutant, options: argparse.Namespace) -> Outcome:
    """Run the tests on a mutant until one fails."""
    start = time.monotonic()
    file = COPY / mutant.file
    source = file.read_text()
    changed = mutant.code(source)
    near = next(subject for subject in SUBJECTS if mutant.file.startswith(subject))
    file.write_text(changed)
    try:
        noticed = first_failure((near,), options)
    finally:
        file.write_text(source)
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")
    change = "\n".join(line for line in lines if not line.startswith(("---", "+++")))
    return Outcome(mutant, change, noticed, time.monotonic() - start)


def first_failure(near: tuple[str, ...], options: argparse.Namespace) -> str | None:
    """Return the test of the copy that fails first, or the end of the output where none could run."""
    folders = dict.fromkeys(folder for subject in near for folder in SUBJECTS[subject])
    others = [f"--ignore={folder}" for folder in (*folders, "tests/cxx")]
    failed = pytest([*folders], options)
    return failed if failed or options.near else pytest(["tests", *others], options)


def pytest(arguments: list[str], options: argparse.Namespace) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", str(options.jobs), "--dist", "worksteal"]
    command += ["--rows", options.rows, "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(COPY)}
    try:
        done = subprocess.run(
            command, cwd=COPY, env=environment, capture_output=True, text=True, timeout=60 * options.minutes
        )
    except subprocess.TimeoutExpired:
        return "time-out"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return None if done.returncode == 0 else failed[1] if failed else done.stdout[-200:]


def show(outcomes: list[Outcome]) -> None:
    table = Table(title="Mutants")
    for column in ("folder", "mutants", "noticed"):
        table.add_column(column, justify="left" if column == "folder" else "right")
    for subject in SUBJECTS:
        ended = [outcome for outcome in outcomes if outcome.mutant.file.startswith(subject)]
        table.add_row(subject, str(len(ended)), str(sum(outcome.noticed is not None for outcome in ended)))
    console = Console(highlight=False)
    console.print(table)
    for outcome in outcomes:
        if outcome.noticed is None:
            console.print(f"survived: {outcome.mutant.file}\n{outcome.change}\n", markup=False)


if __name__ == "__main__":
    sys.exit(main())
