"""Compilation of the groups of programs for the targets of files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any

import torch

from torchmdla import _C, api
from torchmdla.capture import refusals
from torchmdla.compile_service import service
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program, Target
from torchmdla.report.observing import show_progress, without_comparisons

# Options with measurements of this machine, which are not valid for another target.
_MACHINE_OPTIONS = frozenset(("records", "machine"))


@contextmanager
def compiling_groups() -> Iterator[None]:
    """Compile groups synchronously within the block, and ignore the code of packages."""
    with api.waiting_for_compiles():
        _C.set_packages(False)
        try:
            yield
        finally:
            _C.set_packages(True)


def reload_and_call(
    write: Callable[[IO[bytes]], object],
    load: Callable[[IO[bytes]], Callable[..., Any]],
    calls: Sequence[Sequence[Any]],
) -> tuple[Any, list[_C.GroupReport]]:
    """Write a program to memory, read it back and call it; return the program and its groups.

    The groups are therefore those that a reader of the file gets. The ``calls`` are repeated as often as PyTorch's
    executor needs.
    """
    buffer = io.BytesIO()
    write(buffer)
    before = _C.group_counts().keys()
    with compiling_groups(), without_comparisons(), torch.no_grad(), show_progress(_C.statistics):
        program = load(io.BytesIO(buffer.getvalue()))
        for call in calls:
            refusals.call_until_compiled(partial(program, *call), api.WARM_UP_CALLS)
        return program, _C.groups(_C.group_counts().keys() - before)


def retarget(program: Program, target: Target) -> Program:
    if program.target == target:
        return program
    options = tuple(option for option in program.options if option[0] not in _MACHINE_OPTIONS)
    return replace(program, target=target, options=options)


def compile_programs(programs: Sequence[Program]) -> dict[str, Artifact]:
    """Return artifacts by the keys of their programs, with a progress bar on a terminal."""
    from tqdm import tqdm

    distinct = {program.key: program for program in programs}
    with ThreadPoolExecutor(_C.available_cpus()) as threads:
        outcomes = threads.map(service.compile_program, distinct.values())
        bar = tqdm(outcomes, desc="torchmdla: compiling for targets", total=len(distinct), disable=None, leave=False)
        return {key: outcome.artifact for key, outcome in zip(distinct, bar, strict=True)}
