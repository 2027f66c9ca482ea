"""Sources of programs: :mod:`fuzz.drawing`, or other program generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from fuzz import drawing, nnsmith_graphs
from fuzz.text import Text


@dataclass(frozen=True)
class Source:
    """Source of programs of a kind.

    Attributes:
        help: the purpose of the kind.
        draw: returns the program of a seed for a frontend.
        is_installed: whether the generator is installed.
    """

    help: str
    draw: Callable[[int, str], Text]
    is_installed: bool = True


SOURCES: Mapping[str, Source] = {
    **{name: Source(kind.help, partial(drawing.draw, name)) for name, kind in drawing.KINDS.items()},
    "nnsmith": Source(
        "graphs that NNSmith makes valid by a solver; pip install nnsmith",
        nnsmith_graphs.draw,
        nnsmith_graphs.IS_INSTALLED,
    ),
}

INSTALLED = [name for name, source in SOURCES.items() if source.is_installed]


def draw(kind: str, seed: int, way: str) -> Text:
    """Return the program of a kind and a seed for a frontend. It is the same each time."""
    return SOURCES[kind].draw(seed, way)
