"""Groups on contexts of their own: their results, every layer's results, and the library's figures of each layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchmdla.devices.mdla import calibration, compiling
from torchmdla.devices.mdla.network import Network
from torchmdla.devices.mdla.options import EMULATOR, Options
from torchmdla.devices.mdla.weights import Array
from torchmdla.errors import DeviceError
from torchmdla.mdla.recording import Group

# What errors are measured against: the emulator's own float arithmetic.
FLOAT = Options(library=str(EMULATOR), precision="float32")


@dataclass(frozen=True)
class Layer:
    """A node of a group's ONNX model and what it computed."""

    name: str
    kind: str
    value: Array


class Networks:
    """Groups compiled with ``options``, each once; :meth:`close` takes them off the device."""

    def __init__(self, options: Options) -> None:
        self._options = options.located()
        self._open: dict[tuple[bytes, bool], Network] = {}

    def run(self, group: Group, inputs: Sequence[Array]) -> list[Array]:
        """The group's results.

        Raises:
            DeviceError: the library fails.
        """
        return self.network(group).run(*inputs)

    def layers(self, group: Group, inputs: Sequence[Array]) -> list[Layer]:
        """The results of each of the group's layers, computed by a model of which they are outputs.

        Raises:
            DeviceError: the library fails.
        """
        model, nodes, shapes = _with_all_outputs(group.model)
        key = (model, True)
        if key not in self._open:
            inner = [port.shape for port in group.program.inputs]
            self._open[key] = Network(self._binary(group, model), inner, shapes, self._options)
        values = self._open[key].run(*inputs)
        return [Layer(name, kind, value) for (name, kind), value in zip(nodes, values, strict=True)]

    def network(self, group: Group) -> Network:
        """The group on the device."""
        key = (group.model, False)
        if key not in self._open:
            inputs, outputs = (
                [port.shape for port in ports] for ports in (group.program.inputs, group.program.outputs)
            )
            self._open[key] = Network(self.binary(group), inputs, outputs, self._options)
        return self._open[key]

    def binary(self, group: Group) -> bytes:
        """What the library's compiler makes of the group.

        Raises:
            DeviceError: it fails, or the precision needs calibration inputs that are not there.
        """
        return self._binary(group, group.model)

    def _binary(self, group: Group, model: bytes) -> bytes:
        samples = calibration.samples_for(group.program, self._options)
        return compiling.binary_of(model, group.program.inputs, self._options, samples).content

    def close(self) -> None:
        for network in self._open.values():
            network.close()
        self._open.clear()

    def __enter__(self) -> Networks:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def figures(network: Network) -> list[dict[str, Any]]:
    """The library's figures of each layer.

    Raises:
        DeviceError: the library tells none.
    """
    try:
        text = network.info("layers")
    except KeyError:
        text = None
    if not isinstance(text, str):
        raise DeviceError("ie_getinfo: the library tells nothing of its layers")
    made: list[dict[str, Any]] = json.loads(text)
    return made


def _with_all_outputs(model: bytes) -> tuple[bytes, list[tuple[str, str]], list[tuple[int, ...]]]:
    """The model with what each node computes as an output; the nodes' names and kinds, and the shapes."""
    import onnx

    from torchmdla.devices.mdla.onnx_graph import sizes_of

    made = onnx.load_from_string(model)
    infos = {info.name: info for info in (*made.graph.value_info, *made.graph.output)}
    nodes = [node for node in made.graph.node if node.output[0] in infos]
    del made.graph.output[:]
    made.graph.output.extend(infos[node.output[0]] for node in nodes)
    del made.graph.value_info[:]
    shapes = [sizes_of(infos[node.output[0]]) for node in nodes]
    return made.SerializeToString(), [(node.name, node.op_type) for node in nodes], shapes
