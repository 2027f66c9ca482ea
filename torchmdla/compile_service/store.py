"""Store of artifacts that machines share: a second level behind the disk cache, at ``TORCHMDLA_STORE``.

An entry is an artifact and a proof of its maker. Neither the store nor the network is trusted. Damaged or unauthentic
entries are refused and counted, and the program is compiled here. No operation raises or waits without a time limit. A
store that is down costs one compile.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from torchmdla.compile_service import authentication
from torchmdla.compile_service.authentication import Authentication, NotAuthentic
from torchmdla.compile_service.cache import parse_artifact
from torchmdla.compile_service.remote import RemoteFolder, Unreachable
from torchmdla.compiler.artifact import Artifact
from torchmdla.support import forks, limits, logs

URL_VARIABLE = "TORCHMDLA_STORE"
SECONDS_VARIABLE = "TORCHMDLA_STORE_SECONDS"

_SECONDS = 5.0

# File format: magic, length of the proof, proof, content. See _message for the bytes that the proof covers.
_MAGIC = b"mdla-store-1\n".ljust(16, b"\0")
_HEAD = struct.Struct("<16sI")

_KIND = "artifact"

# Reason for a refused entry. It does not contain text that the writer of the entry controls.
_NOT_AUTHENTIC = "not authentic: it is damaged, or its maker is not trusted"

# Maximum size in bytes of an entry that is read or written.
LARGEST_ENTRY = 256 << 20


@dataclass(frozen=True)
class StoreStatistics:
    """Counters of a process for its store.

    Attributes:
        hits: artifacts that were loaded from the store.
        misses: programs that the store did not have.
        stored: artifacts that were written to the store.
        waits: programs for which this process waited while another one compiled them.
        skipped: operations that were skipped after a failure.
        refused: reason → number of entries that are damaged or not authentic.
        problems: reason → number of operations that failed or timed out.
        seconds: time spent on reading, writing and waiting.
        bytes_read, bytes_written: sizes of artifacts.
    """

    hits: int = 0
    misses: int = 0
    stored: int = 0
    waits: int = 0
    skipped: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: StoreStatistics) -> StoreStatistics:
        return StoreStatistics(
            *(getattr(self, counter.name) + getattr(other, counter.name) for counter in fields(self))
        )

    def __sub__(self, other: StoreStatistics) -> StoreStatistics:
        return StoreStatistics(
            *(getattr(self, counter.name) - getattr(other, counter.name) for counter in fields(self))
        )


class Store:
    """Entries by program key, in a folder that other machines also write to.

    Args:
        folder: the folder of the entries.
        authentication: checks entries, and proves the entries of this process.
    """

    def __init__(self, folder: RemoteFolder, authentication: Authentication) -> None:
        self.folder = folder
        self.authentication = authentication
        self._reset_process_state()
        forks.reset_in_child(self._reset_process_state)

    @property
    def may_write(self) -> bool:
        """Return whether this process stores the artifacts that it compiles."""
        return self.authentication.may_write and not self.folder.is_read_only

    def load(self, key: str) -> Artifact | None:
        """Return the artifact of the program ``key``; None if it is missing, unreachable or refused."""
        start = time.perf_counter()
        artifact = data = None
        try:
            data = self.folder.read(entry_name(key), LARGEST_ENTRY)
            artifact = None if data is None else parse_artifact(self.unseal(_KIND, key, data), key)
        except Unreachable as problem:
            self.note(problem)
        except ValueError as error:
            reason = _NOT_AUTHENTIC if isinstance(error, NotAuthentic) else str(error)
            self._count(refused=Counter([reason]))
            logs.logger("cache").warning("%s: refused what the store has: %s", key[:16], error)
        self._count(
            hits=int(artifact is not None),
            misses=int(artifact is None),
            bytes_read=len(data or b""),
            seconds=time.perf_counter() - start,
        )
        return artifact

    def put(self, key: str, artifact: Artifact) -> bool:
        """Store an artifact, replacing the entry of its key, and return whether it was stored."""
        content = artifact.to_bytes()
        if not self.may_write or len(content) > LARGEST_ENTRY:
            return False
        start = time.perf_counter()
        entry = self.seal(_KIND, key, content)
        is_stored = True
        try:
            self.folder.write(entry_name(key), entry)
        except Unreachable as problem:
            self.note(problem)
            is_stored = False
        self._count(stored=int(is_stored), bytes_written=is_stored * len(entry), seconds=time.perf_counter() - start)
        return is_stored

    def remove(self, key: str) -> None:
        """Remove the artifact of the program ``key``, if it exists and the store permits it."""
        try:
            self.folder.remove(entry_name(key))
        except Unreachable as problem:
            self.note(problem)

    def seal(self, kind: str, key: str, content: bytes) -> bytes:
        """Return the file content: a proof, then ``content``, for a program's file of this kind."""
        proof = self.authentication.prove(_message(kind, key, content))
        return _HEAD.pack(_MAGIC, len(proof)) + proof + content

    def unseal(self, kind: str, key: str, data: bytes) -> bytes:
        """Return the content of a file that :meth:`seal` made.

        Raises:
            NotAuthentic: ``data`` does not have this format, or was not made by a trusted party.
        """
        magic, length = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0)
        if magic != _MAGIC:
            raise NotAuthentic("it is not a file of a store, or has another version")
        proof, content = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
        self.authentication.check(_message(kind, key, content), proof)
        return content

    def note(self, problem: Unreachable) -> None:
        """Count an operation that failed."""
        if not problem.is_tried:
            self._count(skipped=1)
            return
        self._count(problems=Counter([problem.reason]))
        logs.logger("cache").warning("the store %s: %s", self.folder.url, problem)

    def note_wait(self, seconds: float) -> None:
        """Count a program that this process waited for."""
        self._count(waits=1, seconds=seconds)

    def statistics(self) -> StoreStatistics:
        """Return a copy of the counters."""
        with self._lock:
            return self._statistics + StoreStatistics()

    def _count(self, **counts: Any) -> None:
        with self._lock:
            self._statistics += StoreStatistics(**counts)

    def _reset_process_state(self) -> None:
        """Initialise the state that belongs to one process."""
        self._lock = threading.Lock()
        self._statistics = StoreStatistics()


def from_environment() -> Store | None:
    """Return the store that the environment names; warn and return None if it cannot be used."""
    url = os.environ.get(URL_VARIABLE, "")
    if not url:
        return None
    try:
        seconds = limits.variable(SECONDS_VARIABLE, limits.duration, _SECONDS)
        return Store(RemoteFolder(url, seconds), authentication.from_environment())
    except (ValueError, ImportError, OSError) as error:
        warnings.warn(f"torchmdla: {URL_VARIABLE}={url} is not used: {error}", RuntimeWarning, stacklevel=2)
        return None


def entry_name(key: str) -> str:
    """Return the file name of the artifact of the program ``key``.

    Entries are spread over many folders, because file systems and object stores slow down with very large folders.
    """
    return f"{key[:2]}/{key}.entry"


def _message(kind: str, key: str, content: bytes) -> bytes:
    """Return the bytes that a proof covers. An entry under another name is therefore not authentic."""
    return f"{kind} {key}\n".encode() + content
