"""Whose turn it is to compile a program, among all processes that share a store.

Who compiles has a *lease*: a file beside the entry, which is written anew while the compile goes on. Others wait until
it is gone, and take over one that is not written any more. Clocks are not compared: what counts is whether the file
changes while a process looks at it. Leases are authentic like entries, so that nobody else can make a fleet wait.

Nothing depends on there being one holder only. Two compile a program twice, no more.
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

# Seconds between a holder's writes, and after which one that does not write is taken to be gone.
RENEWAL, EXPIRY = 5.0, 20.0

# Seconds between a waiting process's looks: the first, the longest, and by what each is longer than the one before.
_FIRST_LOOK, _LONGEST_LOOK, _SLOWER = 0.1, 3.0, 1.5

# Seconds from a takeover to the look whether another process took over later.
_SETTLING = 0.5

_KIND = "lease"
_LARGEST = 4096


@contextlib.contextmanager
def turn(store: Store, key: str, patience: float) -> Iterator[Artifact | None]:
    """A turn at the program ``key``: yields its artifact, if another process made it meanwhile; else None, and others
    wait until the block is left, by when it is in the store, or cannot be made.

    Args:
        patience: the most seconds to wait for others; then there are two who compile.
    """
    lease, found = _Lease(store, key), None
    try:
        try:
            found = _waited_for(lease, patience)
            if lease.is_held:
                lease.keep()
        except Unreachable as problem:
            store.note(problem)
        yield found
    finally:
        lease.release()


def _waited_for(lease: _Lease, patience: float) -> Artifact | None:
    """Takes the lease, or waits until whoever has it is done.

    Raises:
        Unreachable: the store cannot be asked.
    """
    store, key = lease.store, lease.key
    if not store.may_write or lease.create():
        return None
    start = changed = time.monotonic()
    last: tuple[str, int] | None = None
    pause = _FIRST_LOOK
    try:
        while time.monotonic() < start + patience:
            # At random, so that those who started together do not look together.
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_LONGEST_LOOK, pause * _SLOWER)
            seen = lease.read()
            if seen is None:  # Whoever had it is done, has failed, or was no authentic holder.
                return store.load(key)
            if last is None or seen[0] != last[0] or seen[1] > last[1]:
                last, changed = seen, time.monotonic()
            elif time.monotonic() > changed + EXPIRY and lease.take_over():
                return store.load(key)
        return None
    finally:
        store.note_wait(time.monotonic() - start)


class _Lease:
    """This process's lease of one program, if it gets it."""

    def __init__(self, store: Store, key: str) -> None:
        self.store = store
        self.key = key
        self.is_held = False
        self._name = f"{key[:2]}/{key}.lease"
        self._token = secrets.token_hex(16)
        self._count = 0
        self._released = threading.Event()

    def create(self) -> bool:
        """Whether there was none, and it is this process's now."""
        self.is_held = self.store.folder.create(self._name, self._content())
        return self.is_held

    def read(self) -> tuple[str, int] | None:
        """The token of whoever has it, and how often it was written; None where nobody has it who is trusted."""
        data = self.store.folder.read(self._name, _LARGEST)
        if data is None:
            return None
        try:
            token, count = json.loads(self.store.content_of(_KIND, self.key, data))
        except ValueError:
            return None
        return str(token), int(count)

    def take_over(self) -> bool:
        """Makes it this process's; whether it still is a moment later."""
        self.store.folder.write(self._name, self._content())
        time.sleep(_SETTLING * random.uniform(1.0, 2.0))
        self.is_held = self.read() == (self._token, self._count)
        return self.is_held

    def keep(self) -> None:
        """Writes it again and again, on a thread, until it is released."""
        with contextlib.suppress(RuntimeError):  # There can be no more threads: it expires, and others compile, too.
            threading.Thread(target=self._renew, name="torchmdla-lease", daemon=True).start()

    def release(self) -> None:
        """Lets others know that this process is done."""
        self._released.set()
        if not self.is_held:
            return
        try:
            self.store.folder.remove(self._name)
        except Unreachable as problem:  # It expires.
            self.store.note(problem)

    def _renew(self) -> None:
        while not self._released.wait(RENEWAL):
            self._count += 1
            try:
                self.store.folder.write(self._name, self._content())
            except Unreachable as problem:
                self.store.note(problem)

    def _content(self) -> bytes:
        return self.store.proven(_KIND, self.key, json.dumps([self._token, self._count]).encode())
