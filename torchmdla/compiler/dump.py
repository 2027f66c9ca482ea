"""``TORCHMDLA_DUMP=folder``: what every stage of a compile made, for people to read, and a script that repeats it.

Each program has a folder of its own there, named by its key. Files are numbered in the order in which they were
written; ``progress.txt`` names each stage when it begins, so that the last line says where a compiler died;
``trace.json`` tells how long each took.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torchmdla.compiler.program import Program
from torchmdla.support import trace

VARIABLE = "TORCHMDLA_DUMP"

_REPEAT = '''\
"""Repeats this compile alone, in this process: ``python repeat.py``."""

import argparse
from dataclasses import replace
from pathlib import Path

from torchmdla.compile_service.lower import lower
from torchmdla.compiler.program import Program

parser = argparse.ArgumentParser(description="Repeats a compile alone, in this process.")
parser.add_argument(
    "--option", action="append", default=[], metavar="NAME=FILE", help="compile with this option, whose value is a file"
)
given = (option.partition("=") for option in parser.parse_args().option)
options = tuple((name, Path(file).read_text()) for name, _, file in given)
program = Program.from_json(Path(__file__).with_name("program.json").read_text())
program = replace(program, options=(*program.options, *options))
artifact = lower(program)
print(f"{len(artifact.object_code)} bytes of code, {artifact.manifest.statistics}")
'''


def is_asked_for() -> bool:
    """Whether the environment asks for compiles to be written."""
    return bool(os.environ.get(VARIABLE))


def folder_of(key: str) -> Path | None:
    """Where the program ``key`` is written; None where nothing is."""
    return Path(os.environ[VARIABLE]) / key[:16] if is_asked_for() else None


class Dump:
    """The files of one compile."""

    def __init__(self, folder: Path, program: Program) -> None:
        self._folder = folder
        self._count = 0
        self._last: dict[str, bytes] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.is_file():
                old.unlink()
        (folder / "program.json").write_text(program.to_json(), encoding="utf-8")
        (folder / "repeat.py").write_text(_REPEAT, encoding="utf-8")

    def begin(self, stage: str) -> None:
        """Notes that a stage begins."""
        with (self._folder / "progress.txt").open("a", encoding="utf-8") as file:
            file.write(f"{stage}\n")

    def write(self, name: str, text: str | bytes, series: str = "") -> None:
        """Writes what a stage made, unless it is what was written last of the ``series``.

        ``name`` has the ending that says what it is: ``linalg.mlir``.
        """
        content = text.encode() if isinstance(text, str) else text
        if series and self._last.get(series) == content:
            return
        self._last[series] = content
        (self._folder / f"{self._count:03}-{name}").write_bytes(content)
        self._count += 1


_current: ContextVar[Dump | None] = ContextVar("dump", default=None)


@contextmanager
def dumping(program: Program, folder: Path | None = None) -> Iterator[None]:
    """Has everything that this thread makes of ``program`` written: to ``folder``, or where the environment asks."""
    # The key is a hash of the whole program: not for nothing.
    if folder is None and is_asked_for():
        folder = folder_of(program.key)
    if folder is None:
        yield
        return
    dump = Dump(folder, program)
    for k in range(len(program.samples)):
        dump.write(f"torch-sample{k}.mlir", program.sample(k).mlir)
    if not program.samples:
        dump.write("torch.mlir", program.mlir)
    token = _current.set(dump)
    try:
        with trace.recording() as spans:
            yield
    finally:
        _current.reset(token)
        (folder / "trace.json").write_text(trace.chrome_trace(spans), encoding="utf-8")


def is_on() -> bool:
    """Whether what the stages of the compile under way make is written."""
    return _current.get() is not None


def begin(stage: str) -> None:
    """Notes that a stage of the compile under way begins."""
    if dump := _current.get():
        dump.begin(stage)


def write(name: str, text: Callable[[], str | bytes], series: str = "") -> None:
    """Writes what a stage of the compile under way made, as :meth:`Dump.write` does, if anything is written."""
    if dump := _current.get():
        dump.write(name, text(), series)
