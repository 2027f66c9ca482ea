"""Content of an artifact of the mdla device: an ONNX model, the recipes of its weights, and its options."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass

from torchmdla.devices.levels.onnx import Port
from torchmdla.devices.levels.onnx.weights import Recipe

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class DeviceProgram:
    """Program for the mdla device.

    ``model`` is an ``onnx.ModelProto`` whose weights are inputs without data. ``weights`` contains the recipe of each
    weight, by name. ``target`` is the text of the options (:class:`torchmdla.devices.mdla.options.Options`).
    """

    model: bytes
    weights: dict[str, Recipe]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    target: str

    @property
    def key(self) -> str:
        """Return the SHA-256 of the whole program, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def model_key(self) -> str:
        """Return the SHA-256 of the model alone, independent of the options."""
        return hashlib.sha256(self.model).hexdigest()

    def parameters(self) -> tuple[int, ...]:
        """Return the positions of the program's arguments that the weights are made of, in order."""
        return tuple(sorted(set[int]().union(*(recipe.arguments() for recipe in self.weights.values()))))

    def to_bytes(self) -> bytes:
        head = json.dumps(
            {
                "weights": {name: recipe.to_json() for name, recipe in self.weights.items()},
                "inputs": [[port.position, port.shape] for port in self.inputs],
                "outputs": [[port.position, port.shape] for port in self.outputs],
                "target": self.target,
            },
            sort_keys=True,
        ).encode()
        return _LENGTH.pack(len(head)) + head + self.model

    @classmethod
    def from_bytes(cls, data: bytes) -> DeviceProgram:
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size
        raw = json.loads(data[start : start + length])
        return cls(
            data[start + length :],
            {name: Recipe.from_json(recipe) for name, recipe in raw["weights"].items()},
            tuple(Port(position, tuple(shape)) for position, shape in raw["inputs"]),
            tuple(Port(position, tuple(shape)) for position, shape in raw["outputs"]),
            raw["target"],
        )
