"""Program as text, which can be drawn, written to files, reduced, and run."""

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
from torchmdla.testing.programs.program import factory_of

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
    """Argument of a program.

    Attributes:
        name: its name.
        draw: the expression that draws it, in terms of ``n`` and ``m``.
        type: its type in TorchScript.
    """

    name: str
    draw: str
    type: str = "Tensor"


@dataclass(frozen=True)
class Text:
    """Program at a series of sizes.

    Attributes:
        way: ``frontend:variant``, as in :mod:`torchmdla.testing.frontends`.
        inputs: its arguments.
        body: its statements. Each has one line or several.
        results: the expressions that it returns.
        sizes: ``n`` and ``m`` of each call.
        mode: the mode of :class:`torchmdla.testing.programs.Program`.
        rewritten: the statements that the frontend gets instead of ``body``, unless they are empty.
        parameters: arguments after the inputs that the steps of a program in training change.
        options: options of :func:`torchmdla.enable`.
        environment: environment variables that are set while it runs.
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
        draws = "".join(f"{argument.draw}, " for argument in self.inputs)
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
        draws = "".join(f"{argument.draw}, " for argument in self.parameters)
        names = [argument.name for argument in self.parameters]
        call_arguments = ", ".join([*(argument.name for argument in self.inputs), *(f"self.{name}" for name in names)])
        lines = [
            "class Trained(torch.nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        self.{name} = torch.nn.Parameter(PARAMETERS[{i}].clone())" for i, name in enumerate(names)),
            "",
            f"    def forward(self, {_declared(self.inputs)}):",
            f"        return program({call_arguments})",
        ]
        return f"\n\nPARAMETERS = draw_inputs(({draws.rstrip()}), 0)\n\n\n" + "\n".join(lines)

    def on(self, way: str) -> Text:
        """Return the same program for another frontend."""
        return replace(self, way=way)


def _declared(arguments: Sequence[Input]) -> str:
    return ", ".join(f"{argument.name}: {argument.type}" for argument in arguments)


def module_of(source: str, name: str = "drawn") -> ModuleType:
    """Return the module of a program's text. TorchScript can find its source."""
    file = f"<{name} {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    module = ModuleType(name)
    module.__file__ = file
    exec(compile(source, file, "exec"), module.__dict__)
    return module


# The number of consecutive layers that the tolerance allows for: see torchmdla.testing.compare.
_LAYERS = 8


def program_of(module: Any, name: str) -> Program:
    """Return the program of a module of a text or file."""
    series = tuple(module.inputs(*sizes) for sizes in module.SIZES)
    other: Callable[..., Any] | None = getattr(module, "rewritten", None)
    trained: Callable[[], Any] | None = getattr(module, "Trained", None)
    return Program(
        name,
        trained or factory_of(module.program),
        series[0],
        layers=_LAYERS,
        mode=module.MODE,
        optimiser=partial(torch.optim.SGD, lr=0.01, momentum=0.9) if trained else None,
        series=series,
        rewritten=factory_of(other) if other else None,
        in_doubt=True,
        options=getattr(module, "OPTIONS", {}),
        environment=getattr(module, "ENVIRONMENT", {}),
    )
