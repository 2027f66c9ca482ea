"""Leases: mutual exclusion of compiles of one program, among all processes that share a store.

The process that compiles has a *lease*: a file beside the entry, which it rewrites during the compile. Other processes
wait until the file is removed. They take over a lease that is no longer rewritten. Clocks are not compared: a process
only observes whether the file changes. Leases are authenticated like entries, so that an untrusted writer cannot make a
fleet wait.

Correctness does not depend on a single holder. With two holders, the program is compiled twice.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import threading
import time
from collections.abc import Iterator

from torchmdla.compile_service.remote import Unreachable
from torchmdla.compile_service.store import Store
from torchmdla.compiler.artifact import Artifact

# Seconds between a holder's writes, and seconds without a write after which the holder counts as gone.
RENEWAL, EXPIRY = 5.0, 20.0

# Polling interval of a waiting process: the first and the longest in seconds, and the factor between successive ones.
_FIRST_POLL, _LONGEST_POLL, _POLL_BACKOFF = 0.1, 3.0, 1.5

# Seconds from a takeover to the check whether another process took over later.
_SETTLING = 0.5

_KIND = "lease"
_LARGEST = 4096


@contextlib.contextmanager
def acquire(store: Store, key: str, patience: float) -> Iterator[Artifact | None]:
    """Take the lease of the program ``key``, and yield the artifact if another process compiled it meanwhile.

    If this yields None, other processes wait until the block is left. By then the artifact must be in the store, or the
    compile must have failed.

    Args:
        store: the store that the processes share.
        key: the key of the program.
        patience: the maximum time to wait for other processes, in seconds. After that, two processes compile.
    """
    lease, artifact = _Lease(store, key), None
    try:
        try:
            artifact = _acquire_or_wait(lease, patience)
            if lease.is_held:
                lease.keep()
        except Unreachable as problem:
            store.note(problem)
        yield artifact
    finally:
        lease.release()


def _acquire_or_wait(lease: _Lease, patience: float) -> Artifact | None:
    """Acquire the lease, or wait until its holder has finished.

    Return the artifact if the holder stored one, else None.
    """
    store, key = lease.store, lease.key
    if not store.may_write or lease.create():
        return None
    start = changed = time.monotonic()
    last: tuple[str, int] | None = None
    pause = _FIRST_POLL
    try:
        while time.monotonic() < start + patience:
            # Random intervals, so that processes that started together do not poll together.
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_LONGEST_POLL, pause * _POLL_BACKOFF)
            seen = lease.read()
            if seen is None:  # The holder finished or failed, or the file is not authentic.
                return store.load(key)
            if last is None or seen[0] != last[0] or seen[1] > last[1]:
                last, changed = seen, time.monotonic()
            elif time.monotonic() > changed + EXPIRY and lease.take_over():
                return store.load(key)
        return None
    finally:
        store.note_wait(time.monotonic() - start)


class _Lease:
    """Lease of one program, which this process holds if ``is_held``."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self.is_held = False
        self._name = f"{key[:2]}/{key}.lease"
        self._token = secrets.token_hex(16)
        self._count = 0
        self._released = threading.Event()

    def create(self) -> bool:
        """Create the lease unless it exists, and return whether this process holds it now."""
        self.is_held = self.store.folder.create(self._name, self._content())
        return self.is_held

    def read(self) -> tuple[str, int] | None:
        """Return the token and the write count of the holder; None without a trusted holder."""
        data = self.store.folder.read(self._name, _LARGEST)
        if data is None:
            return None
        try:
            token, count = json.loads(self.store.unseal(_KIND, self.key, data))
        except ValueError:
            return None
        return str(token), int(count)

    def take_over(self) -> bool:
        """Take the lease over, and return whether this process still holds it a moment later."""
        self.store.folder.write(self._name, self._content())
        time.sleep(_SETTLING * random.uniform(1.0, 2.0))
        self.is_held = self.read() == (self._token, self._count)
        return self.is_held

    def keep(self) -> None:
        """Start a thread that rewrites the lease until it is released."""
        with contextlib.suppress(RuntimeError):  # No thread available. The lease expires and others compile too.
            threading.Thread(target=self._renew, name="torchmdla-lease", daemon=True).start()

    def release(self) -> None:
        """Remove the lease, so that waiting processes continue."""
        self._released.set()
        if not self.is_held:
            return
        try:
            self.store.folder.remove(self._name)
        except Unreachable as problem:  # The lease expires.
            self.store.note(problem)

    def _renew(self) -> None:
        while not self._released.wait(RENEWAL):
            self._count += 1
            try:
                self.store.folder.write(self._name, self._content())
            except Unreachable as problem:
                self.store.note(problem)

    def _content(self) -> bytes:
        return self.store.seal(_KIND, self.key, json.dumps([self._token, self._count]).encode())
