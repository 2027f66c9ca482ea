"""Calibration inputs, from which ``ie_compile_vfp`` chooses number formats.

They are stored by model (:attr:`DeviceProgram.model_key`), so that they can be used in another precision than the one
in which they were gathered. They are also stored by the structure of the model, for groups that other frontends form of
the same layers. They affect contexts that are loaded later.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from typing import Any

from torchmdla.devices.levels.onnx.weights import Array
from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.devices.mdla.options import Options
from torchmdla.errors import DeviceError
from torchmdla.support import forks

_lock = forks.hold_over_fork(threading.RLock())
# By keys of models, and by hashes of their structure.
_samples: dict[str, list[tuple[Array, ...]]] = {}


def add_sample(program: DeviceProgram, inputs: Sequence[Array]) -> None:
    """Add a copy of one set of the model's inputs."""
    sample = tuple(array.copy() for array in inputs)
    keys = program.model_key, _structure_of(program)
    with _lock:
        for key in keys:
            _samples.setdefault(key, []).append(sample)


def samples_for(program: DeviceProgram, options: Options) -> list[tuple[Array, ...]]:
    """Return the calibration inputs, or an empty list if the precision does not need them.

    Samples of the model itself have priority over samples of models with the same structure.

    Raises:
        DeviceError: the precision needs calibration inputs and there are not any.
    """
    if options.precision != "variable":
        return []
    keys = program.model_key, _structure_of(program)
    with _lock:
        samples = next((list(_samples[key]) for key in keys if key in _samples), [])
    if not samples:
        raise DeviceError(f"ie_compile_vfp: {_NEEDS_SAMPLES}")
    return samples


_NEEDS_SAMPLES = "precision 'variable' needs calibration inputs of this group: see torchmdla.mdla.calibrate"


def forget() -> None:
    """Drop all calibration inputs."""
    with _lock:
        _samples.clear()


def _structure_of(program: DeviceProgram) -> str:
    """Return the SHA-256 of the model without names, in hexadecimal: operations, attributes, shapes and edges."""
    import onnx

    from torchmdla.devices.levels.onnx.graph import sizes_of

    graph = onnx.load_from_string(program.model).graph
    shapes = {info.name: sizes_of(info) for info in (*graph.input, *graph.value_info, *graph.output)}
    integers = {tensor.name: onnx.numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    numbers: dict[str, int] = {}

    def describe(name: str) -> list[Any]:
        return [numbers.setdefault(name, len(numbers)), shapes.get(name), integers.get(name)]

    parts: list[Any] = [describe(info.name) for info in graph.input[: len(program.inputs)]]
    for node in graph.node:
        attributes = sorted(attribute.SerializeToString(deterministic=True).hex() for attribute in node.attribute)
        parts.append([node.op_type, attributes, *map(describe, (*node.input, *node.output))])
    parts += [describe(info.name) for info in graph.output]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
