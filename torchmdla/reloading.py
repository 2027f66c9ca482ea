"""Models in files that are replaced while they are served."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchmdla import _C, packages
from torchmdla.api import WARM_UP_CALLS
from torchmdla.support import logs

# Identifies the content of a file: time of the last write, size, inode number.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class ReloadStatistics:
    """Counts of one :class:`ReloadingModel`.

    Attributes:
        path: path of the file.
        version: number of loads that succeeded. Calls run the latest version.
        failures: number of loads that failed since the start. Calls went on with the previous version.
        problem: why the latest load failed; empty if it succeeded.
    """

    path: str
    version: int
    failures: int
    problem: str


class ReloadingModel:
    """Model that serves while the next version of its file is loaded, compiled and warmed up.

    A call runs the version that is current when the call begins, to its end. The memory of a version, packed weights
    included, is freed with its last call. Replace the file (``os.replace``, ``mv``) and do not write into it, because
    processes have packages mapped.

    Args:
        path: path that ``load`` loads.
        inputs: arguments of calls that warm up a version before it serves. They run without gradients, each as often as
            TorchScript needs. Pass three for sizes that vary.
        watch: seconds between checks of a thread for a new file; 0 for no thread, if :meth:`reload` is called instead.
            A file is loaded only if it did not change between two checks.
        load: function that loads a model from the path. The default is :func:`torchmdla.load`.

    Raises:
        Exception: ``load`` or a call with ``inputs`` raised it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        inputs: Sequence[tuple[Any, ...]] = (),
        watch: float = 0.0,
        load: Callable[[str], Callable[..., Any]] = packages.load,
    ) -> None:
        self._path = os.fspath(path)
        self._inputs = list(inputs)
        self._load = load
        self._reloading = threading.Lock()
        self._ended = threading.Event()
        self._number = self._failures = 0
        self._problem = ""
        self.reload()
        _live_models.add(self)
        if watch:
            thread = threading.Thread(
                target=_watch, args=(weakref.ref(self), self._ended, watch), name="torchmdla-reload", daemon=True
            )
            thread.start()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """Return the result of the current version."""
        model, _ = self._version
        return model(*inputs, **keywords)

    def reload(self) -> None:
        """Load the file again, even if it has not changed; return when calls run the new version.

        Raises:
            Exception: ``load`` or a call with the inputs raised it. Calls go on with the previous version.
        """
        with self._reloading:
            # Taken before the file is read: a change during the read is another version.
            stamp = _stamp(self._path)
            try:
                model = self._load(self._path)
                with torch.no_grad():
                    for inputs in self._inputs:
                        for _ in range(WARM_UP_CALLS):
                            model(*inputs)
            except BaseException as error:
                self._failures += 1
                self._problem = f"{type(error).__name__}: {error}".partition("\n")[0]
                self._failed_stamp = stamp
                raise
            self._failed_stamp = None
            self._problem = ""
            self._number += 1
            self._version = model, stamp
            _C.drop_dead()

    def close(self) -> None:
        """Stop the watching. Calls go on with the current version."""
        self._ended.set()

    def statistics(self) -> ReloadStatistics:
        """Return the counts so far."""
        return ReloadStatistics(self._path, self._number, self._failures, self._problem)


# Live models, for metrics.
_live_models: weakref.WeakSet[ReloadingModel] = weakref.WeakSet()


def statistics() -> list[ReloadStatistics]:
    """Return the counts of all live models."""
    return [model.statistics() for model in list(_live_models)]


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _watch(reference: weakref.ref[ReloadingModel], ended: threading.Event, seconds: float) -> None:
    """Reload a model whose file has changed, as long as the model is referenced."""
    before = None
    while not ended.wait(seconds):
        model = reference()
        if model is None:
            return
        stamp = _stamp(model._path)
        # There is nothing to load if the file is missing, is loaded already, or failed to load.
        if stamp == before and stamp not in (None, model._version[1], model._failed_stamp):
            try:
                model.reload()
            except Exception as error:
                logs.logger("groups").warning("%s was not loaded: %s", model._path, error)
        before = stamp
        del model
