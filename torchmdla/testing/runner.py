"""Runner of programs in separate processes, several at a time: a crash costs one program, not the run."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

from torchmdla import devices
from torchmdla.devices import Device, precision_of
from torchmdla.support.limits import limit_memory
from torchmdla.testing.checking import PASSING, RIGHT, Outcome, check, dispatched_operators
from torchmdla.testing.expected import expected_failure
from torchmdla.testing.frontends import AUTOMATIC, device_options, variant_of, variants_for
from torchmdla.testing.programs import Program
from torchmdla.testing.score import has_run, is_captured

# The time for starting a process, in addition to the time of a program.
_START_SECONDS = 300

# A process is replaced after this number of programs, or at this fraction of its memory, because the caches of
# compilers grow.
_PROGRAMS_PER_PROCESS = 2000
_MAX_MEMORY_FRACTION = 0.5


@dataclass(frozen=True)
class Job:
    """Programs to run on one variant in one go.

    Attributes:
        source: the module whose ``programs(name, seed, limit)`` finds them.
        name: the name of the program, or of an operator and a dtype in PyTorch's database.
        way: ``frontend:variant``, or ``auto`` for the first variant that runs a part of the program on the device.
        limit: the maximum number of programs, of an operator's samples; None for all.
        begin: the index of the first program to run, among those of the job.
        options: options of the device, as :func:`torchmdla.testing.frontends.device_options` reads them.
    """

    source: str
    name: str
    way: str
    device: str = "cpu"
    seed: int = 0
    limit: int | None = None
    begin: int = 0
    options: str = ""

    def programs(self) -> Iterator[Program]:
        """Return the programs, in the same order in each process."""
        result: Iterator[Program] = import_module(self.source).programs(self.name, self.seed, self.limit)
        return result


@dataclass(frozen=True)
class CheckedOutcome:
    """Outcome with the information whether it is expected: it passes, or fails as listed."""

    outcome: Outcome
    expected: bool
    reason: str = ""


def run(
    jobs: Iterable[Job | None], processes: int = 1, timeout: float = 300.0, memory: int = 0
) -> Iterator[CheckedOutcome | Job]:
    """Run ``jobs``. Yield the outcome of each program, and each job when it is done.

    Args:
        jobs: the next job is requested when a process is free, after all earlier events were yielded. None: no job is
            ready; it is requested again when a process is done.
        processes: the number of processes.
        timeout: seconds that one program may take.
        memory: bytes that a process may use; 0: no limit.
    """
    coming = iter(jobs)
    waiting: deque[Job] = deque()
    workers = [_Worker(memory) for _ in range(processes)]
    try:
        while True:
            for worker in workers:
                if worker.job is None and (job := waiting.popleft() if waiting else next(coming, None)):
                    worker.start(job)
            if not any(worker.job for worker in workers):
                return
            busy = [worker for worker in workers if worker.job]
            wait([handle for worker in busy for handle in worker.handles()], timeout=1.0)
            for worker in busy:
                for event in worker.events(timeout):
                    if isinstance(event, Outcome):
                        yield check_outcome(event)
                    elif event.begin:
                        waiting.appendleft(event)
                    else:
                        yield event
    finally:
        for worker in workers:
            worker.stop()


def check_outcome(outcome: Outcome) -> CheckedOutcome:
    """Compare an outcome with the expectation for its name."""
    expectation = expected_failure(outcome)
    return CheckedOutcome(outcome, *expectation)


class _Worker:
    """Handle of one worker process in the parent process."""

    def __init__(self, memory: int) -> None:
        self.job: Job | None = None
        self._memory = memory
        self._process: BaseProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._at: tuple[int, str] | None = None
        self._since = 0.0
        self._count = 0
        self._used = 0

    def start(self, job: Job) -> None:
        """Send a job to the process. Start a process first if it does not exist or must be replaced."""
        is_full = self._memory and self._used > _MAX_MEMORY_FRACTION * self._memory
        if self._process is not None and (self._count > _PROGRAMS_PER_PROCESS or is_full):
            self.stop()
        if self._process is None:
            # Spawned, not forked: threads of PyTorch do not survive a fork.
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._memory), daemon=False)
            self._process.start()
            theirs.close()
            self._count = self._used = 0
        assert self._pipe is not None
        self.job, self._at, self._since = job, None, monotonic()
        self._pipe.send(job)

    def handles(self) -> list[Any]:
        """Return the handles that become ready when the process sends a message or ends."""
        assert self._process is not None
        return [self._pipe, self._process.sentinel]

    def events(self, timeout: float) -> Iterator[Outcome | Job]:
        """Yield new outcomes, and the job when it is over; its ``begin`` is positive if some programs are left."""
        assert self._pipe is not None and self._process is not None and self.job is not None
        try:
            while self._pipe.poll():
                message = self._pipe.recv()
                if isinstance(message, int):
                    self._used = message
                    yield self._end_job(replace(self.job, begin=0))
                    return
                if isinstance(message, Outcome):
                    yield message
                else:
                    self._at, self._since = message, monotonic()
                    self._count += 1
        except (EOFError, ConnectionError):
            self._process.join()
        if self._process.exitcode is not None:
            yield from self._fail_job("crash", _cause_of_death(self._process.exitcode))
        elif monotonic() - self._since > timeout + (0 if self._at else _START_SECONDS):
            yield from self._fail_job("time-out", f"not ready after {timeout:g} s")

    def _fail_job(self, status: Any, detail: str) -> Iterator[Outcome | Job]:
        assert self.job is not None
        job = self.job
        index, name = self._at or (-1, job.name)
        yield Outcome(name, job.way, status, detail, seconds=round(monotonic() - self._since, 3))
        self.stop()
        # If no program was begun, none will be: the job is over.
        yield self._end_job(replace(job, begin=index + 1))

    def _end_job(self, job: Job) -> Job:
        self.job = None
        return job

    def stop(self) -> None:
        """End the process."""
        if self._process is None:
            return
        assert self._pipe is not None
        self._pipe.close()
        if self.job is not None:
            self._process.kill()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process = None
        self.job = None


def _cause_of_death(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"the process ended with status {code}"


# --- in the process ----------------------------------------------------------------------------------------------


def _serve(pipe: Connection[Any, Any], memory: int) -> None:
    """Run jobs until the parent closes the pipe. After each job, send the peak memory use in bytes."""
    limit_memory(memory)
    os.environ.setdefault("TORCHMDLA_CHECK_SPEED", "0")  # outcomes must not depend on times
    import torch

    import torchmdla

    torch.set_num_threads(1)
    torch._dynamo.config.suppress_errors = False
    warnings.simplefilter("ignore")
    _silence()
    while True:
        try:
            job: Job = pipe.recv()
        except EOFError:
            return
        torchmdla.enable(device=job.device, **device_options(job.options))
        device = devices.get(job.device)
        for index, program in enumerate(job.programs()):
            if index < job.begin:
                continue
            pipe.send((index, program.name))
            if job.way == AUTOMATIC:
                outcome = _check_on_first(program, job.seed, device)
            else:
                outcome = check(program, job.way, variant_of(job.way), job.seed, precision_of(device))
            if outcome is not None:
                pipe.send(outcome)
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _check_on_first(program: Program, seed: int, device: Device) -> Outcome | None:
    """Return the outcome on the first variant that runs the program on the device, at least in part, or that fails.

    If no variant does, the outcome is that of the first variant that captures declared operators. None means that no
    variant supports the program.
    """
    ways = variants_for(program.mode)
    # torch.compile takes most of the time. Views alone are not worth a group.
    computing = {op for op, support in device.ops.items() if support.kind in ("compute", "cheap")}
    if computing.isdisjoint(dispatched_operators(program, variant_of("dynamo:compile"), seed)):
        ways.remove("dynamo:compile")
    outcomes: list[Outcome] = []
    for way in ways:
        outcome = check(program, way, variant_of(way), seed, precision_of(device))
        if outcome is None:
            continue
        if has_run(outcome) or outcome.status not in PASSING | RIGHT:
            return outcome
        outcomes.append(outcome)
    return max(outcomes, key=is_captured, default=None)


def _silence() -> None:
    """Redirect standard output and standard error to the null device, including messages of crashes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (sys.__stdout__, sys.__stderr__):
        if descriptor is not None:
            os.dup2(nowhere, descriptor.fileno())
    os.close(nowhere)
