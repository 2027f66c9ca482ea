"""Results that print as tables."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


class Printable:
    """Base class of results that print as a table, on a terminal and as text."""

    def table(self) -> Table:
        raise NotImplementedError

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=120).print(self.table())
        return out.getvalue()


def new_table(title: str, *names: str) -> Table:
    """Return a table without rows; its first three columns are text, the others numbers."""
    table = Table(title=title)
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < 3 else "right", overflow="fold")
    return table


def sizes_text(shape: Sequence[int]) -> str:
    """Return sizes as text such as ``"1x3x224x224"``."""
    return "x".join(map(str, shape))
