"""Check the words of the Python sources: docstrings, comments and names. ``make lint`` runs it.

A docstring's first word must not be a preposition or a relative pronoun, a few phrases have a plainer form, and a
variable is named by a noun (CONTRIBUTING.md). Without ``--list`` only the counts by folder are printed.

    python tests/words.py torchmdla --list
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

FIRST_WORD = re.compile(
    r"\W*(of|as|at|by|with|those|in|for|to|from|within|without|behind|on|lets|has"
    r"|what|how|where|which|who|whoever|whatever|when|whether|whose|that)\b",
    re.IGNORECASE,
)
# A phrase, and the words to take in its place.
PHRASES = {
    re.compile(pattern, re.IGNORECASE): advice
    for pattern, advice in {
        r"\b(is|are|was|were) no\b(?! (longer|more|less))|\b(is|are) (?-i:none)\b": "is not a, does not have",
        r"\b(nobody|somebody|anybody|whoever)\b": "the caller, the component by its name",
        r"\b(lies?|stands?) (in|at|behind|before|beside|there|apart|on)\b": "is stored in, is at",
        r"\b(says?|said|tells?|told)\b": "specifies, reports, determines",
    }.items()
}
VARIABLES = re.compile(r"found|one|made|own|by|given|kept|said")


@dataclass(frozen=True)
class Remark:
    """A place whose words are to be changed."""

    file: Path
    line: int
    kind: str
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("torchmdla")], help="files or folders (torchmdla)")
    parser.add_argument("--list", action="store_true", help="print each place")
    options = parser.parse_args()
    files = [file for path in options.paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py*")))]
    remarks = [remark for file in files if file.suffix in (".py", ".pyi") for remark in remarks_of(file)]
    if options.list:
        for remark in remarks:
            print(f"{remark.file}:{remark.line}: {remark.kind}: {remark.text}")
    elif remarks:
        show(remarks)
    return int(bool(remarks))


def remarks_of(file: Path) -> Iterator[Remark]:
    source = file.read_text()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from remarks_of_docstring(file, node)
        if isinstance(node, ast.Name | ast.arg):
            name = node.id if isinstance(node, ast.Name) else node.arg
            if VARIABLES.fullmatch(name) and (isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store)):
                yield Remark(file, node.lineno, "variable", name)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from remarks_of_text(file, token.start[0], token.string)


def remarks_of_docstring(
    file: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[Remark]:
    text = ast.get_docstring(node, clean=False)
    if not text:
        return
    line = node.body[0].lineno
    if FIRST_WORD.match(text):
        yield Remark(file, line, "first word", text.strip().split("\n")[0])
    yield from remarks_of_text(file, line, text)


def remarks_of_text(file: Path, line: int, text: str) -> Iterator[Remark]:
    for number, part in enumerate(text.split("\n")):
        for phrase, advice in PHRASES.items():
            if match := phrase.search(part):
                yield Remark(file, line + number, f"“{match[0]}” ({advice})", part.strip())


def show(remarks: list[Remark]) -> None:
    """Print how many places of each kind a folder has."""
    counts: dict[str, Counter[str]] = {}
    for remark in remarks:
        folder = "/".join(remark.file.parts[:3] if len(remark.file.parts) > 3 else remark.file.parts[:2])
        counts.setdefault(folder, Counter())[re.sub(r"^“.*” ", "", remark.kind)] += 1
    kinds = sorted({kind for counter in counts.values() for kind in counter})
    table = Table("folder", *kinds)
    for folder, counter in counts.items():
        table.add_row(folder, *(str(counter[kind]) for kind in kinds))
    table.add_row("all", *(str(sum(counter[kind] for counter in counts.values())) for kind in kinds))
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
