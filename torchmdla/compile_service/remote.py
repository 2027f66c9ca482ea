"""Folder that machines share, on any file system that fsspec opens, with bounded time for each operation.

A slow or broken file system must not slow a program. Each operation has a time limit. After a failure, the folder is
not accessed for a while.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")

# Seconds without access after a failure, doubled with each consecutive failure.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0

# The maximum number of abandoned operations, which may hang forever. At this number no operation is tried.
_MOST_ABANDONED = 4

# Protocols where readers can see a half-written file. Files on object stores appear only when complete.
_WRITTEN_IN_PLACE = frozenset({"file", "local", "sftp", "ssh", "smb", "hdfs", "arrow_hdfs", "ftp"})

# Protocols where a read of a part may return the whole file, of any size.
_WITHOUT_PARTS = frozenset({"http", "https"})

# HTTP status codes (RFC 9110) for a file that does not exist.
_MISSING = (404, 410)


class Unreachable(Exception):
    """Error for an operation that failed, timed out, or was skipped after a failure.

    ``reason`` does not contain file names.
    """

    def __init__(self, reason: str, *, is_tried: bool = True) -> None:
        self.reason = reason
        self.is_tried = is_tried
        super().__init__(reason)


@dataclass
class _Connection:
    """State of a folder that belongs to one process."""

    process: int = field(default_factory=os.getpid)
    opening: threading.Lock = field(default_factory=threading.Lock)
    system: tuple[Any, str] | None = None
    abandoned: list[threading.Thread] = field(default_factory=list)
    failures: int = 0
    paused_until: float = 0.0


class RemoteFolder:
    """Folder at ``url``.

    Any thread may use it. After a fork, the child opens it again.

    Args:
        url: a URL that ``fsspec`` opens: a path, ``s3://bucket/prefix``, ``https://…``. fsspec reads the options of its
            file systems (endpoints, credentials) from files in ``~/.config/fsspec`` and variables ``FSSPEC_…``.
        seconds: the time limit of one operation.

    Raises:
        ValueError: the protocol does not exist.
        ImportError: the package of a protocol is not installed.
    """

    def __init__(self, url: str, seconds: float) -> None:
        # A local import: most processes do not have a store, and the import takes 0.1 s.
        import fsspec

        self.url = url
        self._fsspec: Any = fsspec
        self._seconds = seconds
        self._protocol: str = fsspec.utils.get_protocol(url)
        # Resolved now, because programs may change their working folder.
        is_path = self._protocol in ("file", "local") and "://" not in url
        self._url = os.path.abspath(url) if is_path else url
        fsspec.get_filesystem_class(self._protocol)
        self._connection = _Connection()

    @property
    def is_read_only(self) -> bool:
        """Return whether the folder is read-only for all users."""
        return self._protocol in _WITHOUT_PARTS

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the content of a file, or None if the file does not exist.

        Raises:
            Unreachable: the file cannot be read, or is longer than ``limit`` bytes.
        """

        def read(system: Any, path: str) -> bytes | None:
            try:
                if self._protocol in _WITHOUT_PARTS:
                    return _read_by_http(system, path, limit + 1)
                return bytes(system.cat_file(path, start=0, end=limit + 1))
            except FileNotFoundError:
                return None

        data = self._call(read, name)
        if data is not None and len(data) > limit:
            raise Unreachable("a file is longer than what is kept may be")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file, replacing one of that name.

        Readers see all of the file or nothing.

        Raises:
            Unreachable: the file cannot be written.
        """

        def write(system: Any, path: str) -> None:
            if self._protocol not in _WRITTEN_IN_PLACE:
                system.pipe_file(path, data)
                return
            temporary = f"{path}.{secrets.token_hex(8)}.tmp"
            try:
                # "x" refuses existing names: another user with write access could place a link there to redirect the
                # write.
                with system.open(temporary, "xb") as file:
                    file.write(data)
                system.mv(temporary, path)
            except BaseException:
                with contextlib.suppress(Exception):
                    system.rm_file(temporary)
                raise

        self._call(write, name)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless one of that name exists, and return whether it was written.

        Raises:
            Unreachable: the file cannot be written.
        """

        def create(system: Any, path: str) -> bool:
            try:
                if self._protocol not in _WRITTEN_IN_PLACE:
                    system.pipe_file(path, data, mode="create")
                    return True
                with system.open(path, "xb") as file:
                    file.write(data)
                return True
            except FileExistsError:
                return False

        return self._call(create, name)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists.

        Raises:
            Unreachable: the file cannot be removed.
        """

        def remove(system: Any, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(path)

        self._call(remove, name)

    def _call(self, operation: Callable[[Any, str], Result], name: str) -> Result:
        """Return the result of ``operation`` on the file system and a path.

        The operation runs on its own thread. The thread is abandoned if it takes too long.
        """
        connection = self._checked_connection()
        outcome: list[Result] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                system, root = self._open(connection)
                outcome.append(operation(system, posixpath.join(root, name)))
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=run, name="torchmdla-store", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # No more threads are available.
            raise Unreachable(str(error)) from error
        if not done.wait(self._seconds):
            connection.abandoned.append(thread)
            _pause(connection)
            raise Unreachable(f"no answer within {self._seconds:g} s")
        if errors:
            _pause(connection)
            cause = errors[0]
            # File names are left out, so that equal reasons count as one.
            reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause).partition("\n")[0]
            raise Unreachable(f"{type(cause).__name__}: {reason}"[:200]) from cause
        connection.failures = 0
        return outcome[0]

    def _open(self, connection: _Connection) -> tuple[Any, str]:
        with connection.opening:
            if connection.system is None:
                options = {"auto_mkdir": True} if self._protocol in ("file", "local") else {}
                connection.system = self._fsspec.url_to_fs(
                    self._url, skip_instance_cache=True, use_listings_cache=False, **options
                )
            return connection.system

    def _checked_connection(self) -> _Connection:
        """Return the connection of this process."""
        if self._connection.process != os.getpid():
            self._connection = _Connection()
        connection = self._connection
        connection.abandoned = [thread for thread in connection.abandoned if thread.is_alive()]
        if time.monotonic() < connection.paused_until or len(connection.abandoned) >= _MOST_ABANDONED:
            raise Unreachable("not asked again so soon after a failure", is_tried=False)
        return connection


def _read_by_http(system: Any, path: str, most: int) -> bytes:
    """Return the first ``most`` bytes of a file, or all of a shorter file."""
    data = bytearray()
    try:
        with system.open(path, "rb") as file:
            while len(data) < most and (more := file.read(most - len(data))):  # A stream may return fewer bytes.
                data += more
    except FileNotFoundError as error:
        # fsspec reports every failure as a missing file; the cause is the actual failure.
        cause = error.__cause__
        if cause is not None and getattr(cause, "status", None) not in _MISSING:
            raise cause from None
        raise
    return bytes(data)


def _pause(connection: _Connection) -> None:
    connection.failures += 1
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(connection.failures - 1, 10))
    connection.paused_until = time.monotonic() + pause
