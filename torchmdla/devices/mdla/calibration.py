"""Calibration inputs: what ``ie_compile_vfp`` chooses number formats by.

They are kept by the model (:attr:`DeviceProgram.model_key`), so that they serve in another precision than the one that
they were gathered in; and by its structure, for groups that other frontends form of the same layers. They count in
contexts that are loaded later.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from typing import Any

from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.weights import Array
from torchmdla.errors import DeviceError
from torchmdla.support import forks

_lock = forks.held(threading.RLock())
# By models' keys, and by hashes of their structure.
_samples: dict[str, list[tuple[Array, ...]]] = {}


def add_sample(program: DeviceProgram, inputs: Sequence[Array]) -> None:
    """One more set of the model's inputs, copied."""
    sample = tuple(array.copy() for array in inputs)
    keys = program.model_key, _structure_of(program)
    with _lock:
        for key in keys:
            _samples.setdefault(key, []).append(sample)


def samples_for(program: DeviceProgram, options: Options) -> list[tuple[Array, ...]]:
    """The sets of inputs to choose formats by, where the precision asks for some: those of the model, or else those of
    models with its structure.

    Raises:
        DeviceError: it does, and there are none.
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
    """Drops all of them."""
    with _lock:
        _samples.clear()


def _structure_of(program: DeviceProgram) -> str:
    """SHA-256 of the model without names, in hexadecimal: operations, attributes, shapes, and who reads whom."""
    import onnx

    from torchmdla.devices.mdla.onnx_graph import sizes_of

    graph = onnx.load_from_string(program.model).graph
    shapes = {info.name: sizes_of(info) for info in (*graph.input, *graph.value_info, *graph.output)}
    integers = {tensor.name: onnx.numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    numbers: dict[str, int] = {}

    def described(name: str) -> list[Any]:
        return [numbers.setdefault(name, len(numbers)), shapes.get(name), integers.get(name)]

    parts: list[Any] = [described(info.name) for info in graph.input[: len(program.inputs)]]
    for node in graph.node:
        attributes = sorted(attribute.SerializeToString(deterministic=True).hex() for attribute in node.attribute)
        parts.append([node.op_type, attributes, *map(described, (*node.input, *node.output))])
    parts += [described(info.name) for info in graph.output]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
