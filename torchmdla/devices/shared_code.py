"""Code that groups share: those that are the same program have one copy of it in a process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices.device import LoadedCode
from torchmdla.support import forks


class SharedCode:
    """What ``load`` made of artifacts, by their programs, as long as somebody uses it."""

    def __init__(self, load: Callable[[Artifact], LoadedCode]) -> None:
        self._load = load
        # Where a thread links code, a fork waits: nobody could go on with it in the child.
        self._lock = forks.held(threading.RLock())
        self._loaded: weakref.WeakValueDictionary[str, LoadedCode] = weakref.WeakValueDictionary()

    def of(self, artifact: Artifact) -> LoadedCode:
        """The code of ``artifact``, loaded if it is not.

        Raises:
            CompileError: what ``load`` raises.
        """
        key = artifact.manifest.program
        with self._lock:
            known = self._loaded.get(key)
            if known is None:
                known = self._loaded[key] = self._load(artifact)
            return known
