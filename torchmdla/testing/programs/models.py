"""Small variants of the model collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from torchmdla.testing.models import MODELS, ModelSpec
from torchmdla.testing.programs.inputs import Draw
from torchmdla.testing.programs.program import Program


def _programs() -> Iterator[Program]:
    for name, spec in MODELS.items():
        small = spec.reduced()
        tags = frozenset() if small.scriptable else frozenset({"python"})
        yield Program(f"models.{name}", _building(small), _inputs(small), 2 * small.layers, tags=tags)  # type: ignore[arg-type]


def _building(spec: ModelSpec) -> Callable[[], nn.Module]:
    return lambda: spec.build()


def _inputs(spec: ModelSpec) -> tuple[Any, ...]:
    def drawing(place: int) -> Draw:
        return Draw(lambda generator: spec.inputs(seed=generator.initial_seed())[place])

    return tuple(drawing(place) for place in range(len(spec.inputs())))


PROGRAMS = list(_programs())
