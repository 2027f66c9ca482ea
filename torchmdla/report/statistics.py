"""What torchmdla did in this process, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchmdla import _C
from torchmdla.compiler import service


@dataclass(frozen=True)
class Statistics:
    """Counts since the start of the process or the last :func:`reset_stats`.

    Attributes:
        groups: groups that the fusion pass formed.
        specialisations: groups compiled for given input types, however they were come by.
        dynamic: those of them that take any sizes.
        not_dynamic: reason → number of attempts to compile a group for any sizes that did not come off.
        compiled: programs that the compiler compiled.
        cache_hits: programs found on disk.
        memory_hits: programs that this process had already.
        compile_seconds: time spent in the compiler, failures included.
        failures: programs that could not be compiled.
        fallbacks: reason → number of group calls that ran in PyTorch's interpreter.
    """

    groups: int
    specialisations: int
    compiled: int
    cache_hits: int
    memory_hits: int
    compile_seconds: float
    failures: int
    dynamic: int = 0
    not_dynamic: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)


_baseline: dict[str, float] = {}


def stats() -> Statistics:
    """The counts so far."""
    groups = _C.statistics()
    made = {name: value - _baseline.get(name, 0) for name, value in service.statistics().items()}
    return Statistics(
        groups=groups["groups"],
        specialisations=groups["specialisations"],
        compiled=int(made["compiled"]),
        cache_hits=int(made["disk_hits"]),
        memory_hits=int(made["memory_hits"]),
        compile_seconds=made["seconds"],
        failures=int(made["failures"]),
        dynamic=groups["dynamic"],
        not_dynamic=groups["not_dynamic"],
        fallbacks=groups["fallbacks"],
    )


def reset_stats() -> None:
    """Counts from zero again."""
    _C.reset_statistics()
    _baseline.clear()
    _baseline.update(service.statistics())
