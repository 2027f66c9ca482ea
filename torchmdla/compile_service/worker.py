"""Compiler processes and their pool, in the process that uses them.

A compile runs in another process for two reasons. A fault in native compiler code must cost one group, not the user's
program. A compile that holds the GIL for seconds would stop every other Python thread.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import copy
import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import IO

from torchmdla.compile_service import messages
from torchmdla.compile_service.lower import Origin
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError
from torchmdla.support import forks, trace
from torchmdla.support.limits import Limits
from torchmdla.support.sharing import Allotment, describe_exit

_SCRIPT = Path(__file__).with_name("worker_process.py")

# Size in bytes of the retained tail of a compiler process's standard error.
_TAIL_BYTES = 8192

# Time limits in seconds for accepting a program: of a process that has just started, and of an idle one.
_START_SECONDS, _ACCEPT_SECONDS = 60.0, 20.0

# The maximum number of compiler processes of a pool. Each process shares its work with copies of itself.
_MOST_PROCESSES = 2

# Niceness of a process that compiles in the background, relative to the user's program.
_NICENESS = 10

# Temporary errors of the system, and signals that other processes send.
_TRANSIENT_ERRORS = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_EXTERNAL_SIGNALS = frozenset({"SIGKILL", "SIGTERM"})


class WorkerLost(Exception):
    """Error for a compiler process that ended or never started.

    ``had_program`` is true if the process had accepted the program; then ``reason`` is a short description of the
    failure. ``passing`` is true if the failure may be temporary: the system lacked a resource, or another process
    killed this one.
    """

    def __init__(
        self,
        diagnostic: str,
        *,
        had_program: bool = False,
        reason: str = "the compiler process died",
        passing: bool = False,
    ) -> None:
        self.reason = reason
        self.diagnostic = diagnostic
        self.had_program = had_program
        self.passing = passing
        super().__init__(diagnostic)

    def as_compile_error(self) -> CompileError:
        """Return the error for the caller, who may retry if the failure is temporary."""
        reason = self.reason if self.had_program else "the compiler process did not start"
        return CompileError(reason, diagnostic=self.diagnostic, retry_after=0.0 if self.passing else None)


class Worker:
    """Compiler process, used by one thread at a time.

    The constructor returns as soon as the process is started. The first compile waits until the process is ready.

    Args:
        modules: names of modules that the process imports first; they may register devices.
        limits: limits of a compile; by default those that the environment specifies.

    Raises:
        WorkerLost: the process cannot be started.
    """

    def __init__(self, modules: Sequence[str] = (), limits: Limits | None = None) -> None:
        self._limits = limits or Limits.from_environment()
        configuration = json.dumps({"path": sys.path, "modules": list(modules), "memory": self._limits.memory})
        if not sys.executable:
            raise WorkerLost("sys.executable does not name a Python interpreter")
        with _start_lock, _block_interrupts():
            try:
                self._process = subprocess.Popen(
                    [sys.executable, str(_SCRIPT), configuration],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            except OSError as error:
                passing = error.errno in _TRANSIENT_ERRORS
                raise WorkerLost(f"{type(error).__name__}: {error}", passing=passing) from error
            assert self._process.stdin and self._process.stdout and self._process.stderr
            self._requests, self._replies = self._process.stdin, self._process.stdout
            try:
                self._errors = _Tail(self._process.stderr)
            except RuntimeError as error:  # No more threads are available.
                self.end()
                self._process.stderr.close()
                raise WorkerLost(f"{type(error).__name__}: {error}", passing=True) from error
            forks.reset_in_child(self.forget)
        if os.name != "nt":  # Windows cannot wait for a pipe.
            for pipe in (self._requests, self._replies):
                os.set_blocking(pipe.fileno(), False)
        self.stopped = False
        self.niceness = 0
        self._ready = False
        self._between_messages = True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Return whether the process is alive and idle, or is still starting."""
        return self._between_messages and self._process.poll() is None

    def compile(
        self,
        program: Program,
        folder: Path | None = None,
        allot: Allotment = lambda _: 1,
        niceness: int = 0,
    ) -> Artifact:
        """Send the program and wait for its artifact, without the GIL.

        If this method raises any exception but CompileError, the pipes may contain a partial message. The caller must
        :meth:`end` the worker.

        Args:
            program: the program to compile.
            folder: as for :func:`~torchmdla.compile_service.lower.lower`.
            allot: returns how many processes may share the work on a number of items, this one included.
            niceness: the minimum niceness of the process relative to the program. It cannot decrease again.

        Raises:
            CompileError: the device's error, with all its fields.
            WorkerLost: the process died, or exceeded the time limit and was ended.
        """
        had_program = False
        self._between_messages = False
        try:
            self._send(program, folder, niceness)
            had_program = True
            until = time.monotonic() + (self._limits.seconds or math.inf)
            head, body = messages.read_message(self._replies.fileno(), until=until)
            while head["kind"] == "share":
                answer = {"processes": allot(head["items"])}
                messages.write_message(self._requests.fileno(), answer, until=until)
                head, body = messages.read_message(self._replies.fileno(), until=until)
        except TimeoutError as error:
            self.end()
            if not had_program:
                raise WorkerLost(f"no answer\n{self._errors.text()}".strip(), passing=True) from error
            reason = f"the compiler took more than {self._limits.seconds:g} seconds"
            raise WorkerLost(self._errors.text(), had_program=True, reason=reason) from error
        except (EOFError, OSError) as error:
            self.end()
            ended = describe_exit(self._process.returncode)
            words = f"{ended}\n{self._errors.text()}".strip()
            raise WorkerLost(words, had_program=had_program, passing=ended in _EXTERNAL_SIGNALS) from error
        self._between_messages = True
        trace.add(trace.Span(*fields) for fields in head.pop("spans", ()))
        if head.pop("kind") == "artifact":
            return Artifact.from_bytes(body)
        raise CompileError(**head)

    def stop(self) -> None:
        """Kill the process while another thread uses it, and note that it did not crash."""
        self.stopped = True
        self._process.kill()

    def end(self) -> None:
        """Kill and reap the process, which has nothing to save. Repeated calls are harmless."""
        self._between_messages = False
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # The process cannot be reaped.
            self._process.wait(_ACCEPT_SECONDS)
        self._requests.close()
        self._replies.close()

    def forget(self) -> None:
        """Close the pipes of the parent's process in a forked child, and leave the process alone."""
        self._between_messages = False
        for pipe in (self._requests, self._replies, self._errors.pipe):
            pipe.close()
        self._process.poll()  # Not our child, so Popen does not wait for it any more.

    def _send(self, program: Program, folder: Path | None, niceness: int) -> None:
        """Send the program and return when the process has read it."""
        patience = min(_ACCEPT_SECONDS, self._limits.seconds or math.inf) if self._ready else _START_SECONDS
        until = time.monotonic() + patience
        if not self._ready:
            self._expect("ready", until)
        self._errors.clear()
        request = {
            "kind": "compile",
            "devices": list(map(astuple, Origin.all_of(program))),
            "folder": folder and str(folder),
            "nice": max(0, niceness - self.niceness),
            "trace": trace.is_on(),
        }
        messages.write_message(self._requests.fileno(), request, program.to_json().encode(), until=until)
        self._expect("accepted", until)
        self.niceness = max(self.niceness, niceness)
        self._ready = True

    def _expect(self, kind: str, until: float) -> None:
        head, _ = messages.read_message(self._replies.fileno(), until=until)
        if head["kind"] != kind:
            raise EOFError(f"expected {kind}, got {head['kind']}")


class _Tail:
    """Last lines that a process wrote to its standard error.

    A thread reads them continuously, because a full pipe would block the process.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self.pipe = pipe
        self._bytes = b""
        self._thread = threading.Thread(target=self._drain, name="torchmdla-compiler-stderr", daemon=True)
        self._thread.start()

    def clear(self) -> None:
        self._bytes = b""

    def text(self) -> str:
        """Return the retained text, once the process has ended."""
        # The thread ends with the process, unless a program that the compiler started has inherited the pipe.
        self._thread.join(timeout=1)
        return self._bytes.decode(errors="replace").strip()

    def _drain(self) -> None:
        with self.pipe:
            while chunk := self.pipe.read(_TAIL_BYTES):
                self._bytes = (self._bytes + chunk)[-_TAIL_BYTES:]


def set_cpus(cpus: Callable[[bool], int]) -> None:
    """Set the function that returns how many CPUs all compiles of this process may use together.

    It is called whenever a compile begins or shares work, with whether the program waits for it. The default is the
    number of CPUs that the process may run on.
    """
    global _cpus
    _cpus = cpus


def _affinity(is_awaited: bool) -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_cpus: Callable[[bool], int] = _affinity

_niceness = contextvars.ContextVar("niceness", default=0)


def lower_priority() -> None:
    """Lower the priority of later compiles of this thread, because the program does not wait for them."""
    _niceness.set(_NICENESS)


@dataclass
class _Slot:
    """Resources of the pool that one compile has: ``cpus``, and a process once there is one.

    ``is_fresh`` is true if the process was started for this compile.
    """

    thread: int
    cpus: int = 1
    worker: Worker | None = None
    is_fresh: bool = False


class WorkerPool:
    """Pool of up to ``size`` compiler processes, started on demand and reused.

    Any thread may compile. Active compiles, with the processes that share their work, use no more CPUs than are
    available. After a fork, the child's pool is empty. It starts its own processes and does not touch the parent's.

    Args:
        size: the maximum number of processes that compile at a time, besides those that share their work.
        modules, limits: see :class:`Worker`.
        cpus: returns the number of CPUs; by default the function of :func:`set_cpus`.
    """

    def __init__(
        self,
        size: int = _MOST_PROCESSES,
        modules: Sequence[str] = (),
        limits: Limits | None = None,
        cpus: Callable[[], int] | None = None,
    ) -> None:
        self._size = size
        self._cpus = cpus
        self._limits = limits
        self._modules = tuple(modules)
        # Programs that killed a process, by key. They are not retried.
        self._fatal: dict[str, CompileError] = {}
        self._closed = False
        self._reset()
        forks.reset_in_child(self._reset)
        _pools.add(self)

    def compile(self, program: Program, folder: Path | None = None) -> Artifact:
        """Compile in a process of the pool; wait for one, without the GIL, while all are busy.

        ``folder`` is as for :func:`~torchmdla.compile_service.lower.lower`. An exception raised here while waiting
        (KeyboardInterrupt) ends the process that was compiling.

        Raises:
            CompileError: the device raised it; or the process died, which :attr:`CompileError.diagnostic` describes.
        """
        key = program.key
        if key in self._fatal:
            raise copy.copy(self._fatal[key])
        while True:
            with self._borrow() as slot:
                worker = slot.worker
                assert worker is not None
                try:
                    return worker.compile(program, folder, partial(self._allot, slot), _niceness.get())
                except WorkerLost as lost:
                    if worker.stopped:
                        raise _ended_error() from None
                    error = lost.as_compile_error()
                    if lost.had_program and not lost.passing:
                        self._fatal[key] = copy.copy(error)
                    if lost.had_program or slot.is_fresh:
                        raise error from None
                    # The process died while it was idle, so this program is not the cause. Use another process.

    def prestart(self, processes: int = 1) -> None:
        """Start the first ``processes`` that can compile at once, unless the pool has them, and do not wait for them.

        Raises:
            CompileError: no process can be started.
        """
        wanted = min(processes, self._size, self._free_cpus())
        if len(self._idle) < wanted and not self._busy:
            with contextlib.ExitStack() as stack:
                for _ in range(wanted):
                    stack.enter_context(self._borrow())

    def end(self, *, for_good: bool = False) -> None:
        """End every process.

        Active compiles fail. A later compile starts a new process, or fails if ``for_good`` is true.
        """
        with self._changed:
            self._closed = for_good
            idle = list(self._idle)
            self._idle.clear()
            busy = [slot.worker for slot in self._busy.values() if slot.worker]
        for worker in idle:
            worker.end()
        for worker in busy:
            worker.stop()

    @contextlib.contextmanager
    def _borrow(self) -> Iterator[_Slot]:
        """Yield a slot with a process for the calling thread alone."""
        # The pool records the resources of a ticket; a local variable here would not suffice. An interrupt can arrive
        # between any two steps, and must not leave a process that counts as busy forever.
        ticket = object()
        try:
            slot = self._acquire_slot(ticket)
            if slot.worker is None:
                slot.is_fresh = True
                try:
                    slot.worker = Worker(self._modules, self._limits)
                except WorkerLost as lost:
                    raise lost.as_compile_error() from None
            yield slot
        finally:
            self._release(ticket)

    def _acquire_slot(self, ticket: object) -> _Slot:
        """Wait for a slot. It has an idle process, or no process if the caller may start one."""
        with self._changed:
            self._waiting.add(ticket)
            while not self._may_begin():
                self._changed.wait()
            self._waiting.discard(ticket)
            if self._closed:
                raise _ended_error()
            slot = self._busy[ticket] = _Slot(threading.get_ident())
            # A process that has compiled in the background keeps its lower priority permanently.
            niceness = _niceness.get()
            for worker in sorted(self._idle, key=lambda worker: worker.niceness, reverse=True):
                if worker.niceness > niceness:
                    continue
                self._idle.remove(worker)
                if worker.usable:
                    slot.worker = worker
                    break
                worker.end()
            return slot

    def _may_begin(self) -> bool:
        """Return whether a compile of this thread may begin, on one CPU.

        A signal handler runs a program. The compile that has the thread's slot continues when the handler returns.
        """
        has_slot = any(slot.thread == threading.get_ident() for slot in self._busy.values())
        return has_slot or (len(self._busy) < self._size and self._free_cpus() > 0)

    def _free_cpus(self) -> int:
        cpus = self._cpus() if self._cpus else _cpus(not _niceness.get())
        return cpus - sum(slot.cpus for slot in self._busy.values())

    def _allot(self, slot: _Slot, items: int) -> int:
        """Give ``slot`` its part of the free CPUs, and return how many processes it may use for ``items``.

        Two processes that share one compile shorten it by more than they slow another compile. So a single compile gets
        two CPUs or all of them. Each waiting compile gets one.
        """
        with self._changed:
            slot.cpus = 1
            others = self._size - len(self._busy)
            free = self._free_cpus() - min(len(self._waiting), others) + 1
            slot.cpus = max(1, min(items, math.ceil(free / max(1, min(others + 1, free // 2)))))
            self._changed.notify_all()
            return slot.cpus

    def _release(self, ticket: object) -> None:
        with self._changed:
            slot = self._busy.get(ticket)
            if slot and slot.worker is not None:
                if slot.worker.usable and len(self._idle) < self._size:
                    self._idle.append(slot.worker)
                else:
                    slot.worker.end()
            self._busy.pop(ticket, None)
            self._waiting.discard(ticket)
            self._changed.notify_all()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._busy: dict[object, _Slot] = {}
        self._waiting: set[object] = set()


def _ended_error() -> CompileError:
    return CompileError("the compiler was ended", retry_after=0.0)


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block SIGINT in this thread.

    A process started meanwhile inherits the mask until it can ignore the signal.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()

# Held while a process is started, so that the child of a fork knows every pipe that it inherits. A pipe left open in
# the child would keep the parent's compiler process alive after the parent has ended.
_start_lock = forks.hold_over_fork(threading.RLock())


@atexit.register
def _end_all() -> None:
    for pool in list(_pools):
        pool.end(for_good=True)
