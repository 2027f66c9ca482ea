"""Registry of the programs that every frontend is checked with: :data:`PROGRAMS`, by name.

A family is a module here. It lists its programs in tables; :mod:`torchmdla.testing.programs.program` defines the
entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from torchmdla.testing.programs import (
    attention,
    control_flow,
    convolutions,
    dtypes,
    elementwise,
    indexing,
    layouts,
    losses,
    models,
    mutation,
    normalisation,
    operators,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    shapes,
    sizes,
    sorting,
    structures,
    training,
)
from torchmdla.testing.programs.program import Program

__all__ = ["PROGRAMS", "Program", "programs"]

FAMILIES = (
    operators,
    elementwise,
    reductions,
    products,
    convolutions,
    pooling,
    normalisation,
    attention,
    recurrent,
    indexing,
    shapes,
    dtypes,
    sorting,
    losses,
    control_flow,
    structures,
    mutation,
    random,
    sizes,
    layouts,
    training,
    models,
)


def _registry() -> dict[str, Program]:
    registry: dict[str, Program] = {}
    for program in chain.from_iterable(family.PROGRAMS for family in FAMILIES):
        if program.name in registry:
            raise ValueError(f"two programs are named {program.name}")
        registry[program.name] = program
    return registry


PROGRAMS: Mapping[str, Program] = _registry()


def programs(name: str, seed: int, limit: int | None) -> Iterator[Program]:
    """Yield the program of that name. The seed has no effect, because the program draws its inputs itself."""
    yield PROGRAMS[name]
