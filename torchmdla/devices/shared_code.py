"""Loaded code that groups share: groups with the same program have one copy of it in a process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.device import LoadedCode
from torchmdla.support import forks


class SharedCode:
    """Results of ``load`` for artifacts, by program key, while they are in use."""

    def __init__(self, load: Callable[[Artifact], LoadedCode]) -> None:
        self._load = load
        # A fork waits while a thread links code: the child could not complete the linking.
        self._lock = forks.hold_over_fork(threading.RLock())
        self._loaded: weakref.WeakValueDictionary[str, LoadedCode] = weakref.WeakValueDictionary()

    def of(self, artifact: Artifact) -> LoadedCode:
        """Return the code of ``artifact``, and load it if necessary.

        Raises:
            CompileError: ``load`` failed.
        """
        key = artifact.manifest.program
        with self._lock:
            known = self._loaded.get(key)
            if known is None:
                known = self._loaded[key] = self._load(artifact)
            return known
