"""Write files of TorchScript of the wild kinds, and read them without PyTorch: ``python -m script_files``.

    PYTHONPATH=tests python -m script_files --table docs/files_of_torchscript.md --shipped FOLDER

Each file is read in a process where PyTorch cannot be imported. With PyTorch, its graphs are compared with those of
libtorch's importer. A file that ``torchmdla.save`` writes of it must compute the same. ``--shipped`` adds the files of
packages in a folder. ``--rows FILE`` collects the results of several runs, each of which may try some of the kinds.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from script_graphs import compare_file

import torchmdla
from script_files.checking import check_results, check_written
from script_files.kinds import KINDS, Sample, shipped

COLUMNS = ("made", "read without torch", "equal graphs", "written again", "own reader")
HEAD = """# Files of TorchScript

`torchmdla.read` reads files of `torch.jit.save` by its own reader, without PyTorch. This table is of runs of

```
PYTHONPATH=tests python -m script_files --every 7 --table docs/files_of_torchscript.md
```

with torchvision, and the files that the package silero-vad ships in two versions (written for operators of version 3).

A program is written to a file and read in a process where PyTorch cannot be imported. *Equal graphs* are equal to
those of libtorch's importer up to the names of values. A file that is *written again* by `torchmdla.save` is loaded by
PyTorch, and computes the same. *Own reader* is `torchmdla.load(path, reader="own")`, whose results equal PyTorch's.
"""

# Reads each file that it is given on a line, and prints the counts, or why it is refused.
READER = """
import importlib.abc, json, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name, name="torch")
sys.meta_path.insert(0, Refuse())
import torchmdla
for line in sys.stdin:
    try:
        program = torchmdla.read(line.rstrip("\\n"))
        graphs = [graph for class_ in program.classes.values() for graph in class_.methods.values()]
        graphs += program.functions.values()
        nodes = sum(1 for graph in graphs for _ in graph.walk())
        print(json.dumps({"nodes": nodes, "classes": len(program.classes)}), flush=True)
    except torchmdla.ReadError as error:
        print(json.dumps({"refused": error.construct or error.reason, "reason": error.reason}), flush=True)
"""


@dataclass
class Row:
    """Results of one file. An empty text is success; None means that it was not tried."""

    kind: str
    name: str
    nodes: int = 0
    classes: int = 0
    results: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(COLUMNS))


class Reader:
    """Process without PyTorch that reads files."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self, path: Path) -> dict[str, Any]:
        """Return the counts of a file, or the reason of its refusal."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        return result


def main() -> int:
    options = parse_options()
    warnings.simplefilter("ignore")
    steps = {"programs": options.every}
    samples = [sample for kind in options.kind for sample in islice(KINDS[kind](), None, None, steps.get(kind, 1))]
    samples += shipped(options.shipped)
    reader, rows = Reader(), read_rows(options.rows)
    with tempfile.TemporaryDirectory() as folder:
        for sample in samples:
            row = Row(sample.kind, sample.name)
            try_sample(sample, row, Path(folder), reader)
            rows[row.kind, row.name] = row
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(f"{json.dumps(asdict(row))}\n")
            failed = {name: text for name, text in row.results.items() if text}
            if options.verbose or (failed and "made" not in failed):
                print(sample.kind, sample.name, row.nodes, row.classes, failed or "equal", sep=" | ", flush=True)
    text = table_of(rows.values())
    print(text)
    if options.table:
        options.table.write_text(f"{HEAD}\n{text}")
    return int(any(row.results[name] for row in rows.values() for name in COLUMNS[2:]))


def read_rows(file: Path | None) -> dict[tuple[str, str], Row]:
    """Return the results of earlier runs."""
    lines = file.read_text().splitlines() if file and file.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {(row.kind, row.name): row for row in rows}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kind", nargs="*", default=list(KINDS), choices=list(KINDS), help="default: all")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth of torchmdla's programs")
    parser.add_argument("--shipped", nargs="+", type=Path, default=[], metavar="FOLDER", help="folders of packages")
    parser.add_argument("--rows", type=Path, help="add the results to this file, and read those in it")
    parser.add_argument("--table", type=Path, help="write the table to this file")
    parser.add_argument("--verbose", action="store_true", help="print each file")
    return parser.parse_args()


def try_sample(sample: Sample, row: Row, folder: Path, reader: Reader) -> None:
    """Fill a row."""
    path, written = folder / "model.pt", folder / "written.pt"
    inputs: Any = None
    if sample.shipped:
        path = sample.shipped
    else:
        assert sample.make
        try:
            torch.manual_seed(0)
            with torch.random.fork_rng():
                program, inputs = sample.make()
            program.save(str(path))
            torch.jit.load(path)
        except Exception as error:  # PyTorch does not support the program
            row.results["made"] = first_line(error)
            return
    row.results["made"] = ""
    answer = reader.read(path)
    row.nodes, row.classes = answer.get("nodes", 0), answer.get("classes", 0)
    row.results["read without torch"] = answer.get("refused", "")
    if "refused" not in answer:
        row.results["equal graphs"] = attempt(lambda: compare_file(path))
        row.results["written again"] = attempt(lambda: check_written(path, written, inputs))
        if "reader" in inspect.signature(torchmdla.load).parameters:
            load: Any = torchmdla.load
            row.results["own reader"] = attempt(lambda: check_results(path, load(path, reader="own"), inputs))


def attempt(check: Any) -> str:
    """Return the error of a check; empty if it passes."""
    try:
        check()
    except Exception as error:
        return first_line(error) or type(error).__name__
    return ""


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).split("\n") if line.strip()]
    return re.sub(r"/\S*/", "", lines[0])[:160] if lines else type(error).__name__


def table_of(rows: Iterable[Row]) -> str:
    """Return the counts of all kinds, and the programs that failed, as Markdown."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    lines = [f"| kind | {' | '.join(COLUMNS)} | nodes | classes |", f"|---{'|---:' * (len(COLUMNS) + 2)}|"]
    lines += [line_of(kind, kinds[kind]) for kind in kinds]
    lines.append(line_of("all", list(rows)))
    return "\n".join([*lines, "", *failures_of(rows)]) + "\n"


def line_of(kind: str, rows: list[Row]) -> str:
    counts = Counter(name for row in rows for name in COLUMNS if row.results[name] == "")
    tried = Counter(name for row in rows for name in COLUMNS if row.results[name] is not None)
    cells = [str(counts[name]) if name == "made" else f"{counts[name]} of {tried[name]}" for name in COLUMNS]
    cells = [cell if cell != "0 of 0" else "–" for cell in cells]
    return f"| {kind} | {' | '.join(cells)} | {sum(row.nodes for row in rows)} | {sum(row.classes for row in rows)} |"


def failures_of(rows: Iterable[Row]) -> Iterator[str]:
    failed = [(row, name) for row in rows for name in COLUMNS[1:] if row.results[name]]
    if failed:
        yield "| kind | file | step | construct |"
        yield "|---|---|---|---|"
    for row, name in failed:
        construct = str(row.results[name]).replace("|", "\\|")
        yield f"| {row.kind} | {row.name} | {name} | `{construct}` |"


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the reader's process ends with its input
