"""Instances of a model as in a server: each is a process with its own processors, and all call at once.

:class:`Instance` is the parent's side. Through a pipe, it asks the process to prepare a variant of the model, or to
serve a load with it. :class:`InstanceEnded` is raised if the process ends meanwhile.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.load import Answers, Call, Closed, Load, serve

_SECONDS_TO_END = 10


def processors() -> list[int]:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class InstanceEnded(RuntimeError):
    """Error: the process of an instance ended at ``way``."""

    def __init__(self, way: str, status: int | None) -> None:
        super().__init__(f"ended the process with status {status}")
        self.way = way


class Instance:
    """Process that holds a model and calls it, on ``processors`` only with a thread for each.

    Args:
        processors: the processors of the instance.
        task: arguments of :func:`obey` besides the pipe and the processors.
    """

    def __init__(self, processors: Collection[int], task: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=obey, args=(other, sorted(processors)), kwargs=dict(task), daemon=True)
        self._process.start()
        other.close()  # closes the pipe when the process ends

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()
        self._process.join(_SECONDS_TO_END)
        self._process.kill()

    def prepare(self, way: str) -> str:
        """Prepare ``way``. Return the reason why it is skipped, or an empty string."""
        self._ask(way, None)
        return str(self._answer(way))

    def begin(self, way: str, load: Load) -> None:
        """Start serving ``load`` with ``way``."""
        self._ask(way, load)

    def answers(self, way: str) -> Answers:
        """Return the answers of the current load, after it has ended."""
        answers = self._answer(way)
        assert isinstance(answers, Answers)
        return answers

    def _ask(self, way: str, load: Load | None) -> None:
        try:
            self._pipe.send((way, load))
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


@contextmanager
def start_instances(
    ways: Sequence[str], number: int, task: Mapping[str, Any], skipped: dict[str, str]
) -> Iterator[tuple[list[Instance], list[str]]]:
    """Yield ``number`` instances, with an equal share of the processors each, and the variants that are ready in all.

    The reasons for the other variants are added to ``skipped``.
    """
    each = len(processors()) // number
    with ExitStack() as stack:
        parts = [processors()[each * k : each * (k + 1)] for k in range(number)]
        instances = [stack.enter_context(Instance(part, task)) for part in parts]
        ready = []
        for way in ways:
            # Prepare one after another: the first instance makes the files that the others use.
            if reasons := [reason for instance in instances if (reason := instance.prepare(way))]:
                skipped[way] = reasons[0]
            else:
                ready.append(way)
        yield instances, ready


def serve_loads(instances: Sequence[Instance], way: str, loads: Sequence[Load]) -> list[Answers]:
    """Return the answers of each instance to its load, while all of them serve theirs."""
    for instance, load in zip(instances, loads, strict=True):
        instance.begin(way, load)
    return [instance.answers(way) for instance in instances]


def rates(instances: Sequence[Instance], way: str, seconds: float) -> list[float]:
    """Return calls per second of each instance, while all of them call ``way``, one call at a time."""
    return [answers.rate for answers in serve_loads(instances, way, [Closed(seconds)] * len(instances))]


# --- the process -------------------------------------------------------------------------------------------------


def obey(
    pipe: Connection, processors: Sequence[int], model: str, folder: str, quick: bool, sizes: Sequence[int] = ()
) -> None:
    """Execute the commands from the pipe until it closes.

    ``folder`` is for the model's files. Requests are of ``sizes``, or of the size that the model is measured with.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # peers print to it
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, processors)  # before threads start, which inherit it
    # OpenMP and torchmdla read their variables when they are loaded.
    os.environ |= {"OMP_NUM_THREADS": str(len(processors)), "TORCHMDLA_ENABLE": "0"}
    with tempfile.TemporaryDirectory(prefix="torchmdla-cache-") as cache:
        os.environ["TORCHMDLA_CACHE_DIR"] = cache
        _obey(pipe, len(processors), model, folder, quick, sizes)


def _obey(pipe: Connection, threads: int, model: str, folder: str, quick: bool, sizes: Sequence[int]) -> None:
    import torch

    from harness import peers, rows

    torch.set_num_threads(threads)
    spec = rows.rows_by_name()[model]
    spec = spec.reduced() if quick else spec
    subject = peers.subject_of(spec, sizes, threads, Path(folder))
    calls: dict[str, list[Call]] = {}
    slots: dict[str, int] = {}
    with torch.no_grad():
        while True:
            try:
                way, load = pipe.recv()
            except EOFError:
                return
            if load is not None:
                pipe.send(serve(calls[way], load, slots[way]))
                continue
            prepared, _, skipped = rows.prepare(subject, [way])
            comparisons = rows.compare(prepared, spec, subject.module, more=subject.others)
            wrong = {name: comparison["differs"] for name, comparison in comparisons.items() if comparison["differs"]}
            for name in prepared.keys() - wrong.keys():
                calls[name] = [prepared[name].bind(inputs) for inputs in subject.all_inputs]
                slots[name] = prepared[name].slots
            pipe.send({**skipped, **wrong}.get(way, ""))
