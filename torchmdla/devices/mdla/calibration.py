"""Calibration inputs: what ``ie_compile_vfp`` chooses number formats by.

They are gathered while groups run, in whatever precision, and kept by the model (:attr:`DeviceProgram.model_key`), so
that they serve in another. They count in contexts that are loaded later.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torchmdla.devices.mdla import runtime_library
from torchmdla.devices.mdla.device_program import Port
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.runtime_library import array_at
from torchmdla.devices.mdla.weights import Array
from torchmdla.errors import DeviceError

_lock = threading.Lock()
_samples: dict[str, list[tuple[Array, ...]]] = {}
# What contexts were loaded for, by their tag: a model's key, and its inputs.
_models: list[tuple[str, tuple[Port, ...]]] = []


def tag_of(model_key: str, inputs: tuple[Port, ...]) -> int:
    """The tag of contexts that are loaded for a model with these inputs."""
    with _lock:
        if (model_key, inputs) not in _models:
            _models.append((model_key, inputs))
        return _models.index((model_key, inputs))


@contextlib.contextmanager
def gathering() -> Iterator[None]:
    """While it lasts, every run of a group of the mdla device, on any thread, adds a sample of its model."""
    runtime_library.runtime().mdla_observe(_observer)
    try:
        yield
    finally:
        runtime_library.runtime().mdla_observe(runtime_library.OBSERVER())


def add_sample(model_key: str, inputs: Sequence[Array]) -> None:
    """One more set of the model's inputs, copied."""
    sample = tuple(array.copy() for array in inputs)
    with _lock:
        _samples.setdefault(model_key, []).append(sample)


def samples_for(model_key: str, options: Options) -> list[tuple[Array, ...]]:
    """The sets of inputs to choose formats by: those so far, where the precision asks for some.

    Raises:
        DeviceError: it does, and there are none.
    """
    if options.precision != "variable":
        return []
    with _lock:
        samples = list(_samples.get(model_key, ()))
    if not samples:
        raise DeviceError("ie_compile_vfp: precision 'variable' needs calibration inputs")
    return samples


def forget() -> None:
    """Drops all of them."""
    with _lock:
        _samples.clear()


def _observe(tag: int, inputs: Any) -> None:
    model_key, ports = _models[tag]
    add_sample(model_key, [array_at(inputs[place], port.shape) for place, port in enumerate(ports)])


# Lives as long as the process: a thread may be about to call it when nobody gathers any more.
_observer = runtime_library.OBSERVER(_observe)
