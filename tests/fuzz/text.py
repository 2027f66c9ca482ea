"""A program as text: what is drawn, written to files, made small, and run."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import ModuleType
from typing import Any

from torchmdla.testing.programs import Program
from torchmdla.testing.programs.program import constantly

HEAD = """\
from typing import List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from torchmdla.testing.programs.inputs import *
"""

_numbers = count()


@dataclass(frozen=True)
class Input:
    """One argument: its name, its type in TorchScript, and what draws it, in terms of ``n`` and ``m``."""

    name: str
    draw: str
    type: str = "Tensor"


@dataclass(frozen=True)
class Text:
    """A program at a series of sizes.

    Attributes:
        way: ``frontend:variant``, as in :mod:`torchmdla.testing.frontends`.
        inputs: its arguments.
        body: its statements, each a line or several.
        results: what it returns, expressions.
        sizes: ``n`` and ``m`` of each call.
        mode: as of :class:`torchmdla.testing.programs.Program`.
        rewritten: the statements that the frontend is given in place of ``body``; empty: ``body``.
    """

    way: str
    inputs: tuple[Input, ...]
    body: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    mode: str = "inference"
    rewritten: tuple[str, ...] = ()

    def __str__(self) -> str:
        draws = "".join(f"{one.draw}, " for one in self.inputs)
        parts = [
            HEAD,
            f"WAY = {self.way!r}",
            f"MODE = {self.mode!r}",
            f"SIZES = {list(self.sizes)}",
            f"\n\ndef inputs(n: int, m: int):\n    return ({draws.rstrip()})",
            self._function("program", self.body),
        ]
        if self.rewritten:
            parts.append(self._function("rewritten", self.rewritten))
        return "\n".join(parts) + "\n"

    def _function(self, name: str, body: Sequence[str]) -> str:
        arguments = ", ".join(f"{one.name}: {one.type}" for one in self.inputs)
        lines = [line for statement in body for line in statement.splitlines()]
        lines.append(f"return {', '.join(self.results)}")
        return f"\n\ndef {name}({arguments}):\n" + "\n".join(f"    {line}" for line in lines)

    def on(self, way: str) -> Text:
        """The same on another way."""
        return replace(self, way=way)


def module_of(source: str, name: str = "drawn") -> ModuleType:
    """The module of a program's text; TorchScript finds its source."""
    file = f"<{name} {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    module = ModuleType(name)
    module.__file__ = file
    exec(compile(source, file, "exec"), module.__dict__)
    return module


# Sums that stand behind a result, at most: see torchmdla.testing.compare.
_LAYERS = 8


def program_of(module: Any, name: str) -> Program:
    """The program of a module made of a text, or of a file that holds one."""
    series = tuple(module.inputs(*sizes) for sizes in module.SIZES)
    other: Callable[..., Any] | None = getattr(module, "rewritten", None)
    return Program(
        name,
        constantly(module.program),
        series[0],
        layers=_LAYERS,
        mode=module.MODE,
        series=series,
        rewritten=constantly(other) if other else None,
        in_doubt=True,
    )
