"""Calibration inputs: what ``ie_compile_vfp`` chooses number formats by.

They are kept by the model (:attr:`DeviceProgram.model_key`), so that those gathered while it ran in one precision serve
in another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torchmdla.devices.mdla.weights import Array

_lock = threading.Lock()
_samples: dict[str, list[tuple[Array, ...]]] = {}


def add_sample(model_key: str, inputs: Sequence[Array]) -> None:
    """One more set of the model's inputs, copied."""
    with _lock:
        _samples.setdefault(model_key, []).append(tuple(array.copy() for array in inputs))


def samples_of(model_key: str) -> list[tuple[Array, ...]]:
    """The sets of inputs so far."""
    with _lock:
        return list(_samples.get(model_key, ()))


def forget() -> None:
    """Drops all of them."""
    with _lock:
        _samples.clear()
