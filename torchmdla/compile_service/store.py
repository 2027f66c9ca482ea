"""Artifacts that machines share: a second level behind the disk cache, at ``TORCHMDLA_STORE``.

An entry is an artifact and the proof of who made it. Neither the store nor the network is trusted: what is damaged or
not authentic is refused and counted, and compiled here. Nothing of it raises or waits without bound: a store that is
down costs a compile.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import warnings
import weakref
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from torchmdla.compile_service import authentication
from torchmdla.compile_service.authentication import Authentication, NotAuthentic
from torchmdla.compile_service.remote import RemoteFolder, Unreachable
from torchmdla.compiler.artifact import Artifact
from torchmdla.support import limits, logs

URL_VARIABLE = "TORCHMDLA_STORE"
SECONDS_VARIABLE = "TORCHMDLA_STORE_SECONDS"

_SECONDS = 5.0

# A file: magic, length of the proof, proof, content. What the proof is of stands in _message.
_MAGIC = b"mdla-store-1\n".ljust(16, b"\0")
_HEAD = struct.Struct("<16sI")

_KIND = "artifact"

# Why an entry is refused, without what whoever wrote it might vary.
_STRANGE = "not authentic: damaged, or made by nobody who is trusted"

# Bytes of the largest entry that is read or written.
LARGEST_ENTRY = 256 << 20


@dataclass(frozen=True)
class StoreStatistics:
    """What a process did with its store.

    Attributes:
        hits: artifacts that were taken from it.
        misses: programs that it did not have.
        stored: artifacts that were put there.
        waits: programs for which this process waited while another one compiled them.
        skipped: operations that were left out, after one that failed.
        refused: reason → number of entries that are damaged or not authentic.
        problems: reason → number of operations that failed or took too long.
        seconds: spent on reading, writing and waiting.
        bytes_read, bytes_written: of artifacts.
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
        return StoreStatistics(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __sub__(self, other: StoreStatistics) -> StoreStatistics:
        return StoreStatistics(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(self)))


class Store:
    """Entries by key of program, in a folder that others write to, too.

    Args:
        folder: where they are.
        authentication: whose entries are taken, and how this process's are proven.
    """

    def __init__(self, folder: RemoteFolder, authentication: Authentication) -> None:
        self.folder = folder
        self.authentication = authentication
        self._start_afresh()

    @property
    def may_write(self) -> bool:
        """Whether this process puts there what it compiles."""
        return self.authentication.may_write and not self.folder.is_read_only

    def load(self, key: str) -> Artifact | None:
        """The artifact of the program ``key``; None where there is none, or none that can be had or may be used."""
        start = time.perf_counter()
        artifact = data = None
        try:
            data = self.folder.read(entry_name(key), LARGEST_ENTRY)
            artifact = None if data is None else self._opened(key, data)
        except Unreachable as problem:
            self.note(problem)
        except ValueError as error:
            reason = _STRANGE if isinstance(error, NotAuthentic) else str(error)
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
        """Puts an artifact there, in the place of what is there under its key; whether it is there then."""
        content = artifact.to_bytes()
        if not self.may_write or len(content) > LARGEST_ENTRY:
            return False
        start = time.perf_counter()
        entry = self.proven(_KIND, key, content)
        is_stored = True
        try:
            self.folder.write(entry_name(key), entry)
        except Unreachable as problem:
            self.note(problem)
            is_stored = False
        self._count(stored=int(is_stored), bytes_written=is_stored * len(entry), seconds=time.perf_counter() - start)
        return is_stored

    def remove(self, key: str) -> None:
        """Removes the artifact of the program ``key``, if there is one and the store lets this process."""
        try:
            self.folder.remove(entry_name(key))
        except Unreachable as problem:
            self.note(problem)

    def proven(self, kind: str, key: str, content: bytes) -> bytes:
        """``content`` of a program's file of that kind, with the proof of who made it."""
        proof = self.authentication.prove(_message(kind, key, content))
        return _HEAD.pack(_MAGIC, len(proof)) + proof + content

    def content_of(self, kind: str, key: str, data: bytes) -> bytes:
        """The inverse of :meth:`proven`.

        Raises:
            NotAuthentic: ``data`` is nothing that was made so, or not by somebody who is trusted.
        """
        magic, length = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (b"", 0)
        if magic != _MAGIC:
            raise NotAuthentic("it is no file of a store, or one of another version")
        proof, content = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
        self.authentication.check(_message(kind, key, content), proof)
        return content

    def note(self, problem: Unreachable) -> None:
        """Counts an operation that failed."""
        if not problem.is_tried:
            self._count(skipped=1)
            return
        self._count(problems=Counter([problem.reason]))
        logs.logger("cache").warning("the store %s: %s", self.folder.url, problem)

    def note_wait(self, seconds: float) -> None:
        """Counts a program that this process waited for."""
        self._count(waits=1, seconds=seconds)

    def statistics(self) -> StoreStatistics:
        """A copy of the counts so far."""
        with self._lock:
            return self._statistics + StoreStatistics()

    def _opened(self, key: str, data: bytes) -> Artifact:
        """Raises:
        ValueError: it is no entry, or not authentic, or holds another program's artifact.
        """
        artifact = Artifact.from_bytes(self.content_of(_KIND, key, data))
        if artifact.manifest.program != key:
            raise ValueError("the artifact of another program")
        return artifact

    def _count(self, **counts: Any) -> None:
        with self._lock:
            self._statistics += StoreStatistics(**counts)

    def _start_afresh(self) -> None:
        """Everything that belongs to one process."""
        self._lock = threading.Lock()
        self._statistics = StoreStatistics()
        _stores.add(self)


def of_environment() -> Store | None:
    """The store that the environment names; None, with a warning, where it cannot be used."""
    url = os.environ.get(URL_VARIABLE, "")
    if not url:
        return None
    try:
        seconds = limits.variable(SECONDS_VARIABLE, limits.duration, _SECONDS)
        return Store(RemoteFolder(url, seconds), authentication.of_environment())
    except (ValueError, ImportError, OSError) as error:
        warnings.warn(f"torchmdla: {URL_VARIABLE}={url} is not used: {error}", RuntimeWarning, stacklevel=2)
        return None


def entry_name(key: str) -> str:
    """Where the artifact of the program ``key`` is. In many folders, since file systems and object stores alike slow
    down where one has very many."""
    return f"{key[:2]}/{key}.entry"


def _message(kind: str, key: str, content: bytes) -> bytes:
    """What a proof is of: an entry under another name is not authentic."""
    return f"{kind} {key}\n".encode() + content


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
