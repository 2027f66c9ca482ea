"""Dumps of every stage of a compile for debugging (``TORCHMDLA_DUMP=folder``), with a script that repeats it.

Each program has its own subfolder, named by its key. Files are numbered in the order in which they were written.
``progress.txt`` has the name of each stage when it begins, so that its last line shows where a compiler crashed.
``trace.json`` reports the time of each stage.
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


def is_requested() -> bool:
    """Return whether the environment requests dumps of compiles."""
    return bool(os.environ.get(VARIABLE))


def folder_of(key: str) -> Path | None:
    """Return the folder of the program ``key``; None if dumps are off."""
    return Path(os.environ[VARIABLE]) / key[:16] if is_requested() else None


class Dump:
    """Files of one compile."""

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
        """Note that a stage begins."""
        with (self._folder / "progress.txt").open("a", encoding="utf-8") as file:
            file.write(f"{stage}\n")

    def write(self, name: str, text: str | bytes, series: str = "") -> None:
        """Write the output of a stage, unless it equals the last output of the ``series``.

        The extension of ``name`` shows the format: ``linalg.mlir``.
        """
        content = text.encode() if isinstance(text, str) else text
        if series and self._last.get(series) == content:
            return
        self._last[series] = content
        (self._folder / f"{self._count:03}-{name}").write_bytes(content)
        self._count += 1


_current: ContextVar[Dump | None] = ContextVar("dump", default=None)


@contextmanager
def dump_stages(program: Program, folder: Path | None = None) -> Iterator[None]:
    """Dump all stages of this thread's compile of ``program`` to ``folder``, or to the folder of the environment."""
    # The key is a hash of the whole program, so it is computed only if needed.
    if folder is None and is_requested():
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
    """Return whether the stages of the current compile are dumped."""
    return _current.get() is not None


def begin(stage: str) -> None:
    """Note that a stage of the current compile begins."""
    if dump := _current.get():
        dump.begin(stage)


def write(name: str, text: Callable[[], str | bytes], series: str = "") -> None:
    """Write the output of a stage of the current compile, as :meth:`Dump.write` does, if dumps are on."""
    if dump := _current.get():
        dump.write(name, text(), series)
