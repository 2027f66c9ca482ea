"""Artifacts on disk, one file each, shared by every process of a user, what was measured of kernels
(:mod:`torchmdla.compile_service.records`), and what devices know of machines (:mod:`torchmdla.compile_service.hosts`).

What is read here is run as native code, or decides on it. So the folder and each file must belong to the effective
user and be writable by nobody else, checked on open descriptors rather than on names, and every file carries the hash
of its content; an artifact, the key of its program, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from torchmdla.compile_service import turns
from torchmdla.compiler.artifact import Artifact
from torchmdla.support import limits

DEFAULT_LIMIT = 1 << 30

_PATH_VARIABLE = "TORCHMDLA_CACHE_DIR"

_SUFFIX = ".artifact"

# What is kept beside artifacts: measurements of kernels (records.py), descriptions of machines (hosts.py).
BlockKind = Literal["records", "host"]
_TEMPORARY, _TURN = ".tmp", ".turn"
_NAME = re.compile(r"[0-9a-f]{64}\.(artifact|records|host|turn)(\.[0-9a-f]+\.tmp)?")

# A file being written for longer than this, in seconds, has lost its writer.
_ABANDONED_AFTER = 600.0

# Descriptors of folders are what makes the checks sound; where there are none (Windows), there is no cache.
_SUPPORTED = {os.open, os.stat, os.unlink, os.rename} <= os.supports_dir_fd and hasattr(os, "geteuid")


class Unusable(Exception):
    """The folder cannot or must not be used; the message says why."""


@dataclass(frozen=True)
class CacheInfo:
    """The state of a cache: ``size`` and ``limit`` in bytes; ``problem`` says why it is not used, else is empty."""

    path: Path
    entries: int
    size: int
    limit: int
    problem: str = ""


@dataclass(frozen=True)
class _Entry:
    name: str
    size: int
    modified: float


class DiskCache:
    """A folder of artifacts. No method raises for the sake of the file system: without a cache one compiles.

    Any number of threads and processes may use one folder. Files appear whole, by renaming.

    Args:
        path: the folder, made at the first :meth:`store`. By default the environment variable
            ``TORCHMDLA_CACHE_DIR``, else the user's cache folder.
        limit: the most bytes to keep, 0 for no cache. By default ``TORCHMDLA_CACHE_SIZE`` (``512M``, ``2G``), else
            1 GiB. Least recently used files go first. Each process that writes may exceed it by 1/32.
    """

    def __init__(self, path: Path | None = None, limit: int | None = None) -> None:
        self._configuration_problem = "" if _SUPPORTED else "not supported on this system"
        self.path = _default_path() if path is None else path.absolute()
        try:
            self.limit = _default_limit() if limit is None else limit
        except ValueError as error:
            self.limit = 0
            self._configuration_problem = str(error)
            warnings.warn(f"torchmdla: {error}; nothing is kept on disk", RuntimeWarning, stacklevel=2)
        # Why the system refused the last store: info() cannot see that (a full disk) by looking.
        self._store_problem = ""
        # A folder that was asked for by name is missed; any other is only a help.
        self._is_told = path is not None or not os.environ.get(_PATH_VARIABLE)
        # Bytes that may be stored before the folder is measured again.
        self._allowance = 0

    def load(self, key: str) -> Artifact | None:
        """The artifact of the program ``key``, or None. A hit counts as use; a damaged file is removed."""
        name = _file_name(key)
        try:
            with self._folder() as folder:
                data = self._read(folder, name)
                try:
                    return _parse(data, key)
                except ValueError:
                    os.unlink(name, dir_fd=folder)
        except (Unusable, OSError):
            pass
        return None

    def store(self, key: str, artifact: Artifact) -> bool:
        """Keeps ``artifact`` under ``key``. False if it is larger than the limit, or for the reason in :meth:`info`."""
        return self._store(_file_name(key), artifact.to_bytes())

    def load_block(self, kind: BlockKind, key: str) -> bytes | None:
        """The block of that kind that was stored under ``key``, a hash in hexadecimal. A hit counts as use."""
        try:
            with self._folder() as folder:
                return self._read(folder, _file_name(key, f".{kind}"))
        except (Unusable, OSError):
            return None

    @contextlib.contextmanager
    def turn(self, key: str, patience: float) -> Iterator[bool]:
        """A turn at the program ``key``: other processes that have this cache wait until it is left. Yields whether
        this one had to wait, so that there may be an artifact now. Where no turns can be taken, it is anybody's.

        Args:
            patience: the most seconds to wait.
        """
        with contextlib.ExitStack() as stack:
            waited = False
            with contextlib.suppress(Unusable, OSError):
                folder = stack.enter_context(self._folder(create=True))
                waited = stack.enter_context(turns.turn(folder, _file_name(key, _TURN), patience))
            yield waited

    def store_block(self, kind: BlockKind, key: str, data: bytes) -> bool:
        """Keeps a block, as :meth:`store` does an artifact."""
        return self._store(_file_name(key, f".{kind}"), data)

    def clear_records(self) -> int:
        """Removes all that was measured. Returns how many files."""
        return self._clear(".records")

    def _store(self, name: str, data: bytes) -> bool:
        if len(data) > self.limit:
            return False
        try:
            with self._folder(create=True) as folder:
                self._make_room(folder, len(data))
                _write(folder, name, data)
        except Unusable as error:
            self._tell(str(error))
            return False
        except OSError as error:
            self._store_problem = _reason(error)
            self._tell(self._store_problem)
            return False
        self._store_problem = ""
        return True

    def _tell(self, problem: str) -> None:
        """Says once that nothing is kept in the folder that the environment names."""
        if not self._is_told and not self._configuration_problem and self.limit > 0:
            self._is_told = True
            warnings.warn(
                f"torchmdla: nothing is kept on disk, {_PATH_VARIABLE}={self.path}: {problem}",
                RuntimeWarning,
                stacklevel=3,
            )

    def remove(self, key: str) -> None:
        """Removes the artifact of the program ``key``, if there is one."""
        with contextlib.suppress(Unusable, OSError), self._folder() as folder:
            os.unlink(_file_name(key), dir_fd=folder)

    def keys(self) -> list[str]:
        """Of which programs there are artifacts."""
        with contextlib.suppress(Unusable, OSError), self._folder() as folder:
            return [entry.name.removesuffix(_SUFFIX) for entry in _entries(folder) if entry.name.endswith(_SUFFIX)]
        return []

    def clear(self) -> int:
        """Removes every artifact. Returns how many. What was measured stays."""
        return self._clear(_SUFFIX)

    def _clear(self, suffix: str) -> int:
        count = 0
        with contextlib.suppress(Unusable, OSError), self._folder() as folder:
            for entry in _entries(folder):
                if suffix in entry.name:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.name, dir_fd=folder)
                        count += entry.name.endswith(suffix)
        return count

    def info(self) -> CacheInfo:
        """Measures the folder and says whether it can be used."""
        entries: list[_Entry] = []
        problem = self._store_problem
        try:
            with self._folder() as folder:
                entries = _entries(folder)
            if not os.access(self.path, os.W_OK | os.X_OK):
                problem = "not writable"
        except FileNotFoundError:
            problem = problem or self._creation_problem()
        except (Unusable, OSError) as error:
            problem = _reason(error)
        artifacts = sum(entry.name.endswith(_SUFFIX) for entry in entries)
        return CacheInfo(self.path, artifacts, sum(entry.size for entry in entries), self.limit, problem)

    @contextlib.contextmanager
    def _folder(self, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder, checked anew each time: it may have been replaced since.

        Raises:
            Unusable, OSError: there is no folder, or it is not ours alone to write.
        """
        if self._configuration_problem:
            raise Unusable(self._configuration_problem)
        if self.limit <= 0:
            raise Unusable("switched off: the limit is 0")
        if not self.path.is_absolute():
            raise Unusable("there is no home folder; set TORCHMDLA_CACHE_DIR")
        if create:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check_private(os.fstat(descriptor), "the folder")
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, folder: int, name: str) -> bytes:
        """The file's bytes, if it is a plain file that only this user can have written."""
        # O_NONBLOCK: opening a FIFO would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Unusable("the file is not a plain one")
            _check_private(status, "the file")
            if status.st_size > self.limit:
                raise Unusable("the file is larger than the cache may be")
            data = file.read()
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
        return data

    def _make_room(self, folder: int, size: int) -> None:
        """Removes what writers left behind, and the least recently used files, so that ``size`` bytes fit."""
        if size <= self._allowance:
            self._allowance -= size
            return
        slack = self.limit // 32
        total = size
        # Newest first: what no longer fits is what was not used for longest.
        for entry in sorted(_entries(folder), key=lambda entry: -entry.modified):
            total += entry.size
            unfinished = entry.name.endswith((_TEMPORARY, _TURN))
            if entry.modified < time.time() - _ABANDONED_AFTER if unfinished else total > self.limit - slack:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=folder)
                total -= entry.size
        self._allowance = min(slack, self.limit - total)

    def _creation_problem(self) -> str:
        """Why the folder, which is not there, cannot be made at the first store."""
        parent = next(folder for folder in self.path.parents if folder.exists())
        if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
            return ""
        return f"cannot be created: {parent} is not a writable folder"


def _default_path() -> Path:
    chosen = os.environ.get(_PATH_VARIABLE) or platformdirs.user_cache_dir("torchmdla", appauthor=False)
    expanded = Path(os.path.expanduser(chosen))
    # Where there is no home, "~" is left as it is. It must not become a folder of that name.
    return expanded if expanded.parts[0].startswith("~") else expanded.absolute()


def _default_limit() -> int:
    return limits.variable("TORCHMDLA_CACHE_SIZE", limits.size, DEFAULT_LIMIT)


def _file_name(key: str, suffix: str = _SUFFIX) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", key):
        raise ValueError(f"not the key of a program: {key!r}")
    return key + suffix


def _check_private(status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise Unusable(f"{what} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"{what} is writable by others (mode {stat.S_IMODE(status.st_mode):04o})")


def _parse(data: bytes, key: str) -> Artifact:
    """Raises ValueError unless ``data`` is the artifact of the program ``key``."""
    artifact = Artifact.from_bytes(data)
    if artifact.manifest.program != key:
        raise ValueError("the artifact of another program")
    return artifact


def _write(folder: int, name: str, data: bytes) -> None:
    """Writes the file under another name and renames it: readers see all of it or nothing."""
    temporary = f"{name}.{secrets.token_hex(8)}{_TEMPORARY}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _entries(folder: int) -> list[_Entry]:
    """The artifacts, other blocks and unfinished files in the folder; what has another name is not the cache's."""
    entries = []
    for name in os.listdir(folder):
        if not _NAME.fullmatch(name):
            continue
        with contextlib.suppress(FileNotFoundError):  # Another process was quicker.
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                entries.append(_Entry(name, status.st_size, status.st_mtime))
    return entries


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
