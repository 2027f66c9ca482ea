"""Whose turn it is to compile a program, among the processes of a machine that share a cache."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Seconds between a waiting process's looks: the first, the longest, and by what each is longer than the one before.
_FIRST_LOOK, _LONGEST_LOOK, _SLOWER = 0.01, 0.25, 1.5


@contextlib.contextmanager
def turn(folder: int, name: str, patience: float) -> Iterator[bool]:
    """A turn, which processes take by locking a file; the system unlocks that of one that ends. Yields whether this one
    had to wait.

    The lock is a record lock (POSIX ``fcntl``), which the child of a fork does not have.

    Args:
        folder: a descriptor of the folder of the file ``name``.
        patience: the most seconds to wait; then there are two whose turn it is.

    Raises:
        OSError: the file cannot be made or locked.
    """
    if fcntl is None:
        yield False
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        waited = _wait(descriptor, patience)
        try:
            yield waited
        finally:
            # While it is locked: whoever waits for it finds what was made, and others make a new file.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, patience: float) -> bool:
    """Locks the file, if that comes in time; whether it had to be waited for."""
    until, pause, waited = time.monotonic() + patience, _FIRST_LOOK, False
    while not _locked(descriptor) and time.monotonic() < until:
        waited = True
        time.sleep(pause)
        pause = min(_LONGEST_LOOK, pause * _SLOWER)
    return waited


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # Either is what POSIX lets a system say.
        return False
    return True
