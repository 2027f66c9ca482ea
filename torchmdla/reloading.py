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

# What tells one content of a file from another: when it was written, its size, its number.
_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class ReloadStatistics:
    """What a :class:`ReloadingModel` did.

    Attributes:
        path: of the file.
        version: how often it was loaded; calls run the latest.
        failures: loads that failed since the start; the version before went on.
        problem: why the latest load failed; empty where it did not.
    """

    path: str
    version: int
    failures: int
    problem: str


class ReloadingModel:
    """A model that serves while the next version of its file is loaded, compiled and warmed up.

    A call runs the version that is current when it begins, to its end. What belongs to a version, packed weights among
    it, is freed with its last call. Replace the file (``os.replace``, ``mv``), do not write into it: processes have
    packages mapped.

    Args:
        path: what ``load`` loads.
        inputs: arguments of calls with which a version is warmed up before it serves: without gradients, for each as
            often as TorchScript needs. For sizes that vary give three.
        watch: seconds between looks whether the file is another, by a thread; 0 for none, where :meth:`reload` is
            called. A file that is being written to is left until it has not changed between two looks.
        load: makes a model of the path; by default :func:`torchmdla.load`.

    Raises:
        What ``load`` and the calls with ``inputs`` raise.
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
        _living.add(self)
        if watch:
            thread = threading.Thread(
                target=_watch, args=(weakref.ref(self), self._ended, watch), name="torchmdla-reload", daemon=True
            )
            thread.start()

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        """The result of the current version."""
        model, _ = self._version
        return model(*inputs, **keywords)

    def reload(self) -> None:
        """Loads the file anew, whether it has changed or not; returns when calls run the new version.

        Raises:
            What ``load`` and the calls with the inputs raise: then calls go on with the version before.
        """
        with self._reloading:
            # Before it is read: a change meanwhile is another version.
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
        """Ends the watching. Calls go on with the current version."""
        self._ended.set()

    def statistics(self) -> ReloadStatistics:
        """What it did so far."""
        return ReloadStatistics(self._path, self._number, self._failures, self._problem)

    def _is_current(self, stamp: _Stamp | None) -> bool:
        """Whether there is nothing to load: the file is gone, or as it was when it was loaded, or could not be."""
        _, loaded = self._version
        return stamp is None or stamp in (loaded, self._failed_stamp)


# Those that live, for metrics.
_living: weakref.WeakSet[ReloadingModel] = weakref.WeakSet()


def statistics() -> list[ReloadStatistics]:
    """Of all models of this kind that live."""
    return [model.statistics() for model in list(_living)]


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _watch(reference: weakref.ref[ReloadingModel], ended: threading.Event, seconds: float) -> None:
    """Reloads a model whose file is another, as long as somebody has the model."""
    before = None
    while not ended.wait(seconds):
        model = reference()
        if model is None:
            return
        stamp = _stamp(model._path)
        if stamp == before and not model._is_current(stamp):
            try:
                model.reload()
            except Exception as error:
                logs.logger("groups").warning("%s was not loaded: %s", model._path, error)
        before = stamp
        del model
