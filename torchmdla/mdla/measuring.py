"""Groups on separate contexts: their results, every layer's results, and the library's figures of each layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchmdla.devices.levels.onnx.weights import Array
from torchmdla.devices.mdla import calibration, compiling
from torchmdla.devices.mdla.network import Network
from torchmdla.devices.mdla.options import EMULATOR, Options
from torchmdla.errors import DeviceError
from torchmdla.mdla.recording import Group

# The reference for errors: the emulator's own float arithmetic.
FLOAT = Options(library=str(EMULATOR), precision="float32")


@dataclass(frozen=True)
class Layer:
    """Node of a group's ONNX model, and its result."""

    name: str
    kind: str
    value: Array


class Networks:
    """Groups compiled with ``options``, each once; :meth:`close` removes them from the device."""

    def __init__(self, options: Options) -> None:
        self._options = options.with_library()
        self._open: dict[tuple[bytes, tuple[tuple[int, ...], ...]], Network] = {}

    def run(self, group: Group, inputs: Sequence[Array]) -> list[Array]:
        """Return the group's results.

        Raises:
            DeviceError: the library fails.
        """
        return self.network(group).run(*inputs)

    def layers(self, group: Group, inputs: Sequence[Array]) -> list[Layer]:
        """Return the results of each of the group's layers, computed by a model with these outputs.

        Raises:
            DeviceError: the library fails.
        """
        model, nodes, shapes = _with_all_outputs(group.model)
        values = self._network(group, model, shapes).run(*inputs)
        return [Layer(name, kind, value) for (name, kind), value in zip(nodes, values, strict=True)]

    def network(self, group: Group) -> Network:
        """Return the group on the device."""
        return self._network(group, group.model, [port.shape for port in group.program.outputs])

    def binary(self, group: Group) -> bytes:
        """Return the binary that the library's compiler creates for the group.

        Raises:
            DeviceError: the compiler fails, or the calibration inputs that the precision needs are missing.
        """
        return self._binary(group, group.model)

    def _network(self, group: Group, model: bytes, outputs: Sequence[tuple[int, ...]]) -> Network:
        key = (model, tuple(outputs))
        if key not in self._open:
            inputs = [port.shape for port in group.program.inputs]
            self._open[key] = Network(self._binary(group, model), inputs, outputs, self._options)
        return self._open[key]

    def _binary(self, group: Group, model: bytes) -> bytes:
        samples = calibration.samples_for(group.program, self._options)
        return compiling.compile_binary(model, group.program.inputs, self._options, samples).content

    def close(self) -> None:
        for network in self._open.values():
            network.close()
        self._open.clear()

    def __enter__(self) -> Networks:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def figures(network: Network) -> list[dict[str, Any]]:
    """Return the library's figures of each layer.

    Raises:
        DeviceError: the library does not report figures.
    """
    try:
        text = network.info("layers")
    except KeyError:
        text = None
    if not isinstance(text, str):
        raise DeviceError("ie_getinfo: the library reports nothing of its layers")
    result: list[dict[str, Any]] = json.loads(text)
    return result


def _with_all_outputs(model: bytes) -> tuple[bytes, list[tuple[str, str]], list[tuple[int, ...]]]:
    """Return the model with the result of each node as an output.

    The nodes' names and kinds follow, then the shapes.
    """
    import onnx

    from torchmdla.devices.levels.onnx.graph import sizes_of

    extended = onnx.load_from_string(model)
    infos = {info.name: info for info in (*extended.graph.value_info, *extended.graph.output)}
    nodes = [node for node in extended.graph.node if node.output[0] in infos]
    del extended.graph.output[:]
    extended.graph.output.extend(infos[node.output[0]] for node in nodes)
    del extended.graph.value_info[:]
    shapes = [sizes_of(infos[node.output[0]]) for node in nodes]
    return extended.SerializeToString(), [(node.name, node.op_type) for node in nodes], shapes
