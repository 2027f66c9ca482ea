"""How a group's batch is run: as one inference, or in parts that are pipelined."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchmdla.devices.mdla import compiling
from torchmdla.devices.mdla.compiling import Binary
from torchmdla.devices.mdla.device_program import DeviceProgram, Port
from torchmdla.devices.mdla.options import Options
from torchmdla.devices.mdla.weights import Array
from torchmdla.support import forks


@dataclass(frozen=True)
class Inferences:
    """A call of a group: ``parts`` inferences by one binary, each on as much of every input and output; ``cycles`` are
    those of all, with their transfers, by the library's own count (0: it does not tell)."""

    parts: int
    binary: bytes
    cycles: int = 0


_lock = forks.held(threading.RLock())
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
        return batch.whole()
    if options.batches == "items":
        finest = deque(batch.divisions(), maxlen=1)
        return batch.in_parts(*finest[0]) if finest else batch.whole()
    key = (program.model_key, options.to_text())
    with _lock:
        chosen = _chosen.get(key)
    if chosen is None:
        made = batch.soonest()
        with _lock:
            _chosen[key] = made.parts
        return made
    return batch.whole() if chosen == 1 else next(batch.in_parts(*d) for d in batch.divisions([chosen]))


class _Batch:
    """A model of a whole batch, and those of its parts."""

    def __init__(
        self, model: bytes, inputs: Sequence[Port], options: Options, samples: Sequence[Sequence[Array]]
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._options = options
        self._samples = samples

    def divisions(self, among: Iterable[int] | None = None) -> Iterator[tuple[int, bytes]]:
        """Into how many parts it can be divided, of all numbers or ``among`` these, from few to many, and the model of
        one of them."""
        import onnx

        from torchmdla.devices.mdla.division import divided, parts_possible

        model = onnx.load_from_string(self._model)
        for parts in parts_possible(model) if among is None else among:
            if (part := divided(model, parts)) is not None:
                yield parts, part.SerializeToString()

    def soonest(self) -> Inferences:
        """In the parts with the fewest cycles; fewer parts are tried first, as long as more of them help."""
        best = self.whole()
        if not best.cycles:
            return best
        for division in self.divisions():
            made = self.in_parts(*division)
            if made.cycles >= best.cycles:
                break
            best = made
        return best

    def whole(self) -> Inferences:
        return _of(1, compiling.binary_of(self._model, self._inputs, self._options, self._samples))

    def in_parts(self, parts: int, model: bytes) -> Inferences:
        """By the ``model`` of one of so many parts."""
        inputs = [Port(port.position, (port.shape[0] // parts, *port.shape[1:])) for port in self._inputs]
        samples = [
            [np.split(array, parts)[part] for array in sample] for sample in self._samples for part in range(parts)
        ]
        return _of(parts, compiling.binary_of(model, inputs, self._options, samples))


def _of(parts: int, binary: Binary) -> Inferences:
    return Inferences(parts, binary.content, binary.cost.of_stream(parts))
