"""Instances of a model as a server runs them: each a process on processors of its own, all calling at once.

:class:`Instance` is the parent's side. It tells the process what to do through a pipe: to prepare a way to run the
model, or to call it for so long. A process that ends meanwhile is :class:`InstanceEnded`.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

_SECONDS_TO_END = 10


class InstanceEnded(RuntimeError):
    """The process of an instance ended at ``way``."""

    def __init__(self, way: str, status: int | None) -> None:
        super().__init__(f"ended the process with status {status}")
        self.way = way


class Instance:
    """A process that has a model and calls it, on ``processors`` alone with a thread for each.

    Args:
        task: what :func:`serve` takes beside the pipe and the processors.
    """

    def __init__(self, processors: Collection[int], task: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, sorted(processors)), kwargs=dict(task), daemon=True)
        self._process.start()
        other.close()  # so that the pipe ends with the process

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()
        self._process.join(_SECONDS_TO_END)
        self._process.kill()

    def prepare(self, way: str) -> str:
        """Why ``way`` is left out; empty where it is ready."""
        self._ask(way, None)
        return str(self._answer(way))

    def begin(self, way: str, seconds: float) -> None:
        """Has ``way`` called until ``seconds`` have passed, at least once."""
        self._ask(way, seconds)

    def rate(self, way: str) -> float:
        """Calls a second of what was begun, once it has ended."""
        return float(self._answer(way))

    def _ask(self, way: str, seconds: float | None) -> None:
        try:
            self._pipe.send((way, seconds))
        except BrokenPipeError:
            raise self._ended(way) from None

    def _answer(self, way: str) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._ended(way) from None

    def _ended(self, way: str) -> InstanceEnded:
        self._process.join(_SECONDS_TO_END)
        return InstanceEnded(way, self._process.exitcode)


def rates(instances: Sequence[Instance], way: str, seconds: float) -> list[float]:
    """Calls a second of each instance while all of them call ``way``."""
    for instance in instances:
        instance.begin(way, seconds)
    return [instance.rate(way) for instance in instances]


# --- the process -------------------------------------------------------------------------------------------------


def serve(pipe: Connection, processors: Sequence[int], model: str, folder: str, quick: bool) -> None:
    """Does what the pipe says until it ends. ``folder`` is for the model's files."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # peers print
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)  # before threads are started, which inherit it
    # OpenMP reads its variable, torchmdla its own, when they are loaded.
    os.environ |= {"OMP_NUM_THREADS": str(len(processors)), "TORCHMDLA_ENABLE": "0"}
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache:
        os.environ["TORCHMDLA_CACHE_DIR"] = cache
        _serve(pipe, len(processors), model, folder, quick)


def _serve(pipe: Connection, threads: int, model: str, folder: str, quick: bool) -> None:
    import torch

    from harness import peers, rows

    torch.set_num_threads(threads)
    spec = rows.rows_by_name()[model]
    spec = spec.reduced() if quick else spec
    subject = peers.Subject(spec.build(), spec.inputs(), threads, Path(folder))
    calls: dict[str, Callable[[], Any]] = {}
    with torch.no_grad():
        while True:
            try:
                way, seconds = pipe.recv()
            except EOFError:
                return
            if seconds is not None:
                pipe.send(_rate(calls[way], seconds))
                continue
            prepared, _, skipped = rows.prepare(subject, [way])
            found = rows.compare(prepared, spec, subject.module)
            wrong = {name: one["differs"] for name, one in found.items() if one["differs"]}
            calls |= {name: one.bind(subject.inputs) for name, one in prepared.items() if name not in wrong}
            pipe.send({**skipped, **wrong}.get(way, ""))


def _rate(call: Callable[[], Any], seconds: float) -> float:
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not calls:
        call()
        calls += 1
    return calls / spent
