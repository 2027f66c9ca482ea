"""Compile service: it gets an artifact from memory, disk, a shared store or a compiler process, in this order.

Each program is compiled once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchmdla.compile_service import lease
from torchmdla.compile_service.cache import DiskCache
from torchmdla.compile_service.failures import Failures
from torchmdla.compile_service.lower import Origin, lower
from torchmdla.compile_service.store import Store, StoreStatistics
from torchmdla.compile_service.store import from_environment as store_from_environment
from torchmdla.compile_service.worker import WorkerPool
from torchmdla.compiler import dump
from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Program
from torchmdla.errors import CompileError
from torchmdla.support import forks, logs, trace
from torchmdla.support.limits import Limits

Source = Literal["memory", "disk", "store", "compiled"]

# Maximum seconds to wait for other processes' compiles if compile time is not limited.
_LONGEST_PATIENCE = 3600.0

# Maximum bytes of object code that a service keeps in memory.
_MEMORY_BYTES = 256 << 20

_SOURCE_TEXT = {"memory": "in memory", "disk": "on disk", "store": "in the store"}


@dataclass(frozen=True)
class CompileOutcome:
    """Artifact, its source, and how long the caller waited for it (seconds).

    If the caller waited for another thread's compile of the same program, the source is memory.
    """

    artifact: Artifact
    source: Source
    seconds: float


class CompilerService:
    """Service that compiles programs and caches their artifacts.

    Any thread may call it. After a fork, the child retains the artifacts in memory.

    Args:
        pool: compiler processes; by default a new pool.
        cache: artifacts on disk; by default the cache that the environment specifies.
        store: artifacts that machines share, None for no store; by default the store that the environment specifies.
        in_process: compile in the calling thread, for debugging; by default if ``TORCHMDLA_COMPILE_IN_PROCESS`` is set
            and not 0.
        memory_bytes: the maximum size of the object code in memory; least recently used artifacts are evicted first.
    """

    def __init__(
        self,
        *,
        pool: WorkerPool | None = None,
        cache: DiskCache | None = None,
        store: Store | Literal["environment"] | None = "environment",
        in_process: bool | None = None,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self.pool = pool or WorkerPool()
        self.cache = cache or DiskCache()
        self.store = store_from_environment() if store == "environment" else store
        if in_process is None:
            in_process = os.environ.get("TORCHMDLA_COMPILE_IN_PROCESS", "0") not in ("", "0")
        self.in_process = in_process
        self._memory_bytes = memory_bytes
        self._artifacts: OrderedDict[str, Artifact] = OrderedDict()
        self._failures = Failures()
        # Programs whose artifacts are not loaded from the store again, because their code could not be loaded here.
        self._unloadable: set[str] = set()
        self._patience = Limits.from_environment().seconds or _LONGEST_PATIENCE
        self._reset_process_state()
        forks.reset_in_child(self._reset_process_state)

    def compile(self, program: Program) -> CompileOutcome:
        """Return the artifact of ``program``; wait, without the GIL, while it is being compiled.

        Raises:
            CompileError: the program cannot be compiled. Later calls raise the same error at once, permanently or for
                :attr:`CompileError.retry_after` seconds.
        """
        start = time.perf_counter()
        key = program.key
        # The claim is added and removed in one frame: an interrupt must not leave a program claimed.
        claim = threading.Event()
        try:
            with trace.span(f"compile {key[:16]}", "compile"):
                artifact, source = self._obtain(key, program, claim)
        finally:
            # Waiting threads check again. If this thread was interrupted, one of them compiles the program.
            with self._lock:
                if self._claims.get(key) is claim:
                    del self._claims[key]
            claim.set()
        if _observer is not None:
            _observer(key, artifact)
        if source != "compiled":
            logs.logger("cache").info("%s: found %s", key[:16], _SOURCE_TEXT[source])
        return CompileOutcome(artifact, source, time.perf_counter() - start)

    def add(self, key: str, artifact: Artifact) -> None:
        """Keep the artifact of the program ``key``, which another process compiled, in memory and on disk."""
        self._keep(key, artifact)
        self.cache.store(key, artifact)

    def forget(self, key: str) -> None:
        """Remove the artifact of the program ``key``, which cannot be loaded, from memory and disk."""
        with self._lock:
            self._artifacts.pop(key, None)
            self._unloadable.add(key)
        self.cache.remove(key)
        logs.logger("cache").info("%s: removed, because it did not load", key[:16])

    def write_stages(self, program: Program, folder: Path) -> None:
        """Compile ``program`` again, bypassing all caches, and write the output of each stage to ``folder``.

        The format is that of :mod:`torchmdla.compiler.dump`.

        Raises:
            CompileError: the program cannot be compiled. The folder contains the output of the stages before the
                failure.
        """
        self._lower(program, folder)

    def prestart(self, processes: int = 1) -> None:
        """Start compiler processes, so that they are ready when the first programs arrive.

        This never raises or waits. A failure is reported by the first compile.
        """
        if self.in_process:
            return
        try:
            self.pool.prestart(processes)
        except CompileError:
            return

    def compiles_in_process(self, program: Program) -> bool:
        """Return whether the calling thread itself compiles ``program``."""
        return self.in_process or not all(origin.is_importable for origin in Origin.all_of(program))

    def statistics(self) -> dict[str, float]:
        """Return the counters. ``seconds`` is the time spent compiling, failures included."""
        with self._lock:
            return dict(self._statistics)

    def store_statistics(self) -> StoreStatistics:
        """Return the statistics of the store; all zero without a store."""
        return StoreStatistics() if self.store is None else self.store.statistics()

    def stages(self) -> dict[str, float]:
        """Return the seconds of each compile stage of the device, summed over all artifacts in memory."""
        seconds: dict[str, float] = {}
        with self._lock:
            for artifact in self._artifacts.values():
                for name, spent in artifact.manifest.statistics.items():
                    kind, _, stage = name.partition("_")
                    if kind == "seconds":
                        seconds[stage] = seconds.get(stage, 0.0) + spent
        return seconds

    def _obtain(self, key: str, program: Program, claim: threading.Event) -> tuple[Artifact, Source]:
        """Return the artifact and its source.

        Wait for another thread that compiles the program; otherwise load or compile it on this thread.
        """
        while True:
            with self._lock:
                known = self._find_in_memory(key)
                if known is not None:
                    return known, "memory"
                owner = self._claims.setdefault(key, claim)
            if owner is claim:
                return self._load(key) or self._obtain_exclusively(key, program)
            owner.wait()

    def _find_in_memory(self, key: str) -> Artifact | None:
        """Return the artifact of a program in memory, or None; raise the stored failure if there is one.

        The caller holds the lock.
        """
        self._failures.check(key)
        artifact = self._artifacts.get(key)
        if artifact is not None:
            self._artifacts.move_to_end(key)
            self._statistics["memory_hits"] += 1
        return artifact

    def _load(self, key: str) -> tuple[Artifact, Source] | None:
        if dump.is_requested():  # A cached program has no stages to dump.
            return None
        artifact = self.cache.load(key)
        return None if artifact is None else self._remember(key, artifact, "disk")

    def _obtain_exclusively(self, key: str, program: Program) -> tuple[Artifact, Source]:
        """Return the artifact from another process of this machine that compiles it, else obtain it here.

        This process then uses the store or a compile.
        """
        if dump.is_requested():
            return self._compile(key, program)
        with self.cache.lock(key, self._patience) as waited:
            if not waited:
                # Another process may have stored the artifact since the last load.
                return self._load(key) or self._fetch_or_compile(key, program)
        # The process that held the lock has finished. A missing artifact means that it failed, and all waiting
        # processes try at the same time.
        return self._load(key) or self._fetch_or_compile(key, program)

    def _fetch_or_compile(self, key: str, program: Program) -> tuple[Artifact, Source]:
        """Return the artifact from the store, or compile the program.

        Machines that share a store and start together compile a program once.
        """
        if self.store is None:
            return self._compile(key, program)
        if key in self._unloadable:
            return self._compile_and_store(self.store, key, program)
        if artifact := self.store.load(key):
            return self._keep_fetched(key, artifact)
        with lease.acquire(self.store, key, self._patience) as made_elsewhere:
            if made_elsewhere:
                return self._keep_fetched(key, made_elsewhere)
            return self._compile_and_store(self.store, key, program)

    def _compile_and_store(self, store: Store, key: str, program: Program) -> tuple[Artifact, Source]:
        artifact, source = self._compile(key, program)
        store.put(key, artifact)
        return artifact, source

    def _keep_fetched(self, key: str, artifact: Artifact) -> tuple[Artifact, Source]:
        self.cache.store(key, artifact)
        return self._remember(key, artifact, "store")

    def _compile(self, key: str, program: Program) -> tuple[Artifact, Source]:
        start = time.perf_counter()
        try:
            artifact = self._lower(program)
        except CompileError as error:
            if folder := dump.folder_of(key):
                error.args = (f"{error}\nTo repeat it: python {folder / 'repeat.py'}",)
            seconds = time.perf_counter() - start
            logs.logger("compile").info("%s: refused after %.3f s: %s", key[:16], seconds, error)
            with self._lock:
                self._statistics["seconds"] += seconds
                self._statistics["failures"] += 1
                self._failures.add(key, error, seconds)
            raise
        seconds = time.perf_counter() - start
        logs.logger("compile").info(
            "%s: compiled for %s in %.3f s, %d bytes",
            key[:16],
            program.target.device,
            seconds,
            len(artifact.object_code),
        )
        if ignored := artifact.manifest.statistics.get("ignored_records"):
            logs.logger("compile").warning("%s: %d records do not fit their kernels: ignored", key[:16], ignored)
        with self._lock:
            self._statistics["seconds"] += seconds
            self._failures.forget(key)
            outcome = self._remember(key, artifact, "compiled")
        if self.cache.store(key, artifact):
            logs.logger("cache").info("%s: stored on disk", key[:16])
        return outcome

    def _lower(self, program: Program, folder: Path | None = None) -> Artifact:
        return (lower if self.compiles_in_process(program) else self.pool.compile)(program, folder)

    def _remember(self, key: str, artifact: Artifact, source: Source) -> tuple[Artifact, Source]:
        with self._lock:
            self._statistics["compiled" if source == "compiled" else f"{source}_hits"] += 1
            self._keep(key, artifact)
        return artifact, source

    def _keep(self, key: str, artifact: Artifact) -> None:
        """Keep an artifact in memory, and drop the least recently used ones beyond the limit."""
        with self._lock:
            self._artifacts[key] = artifact
            excess = sum(len(entry.object_code) for entry in self._artifacts.values()) - self._memory_bytes
            while excess > 0 and len(self._artifacts) > 1:
                _, oldest = self._artifacts.popitem(last=False)
                excess -= len(oldest.object_code)

    def _reset_process_state(self) -> None:
        """Initialise the state that belongs to one process: locks, active compiles, counters."""
        # Reentrant, because a signal handler may run a program while its thread holds the lock.
        self._lock = threading.RLock()
        # Programs that a thread is loading or compiling. The event is set when the thread has finished.
        self._claims: dict[str, threading.Event] = {}
        counters = ("compiled", "disk_hits", "store_hits", "memory_hits", "failures")
        self._statistics: dict[str, float] = {**dict.fromkeys(counters, 0), "seconds": 0.0}


_observer: Callable[[str, Artifact], object] | None = None


def set_observer(observer: Callable[[str, Artifact], object]) -> None:
    """Call ``observer`` with the key and the artifact of each program that a caller gets, from any source."""
    global _observer
    _observer = observer


_default: CompilerService | None = None
_default_lock = forks.hold_over_fork(threading.RLock())


def default_service() -> CompilerService:
    """Return the service of this process. The first call reads the environment."""
    global _default
    with _default_lock:
        if _default is None:
            _default = CompilerService()
        return _default


def compile_program(program: Program) -> CompileOutcome:
    """Call :meth:`CompilerService.compile` of the process's service."""
    return default_service().compile(program)


def end() -> None:
    """End all current and future compiles of the process's service, at interpreter exit."""
    if _default is not None:
        _default.pool.end(for_good=True)


def reset() -> None:
    """Drop the process's service and its memory. The next use reads the environment again."""
    global _default
    with _default_lock:
        service, _default = _default, None
    if service is not None:
        service.pool.end()
