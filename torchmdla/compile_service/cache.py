"""Cache on disk of artifacts and small blocks, one file each, shared by all processes of a user.

The blocks are measurements and descriptions of machines (:mod:`torchmdla.compile_service.records`).

The files are run as native code, or they affect which code is run. Therefore the folder and each file must belong to
the effective user, and no other user may be able to write to them. This is checked on open descriptors, not on names.
Every file contains the hash of its content. An artifact also contains the key of its program.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import platformdirs

from torchmdla.compiler.artifact import Artifact
from torchmdla.support import limits

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_PATH_VARIABLE = "TORCHMDLA_CACHE_DIR"

_SUFFIX = ".artifact"

# Kinds of blocks beside artifacts: measurements of kernels, comparisons with PyTorch's operators, and descriptions of
# machines (records.py).
BlockKind = Literal["records", "speed", "host"]
_TEMPORARY, _LOCK = ".tmp", ".turn"
_NAME = re.compile(r"[0-9a-f]{64}\.(artifact|records|speed|host|turn)(\.[0-9a-f]+\.tmp)?")

# An unfinished file older than this (in seconds) was abandoned by its writer.
_ABANDONED_AFTER = 600.0

# The checks need descriptors of folders. Systems without them (Windows) do not have a cache.
_SUPPORTED = {os.open, os.stat, os.unlink, os.rename} <= os.supports_dir_fd and hasattr(os, "geteuid")


class Unusable(Exception):
    """Error for a folder that cannot or must not be used; the message contains the reason."""


@dataclass(frozen=True)
class CacheInfo:
    """State of a cache.

    ``size`` and ``limit`` are in bytes. ``problem`` is the reason why the cache is not used, or empty.
    """

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
    """Folder of artifacts.

    Methods do not raise errors of the file system: without a cache, programs are compiled. Any number of threads and
        processes may use one folder. Files are written under a temporary name and renamed, so readers see complete
        files only.

    Args:
        path: the folder, created by the first :meth:`store`. The default is the environment variable
            ``TORCHMDLA_CACHE_DIR``, else the user's cache folder.
        limit: the maximum size in bytes, 0 for no cache. The default is ``TORCHMDLA_CACHE_SIZE`` (``512M``, ``2G``),
            else 1 GiB. Least recently used files are evicted first. Each process that writes may exceed the limit by
            1/32.
    """

    def __init__(self, path: Path | None = None, limit: int | None = None) -> None:
        self._configuration_problem = "" if _SUPPORTED else "not supported on this system"
        self.path = _default_path() if path is None else path.absolute()
        try:
            self.limit = limits.variable("TORCHMDLA_CACHE_SIZE", limits.size, 1 << 30) if limit is None else limit
        except ValueError as error:
            self.limit = 0
            self._configuration_problem = str(error)
            warnings.warn(f"torchmdla: {error}; nothing is kept on disk", RuntimeWarning, stacklevel=2)
        # The reason why the last store failed. info() cannot detect it (a full disk) by reading the folder.
        self._store_problem = ""
        # A warning is issued once, and only for a folder that the environment variable names.
        self._is_warned = path is not None or not os.environ.get(_PATH_VARIABLE)
        # Bytes that may be stored before the folder is measured again.
        self._allowance = 0

    def load(self, key: str) -> Artifact | None:
        """Return the artifact of the program ``key``, or None.

        A hit counts as use. A damaged file is removed.
        """
        name = _file_name(key)
        try:
            with self._folder() as folder:
                data = self._read(folder, name)
                try:
                    return parse_artifact(data, key)
                except ValueError:
                    os.unlink(name, dir_fd=folder)
        except (Unusable, OSError):
            pass
        return None

    def store(self, key: str, artifact: Artifact) -> bool:
        """Store ``artifact`` under ``key`` and return whether it was stored.

        The result is False if the artifact is larger than the limit, or for the reason in :meth:`info`.
        """
        return self._store(_file_name(key), artifact.to_bytes())

    def load_block(self, kind: BlockKind, key: str) -> bytes | None:
        """Return the block of this kind that was stored under ``key``, or None.

        ``key`` is a hash in hexadecimal. A hit counts as use.
        """
        try:
            with self._folder() as folder:
                return self._read(folder, _file_name(key, f".{kind}"))
        except (Unusable, OSError):
            return None

    @contextlib.contextmanager
    def lock(self, key: str, patience: float) -> Iterator[bool]:
        """Lock the program ``key``, and yield whether this process had to wait for it.

        Other processes that share this cache wait until it is unlocked. If this process had to wait, the cache may
        contain the artifact now. Where locks are not supported, the result is False and processes do not wait.

        Args:
            key: the key of the program.
            patience: the maximum time to wait, in seconds.
        """
        with contextlib.ExitStack() as stack:
            waited = False
            with contextlib.suppress(Unusable, OSError):
                folder = stack.enter_context(self._folder(create=True))
                waited = stack.enter_context(_lock_file(folder, _file_name(key, _LOCK), patience))
            yield waited

    def store_block(self, kind: BlockKind, key: str, data: bytes) -> bool:
        """Store a block, as :meth:`store` does an artifact."""
        return self._store(_file_name(key, f".{kind}"), data)

    def clear_records(self) -> int:
        """Remove all measurements and return the number of removed files."""
        return self._clear(".records") + self._clear(".speed")

    def _store(self, name: str, data: bytes) -> bool:
        if len(data) > self.limit:
            return False
        try:
            with self._folder(create=True) as folder:
                self._evict(folder, len(data))
                _write(folder, name, data)
        except Unusable as error:
            self._warn_once(str(error))
            return False
        except OSError as error:
            self._store_problem = _reason(error)
            self._warn_once(self._store_problem)
            return False
        self._store_problem = ""
        return True

    def _warn_once(self, problem: str) -> None:
        """Warn once that nothing is stored in the folder that the environment variable names."""
        if not self._is_warned and not self._configuration_problem and self.limit > 0:
            self._is_warned = True
            warnings.warn(
                f"torchmdla: nothing is kept on disk, {_PATH_VARIABLE}={self.path}: {problem}",
                RuntimeWarning,
                stacklevel=3,
            )

    def remove(self, key: str) -> None:
        """Remove the artifact of the program ``key``, if there is one."""
        with contextlib.suppress(Unusable, OSError), self._folder() as folder:
            os.unlink(_file_name(key), dir_fd=folder)

    def keys(self) -> list[str]:
        """Return the keys of the programs whose artifacts are stored."""
        with contextlib.suppress(Unusable, OSError), self._folder() as folder:
            return [entry.name.removesuffix(_SUFFIX) for entry in _entries(folder) if entry.name.endswith(_SUFFIX)]
        return []

    def clear(self) -> int:
        """Remove every artifact and return the number of removed artifacts.

        Measurements are retained.
        """
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
        """Return the size of the folder, and the reason if it cannot be used."""
        entries: list[_Entry] = []
        problem = self._store_problem
        try:
            with self._folder() as folder:
                entries = _entries(folder)
            if not os.access(self.path, os.W_OK | os.X_OK):
                problem = "not writable"
        except FileNotFoundError:
            parent = next(folder for folder in self.path.parents if folder.exists())
            if not problem and not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
                problem = f"cannot be created: {parent} is not a writable folder"
        except (Unusable, OSError) as error:
            problem = _reason(error)
        artifacts = sum(entry.name.endswith(_SUFFIX) for entry in entries)
        return CacheInfo(self.path, artifacts, sum(entry.size for entry in entries), self.limit, problem)

    def unnamed_file(self) -> IO[bytes]:
        """Return an empty file that is removed when it is closed.

        It is in the folder, which is on a disk, or among the temporary files if the folder cannot be used.
        """
        try:
            with self._folder(create=True):
                return tempfile.TemporaryFile(dir=self.path)
        except (Unusable, OSError):
            return tempfile.TemporaryFile()

    @contextlib.contextmanager
    def _folder(self, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder.

        The folder is checked at each use, because it may have been replaced.
        """
        if self._configuration_problem:
            raise Unusable(self._configuration_problem)
        if self.limit <= 0:
            raise Unusable("switched off: the limit is 0")
        if not self.path.is_absolute():
            raise Unusable("the user has no home folder; set TORCHMDLA_CACHE_DIR")
        if create:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check_private(os.fstat(descriptor), "the folder")
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, folder: int, name: str) -> bytes:
        """Return the content of the file, if it is a plain file that only this user can have written."""
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

    def _evict(self, folder: int, size: int) -> None:
        """Remove abandoned temporary files and the least recently used files, so that ``size`` bytes fit."""
        if size <= self._allowance:
            self._allowance -= size
            return
        slack = self.limit // 32
        total = size
        # Newest first, so the files that exceed the limit are the least recently used ones.
        for entry in sorted(_entries(folder), key=lambda entry: -entry.modified):
            total += entry.size
            unfinished = entry.name.endswith((_TEMPORARY, _LOCK))
            if entry.modified < time.time() - _ABANDONED_AFTER if unfinished else total > self.limit - slack:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=folder)
                total -= entry.size
        self._allowance = min(slack, self.limit - total)


def _default_path() -> Path:
    chosen = os.environ.get(_PATH_VARIABLE) or platformdirs.user_cache_dir("torchmdla", appauthor=False)
    expanded = Path(os.path.expanduser(chosen))
    # Without a home folder, expanduser() leaves "~" unchanged. A folder of that name must not be created.
    return expanded if expanded.parts[0].startswith("~") else expanded.absolute()


def _file_name(key: str, suffix: str = _SUFFIX) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", key):
        raise ValueError(f"not the key of a program: {key!r}")
    return key + suffix


def _check_private(status: os.stat_result, what: str) -> None:
    if status.st_uid != os.geteuid():
        raise Unusable(f"{what} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"{what} is writable by others (mode {stat.S_IMODE(status.st_mode):04o})")


def parse_artifact(data: bytes, key: str) -> Artifact:
    """Return the artifact of the program ``key`` that ``data`` contains.

    Raises:
        ValueError: ``data`` is damaged, or is the artifact of another program.
    """
    artifact = Artifact.from_bytes(data)
    if artifact.manifest.program != key:
        raise ValueError("the artifact of another program")
    return artifact


def _write(folder: int, name: str, data: bytes) -> None:
    """Write the file under a temporary name and rename it, so that readers see complete files only."""
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
    """Return the artifacts, other blocks and unfinished files in the folder.

    Files with other names do not belong to the cache.
    """
    entries = []
    for name in os.listdir(folder):
        if not _NAME.fullmatch(name):
            continue
        with contextlib.suppress(FileNotFoundError):  # Another process removed it first.
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                entries.append(_Entry(name, status.st_size, status.st_mtime))
    return entries


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


# Mutual exclusion of compiles of one program, among the processes of a machine that share a cache


# Polling interval of a waiting process: the first and the longest in seconds, and the factor between successive ones.
_FIRST_POLL, _LONGEST_POLL, _POLL_BACKOFF = 0.01, 0.25, 1.5


@contextlib.contextmanager
def _lock_file(folder: int, name: str, patience: float) -> Iterator[bool]:
    """Lock a file, and yield whether this process had to wait for the lock.

    The system releases the lock when the process ends. The lock is a record lock (POSIX ``fcntl``), which the child of
    a fork does not inherit.
    """
    if fcntl is None:
        yield False
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        waited = _lock_within(descriptor, patience)
        try:
            yield waited
        finally:
            # Removed while it is locked: waiting processes then load the artifact, and later processes create a new
            # file.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, patience: float) -> bool:
    """Lock the file within ``patience`` seconds if possible, and return whether it had to wait."""
    until, pause, waited = time.monotonic() + patience, _FIRST_POLL, False
    while not _try_lock(descriptor) and time.monotonic() < until:
        waited = True
        time.sleep(pause)
        pause = min(_LONGEST_POLL, pause * _POLL_BACKOFF)
    return waited


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either error.
        return False
    return True
