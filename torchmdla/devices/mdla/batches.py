"""How a group's batch is run: as one inference, or in parts that are pipelined."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from torchmdla.devices.mdla import compiling
from torchmdla.devices.mdla.compiling import Binary
from torchmdla.devices.mdla.device_program import DeviceProgram, Port
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.weights import Array


@dataclass(frozen=True)
class Inferences:
    """A call of a group: ``parts`` inferences by one binary, each on as much of every input and output; ``cycles`` are
    those of all, with their transfers, by the library's own count (0: it does not tell)."""

    parts: int
    binary: bytes
    cycles: int = 0


_lock = threading.Lock()
# Into how many parts the batches of models were found to be computed soonest, by model and options.
_chosen: dict[tuple[str, str], int] = {}


def arranged(model: bytes, program: DeviceProgram, options: Options, samples: Sequence[Sequence[Array]]) -> Inferences:
    """``model``, an ONNX file with its weights, compiled as ``options.batches`` says:

    - ``"whole"``: as it is;
    - ``"items"``: in as many parts as it can be divided into;
    - None: in the parts with which the library's own count of cycles, transfers included, is the lowest. A library that
      does not tell its cycles computes the batch as one.

    Raises:
        DeviceError: the library has failed, crashed or taken too long.
    """
    batch = _Batch(model, program.inputs, options, samples)
    if options.batches == "whole":
        return batch.inferences(1)
    if options.batches == "items":
        return batch.inferences(max(batch.possible(), default=1))
    key = (program.model_key, options.to_text())
    with _lock:
        chosen = _chosen.get(key)
    if chosen is None:
        chosen = batch.soonest()
        with _lock:
            _chosen[key] = chosen
    return batch.inferences(chosen)


class _Batch:
    """A model of a whole batch, and those of its parts."""

    def __init__(
        self, model: bytes, inputs: Sequence[Port], options: Options, samples: Sequence[Sequence[Array]]
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._options = options
        self._samples = samples

    def possible(self) -> Iterable[int]:
        """Into how many parts it can be divided, beside one: from few to many."""
        import onnx

        from torchmdla.devices.mdla.division import divided, parts_possible

        model = onnx.load_from_string(self._model)
        return (parts for parts in parts_possible(model) if divided(model, parts) is not None)

    def soonest(self) -> int:
        """The number of parts with the fewest cycles; fewer parts are tried first, as long as more of them help."""
        best, least = 1, self.compiled(1).cost.of_stream(1)
        if not least:
            return 1
        for parts in self.possible():
            cycles = self.compiled(parts).cost.of_stream(parts)
            if cycles >= least:
                break
            best, least = parts, cycles
        return best

    def inferences(self, parts: int) -> Inferences:
        made = self.compiled(parts)
        return Inferences(parts, made.content, made.cost.of_stream(parts))

    def compiled(self, parts: int) -> Binary:
        if parts == 1:
            return compiling.binary_of(self._model, self._inputs, self._options, self._samples)
        import onnx

        from torchmdla.devices.mdla.division import divided

        model = divided(onnx.load_from_string(self._model), parts)
        assert model is not None
        inputs = [Port(port.position, (port.shape[0] // parts, *port.shape[1:])) for port in self._inputs]
        samples = [
            [np.split(array, parts)[part] for array in sample] for sample in self._samples for part in range(parts)
        ]
        return compiling.binary_of(model.SerializeToString(), inputs, self._options, samples)
