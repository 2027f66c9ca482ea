"""Mutual exclusion of compiles of one program, among the processes of a machine that share a cache."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Polling interval of a waiting process: the first and the longest in seconds, and the factor between successive ones.
_FIRST_LOOK, _LONGEST_LOOK, _SLOWER = 0.01, 0.25, 1.5


@contextlib.contextmanager
def turn(folder: int, name: str, patience: float) -> Iterator[bool]:
    """Lock a file, and yield whether this process had to wait for the lock.

    The system releases the lock when the process ends. The lock is a record lock (POSIX ``fcntl``), which the child of
    a fork does not inherit.

    Args:
        folder: a descriptor of the folder of the file ``name``.
        name: the name of the file.
        patience: the maximum time to wait, in seconds. After that, two processes have the turn.

    Raises:
        OSError: the file cannot be created or locked.
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
            # Removed while it is locked: waiting processes then load the artifact, and later processes create a new
            # file.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, patience: float) -> bool:
    """Lock the file within ``patience`` seconds if possible, and return whether it had to wait."""
    until, pause, waited = time.monotonic() + patience, _FIRST_LOOK, False
    while not _locked(descriptor) and time.monotonic() < until:
        waited = True
        time.sleep(pause)
        pause = min(_LONGEST_LOOK, pause * _SLOWER)
    return waited


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either error.
        return False
    return True
