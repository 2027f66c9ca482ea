"""Where programs come from: our own drawing, or other programs that make some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from fuzz import drawing, nnsmith_graphs
from fuzz.text import Text


@dataclass(frozen=True)
class Source:
    """Programs of a kind: what is looked for, what draws one of a seed for a way, and whether it is installed."""

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
    """The program of a kind and a seed for a way; the same each time."""
    return SOURCES[kind].draw(seed, way)
