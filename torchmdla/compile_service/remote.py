"""A folder that other machines share, by any file system that fsspec opens, in bounded time.

What is slow or broken there must not slow a program: each operation has a time limit, and after one that failed the
folder is left alone for a while.
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

# Seconds for which a folder is left alone after a failure, doubled with each in a row.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0

# Operations that were given up and may hang for ever: with so many of them nothing is tried.
_MOST_ABANDONED = 4

# File systems where a file written in place can be seen half written. What object stores write appears whole.
_WRITTEN_IN_PLACE = frozenset({"file", "local", "sftp", "ssh", "smb", "hdfs", "arrow_hdfs", "ftp"})

# Those of which a read of a part may be answered by the whole, however large that is.
_WITHOUT_PARTS = frozenset({"http", "https"})

# Statuses of HTTP (RFC 9110) that say that there is no such file.
_MISSING = (404, 410)


class Unreachable(Exception):
    """An operation failed, took too long, or is not tried after one that did. ``reason`` names no file."""

    def __init__(self, reason: str, *, is_tried: bool = True) -> None:
        self.reason = reason
        self.is_tried = is_tried
        super().__init__(reason)


@dataclass
class _Connection:
    """Everything that belongs to one process."""

    process: int = field(default_factory=os.getpid)
    opening: threading.Lock = field(default_factory=threading.Lock)
    system: tuple[Any, str] | None = None
    abandoned: list[threading.Thread] = field(default_factory=list)
    failures: int = 0
    paused_until: float = 0.0


class RemoteFolder:
    """A folder at ``url``. Any thread may use it; after a fork the child opens it anew.

    Args:
        url: what ``fsspec`` opens: a path, ``s3://bucket/prefix``, ``https://…``. Options of its file systems
            (endpoints, credentials) are fsspec's own: files in ``~/.config/fsspec`` and variables ``FSSPEC_…``.
        seconds: the most that one operation may take.

    Raises:
        ValueError: no such protocol. ImportError: the package of a protocol is not installed.
    """

    def __init__(self, url: str, seconds: float) -> None:
        # Not at the top: most processes have no store, and this takes a tenth of a second.
        import fsspec

        self.url = url
        self._fsspec: Any = fsspec
        self._seconds = seconds
        self._protocol: str = fsspec.utils.get_protocol(url)
        # Resolved now: programs may change their folder.
        is_path = self._protocol in ("file", "local") and "://" not in url
        self._url = os.path.abspath(url) if is_path else url
        fsspec.get_filesystem_class(self._protocol)
        self._connection = _Connection()

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written there, whoever asks."""
        return self._protocol in _WITHOUT_PARTS

    def read(self, name: str, limit: int) -> bytes | None:
        """The content of a file, None where there is none.

        Raises:
            Unreachable: it cannot be read, or is longer than ``limit`` bytes.
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
        """Writes a file, in the place of one of that name: readers see all of it or nothing.

        Raises:
            Unreachable: it cannot be written.
        """

        def write(system: Any, path: str) -> None:
            if self._protocol not in _WRITTEN_IN_PLACE:
                system.pipe_file(path, data)
                return
            temporary = f"{path}.{secrets.token_hex(8)}.tmp"
            try:
                # "x": whoever may write to the folder must not lead this process to another file by a link.
                with system.open(temporary, "xb") as file:
                    file.write(data)
                system.mv(temporary, path)
            except BaseException:
                with contextlib.suppress(Exception):
                    system.rm_file(temporary)
                raise

        self._call(write, name)

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file unless there is one of that name; whether it was written.

        Raises:
            Unreachable: it cannot be written.
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
        """Removes a file, if it is there.

        Raises:
            Unreachable: it cannot be removed.
        """

        def remove(system: Any, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                system.rm_file(path)

        self._call(remove, name)

    def _call(self, operation: Callable[[Any, str], Result], name: str) -> Result:
        """``operation`` on the file system and a path, on a thread of its own, which is left to itself where it takes
        too long."""
        connection = self._checked_connection()
        outcome: list[Result] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                system, root = self._opened(connection)
                outcome.append(operation(system, posixpath.join(root, name)))
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=run, name="torchmdla-store", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # There can be no more threads.
            raise Unreachable(str(error)) from error
        if not done.wait(self._seconds):
            connection.abandoned.append(thread)
            _pause(connection)
            raise Unreachable(f"no answer within {self._seconds:g} s")
        if errors:
            _pause(connection)
            raise Unreachable(_described(errors[0])) from errors[0]
        connection.failures = 0
        return outcome[0]

    def _opened(self, connection: _Connection) -> tuple[Any, str]:
        with connection.opening:
            if connection.system is None:
                options = {"auto_mkdir": True} if self._protocol in ("file", "local") else {}
                connection.system = self._fsspec.url_to_fs(
                    self._url, skip_instance_cache=True, use_listings_cache=False, **options
                )
            return connection.system

    def _checked_connection(self) -> _Connection:
        """Raises:
        Unreachable: it is not asked, so soon after a failure.
        """
        if self._connection.process != os.getpid():
            self._connection = _Connection()
        connection = self._connection
        connection.abandoned = [thread for thread in connection.abandoned if thread.is_alive()]
        if time.monotonic() < connection.paused_until or len(connection.abandoned) >= _MOST_ABANDONED:
            raise Unreachable("not asked again so soon after a failure", is_tried=False)
        return connection


def _read_by_http(system: Any, path: str, most: int) -> bytes:
    """So many bytes, or all of a file that is shorter.

    Raises:
        FileNotFoundError: there is none.
    """
    data = bytearray()
    try:
        with system.open(path, "rb") as file:
            while len(data) < most and (more := file.read(most - len(data))):  # Streams give what has come.
                data += more
    except FileNotFoundError as error:
        # Whatever failed is said to be missing, because of what failed.
        cause = error.__cause__
        if cause is not None and getattr(cause, "status", None) not in _MISSING:
            raise cause from None
        raise
    return bytes(data)


def _pause(connection: _Connection) -> None:
    connection.failures += 1
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(connection.failures - 1, 10))
    connection.paused_until = time.monotonic() + pause


def _described(error: BaseException) -> str:
    """An error without the names of files in it, so that equal reasons count as one."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
    return f"{type(error).__name__}: {reason}"[:200]
