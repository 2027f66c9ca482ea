"""Packages of graphs that PyTorch saves (:mod:`torchmdla.capture.fx.saved_graph`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from torchmdla import _C
from torchmdla.capture import background, refusals
from torchmdla.compile_service.stored_code import NATIVE
from torchmdla.errors import CompileError
from torchmdla.importer.trace import without_modes
from torchmdla.packages.compiling import compiling_groups
from torchmdla.packages.saving import package_of, specialisations_of
from torchmdla.report.observing import without_comparisons


def code_of(calls: Sequence[tuple[_C.Group, Callable[[], Sequence[Any]]]]) -> dict[str, bytes]:
    """Return the records of a package with the code of groups for these inputs; empty without code.

    A group that raises an error for the inputs is left out with a warning. The process that loads it compiles it.
    """
    before = _C.group_counts().keys()
    with compiling_groups(), without_comparisons(), without_modes(), _as_in_calls():
        for group, inputs in calls:
            _call(group, inputs)
    saved = {id(group.subgraph) for group, _ in calls}
    # A group that is divided makes others.
    reports = [entry for entry in _C.groups() if entry["number"] not in before or id(entry["subgraph"]) in saved]
    # The target may be limited, so that other machines support it (``enable(processor=…)``).
    return package_of(specialisations_of(reports), {NATIVE: lambda device: device.target()})


@contextmanager
def _as_in_calls() -> Iterator[None]:
    """Set the state of a thread, which compiles by AOT Autograd, to that in which compiled functions run."""
    with torch._C._DisablePythonDispatcher(), torch._C._DisableAutocast(), torch.random.fork_rng(devices=[]):
        yield


def _call(group: _C.Group, inputs: Callable[[], Sequence[Any]]) -> None:
    """Call a group until it is compiled, also if it compiles in the background."""
    tasks: SimpleQueue[background.Task] = SimpleQueue()

    def call(examples: Sequence[Any]) -> None:
        _C.set_submit(tasks.put)
        try:
            group(*examples)
        finally:
            _C.set_submit(background.submit)
        while not tasks.empty():
            tasks.get()()

    try:
        refusals.call_until_compiled(partial(call, inputs()))
    except CompileError:  # in strict mode
        raise
    except Exception as error:
        _warn(f"{group.__name__}: {error}")


def _warn(reason: str) -> None:
    warnings.warn(
        f"torchmdla: a function is saved without some code, which the process that loads it compiles: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )
