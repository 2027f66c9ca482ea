"""A program as text: what is drawn, written to files, made small, and run."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from types import ModuleType
from typing import Any

import torch

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
        parameters: of a program in training, arguments behind the others that its steps change.
        options: of :func:`torchmdla.enable`.
        environment: variables of the environment that are set while it runs.
    """

    way: str
    inputs: tuple[Input, ...]
    body: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    mode: str = "inference"
    rewritten: tuple[str, ...] = ()
    parameters: tuple[Input, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        draws = "".join(f"{one.draw}, " for one in self.inputs)
        parts = [
            HEAD,
            f"WAY = {self.way!r}",
            f"MODE = {self.mode!r}",
            f"SIZES = {list(self.sizes)}",
            f"OPTIONS = {dict(self.options)}",
            f"ENVIRONMENT = {dict(self.environment)}",
            f"\n\ndef inputs(n: int, m: int):\n    return ({draws.rstrip()})",
            self._function("program", self.body),
        ]
        if self.parameters:
            parts.append(self._module())
        if self.rewritten:
            parts.append(self._function("rewritten", self.rewritten))
        return "\n".join(parts) + "\n"

    def _function(self, name: str, body: Sequence[str]) -> str:
        arguments = _declared((*self.inputs, *self.parameters))
        lines = [line for statement in body for line in statement.splitlines()]
        lines.append(f"return {', '.join(self.results)}")
        return f"\n\ndef {name}({arguments}):\n" + "\n".join(f"    {line}" for line in lines)

    def _module(self) -> str:
        draws = "".join(f"{one.draw}, " for one in self.parameters)
        names = [one.name for one in self.parameters]
        given = ", ".join([*(one.name for one in self.inputs), *(f"self.{name}" for name in names)])
        lines = [
            "class Trained(torch.nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        self.{name} = torch.nn.Parameter(PARAMETERS[{i}].clone())" for i, name in enumerate(names)),
            "",
            f"    def forward(self, {_declared(self.inputs)}):",
            f"        return program({given})",
        ]
        return f"\n\nPARAMETERS = drawn(({draws.rstrip()}), 0)\n\n\n" + "\n".join(lines)

    def on(self, way: str) -> Text:
        """The same on another way."""
        return replace(self, way=way)


def _declared(arguments: Sequence[Input]) -> str:
    return ", ".join(f"{one.name}: {one.type}" for one in arguments)


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
    trained: Callable[[], Any] | None = getattr(module, "Trained", None)
    return Program(
        name,
        trained or constantly(module.program),
        series[0],
        layers=_LAYERS,
        mode=module.MODE,
        optimiser=partial(torch.optim.SGD, lr=0.01, momentum=0.9) if trained else None,
        series=series,
        rewritten=constantly(other) if other else None,
        in_doubt=True,
        options=getattr(module, "OPTIONS", {}),
        environment=getattr(module, "ENVIRONMENT", {}),
    )
