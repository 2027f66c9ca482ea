"""Programs for :mod:`torchmdla.testing.runner`, by the seed from which a program is drawn, or by a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fuzz.sources import draw
from fuzz.text import module_of, program_of
from torchmdla.testing.programs import Program
from torchmdla.testing.runner import Job


def programs(name: str, seed: int, limit: int | None) -> Iterator[Program]:
    """Yield the program of ``KIND/WAY/SEED``, or of a file."""
    if name.endswith(".py"):
        source = Path(name).read_text(encoding="utf-8")
    else:
        kind, way, number = name.split("/")
        source = str(draw(kind, int(number), way))
    yield program_of(module_of(source), name)


def job(name: str, way: str, device: str, options: str = "") -> Job:
    """Return the job that runs the program of a name."""
    return Job(__name__, name, way, device, options=options)


def job_of(path: Path, device: str = "cpu", options: str = "") -> Job:
    """Return the job that runs the program of a file with the frontend that the file specifies."""
    return job(str(path), module_of(path.read_text(encoding="utf-8")).WAY, device, options)
