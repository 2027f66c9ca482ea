"""Execution of a group's batch: as one inference, or in pipelined parts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchmdla.devices.levels.onnx import Port
from torchmdla.devices.levels.onnx.weights import Array
from torchmdla.devices.mdla import compiling
from torchmdla.devices.mdla.compiling import Binary
from torchmdla.devices.mdla.device_program import DeviceProgram
from torchmdla.devices.mdla.options import Options
from torchmdla.support import forks


@dataclass(frozen=True)
class Inferences:
    """Inferences of one call of a group.

    The ``parts`` inferences use one binary and equal parts of every input and output. ``cycles`` is the total for all
    parts including transfers, as the library reports it (0: it does not report cycles).
    """

    parts: int
    binary: bytes
    cycles: int = 0


_lock = forks.hold_over_fork(threading.RLock())
# The number of parts with the lowest cost, by model and options.
_best_parts: dict[tuple[str, str], int] = {}


def compile_batches(
    model: bytes, program: DeviceProgram, options: Options, samples: Sequence[Sequence[Array]]
) -> Inferences:
    """Compile ``model``, an ONNX file with its weights, as ``options.batches`` specifies.

    - ``"whole"``: the batch is one inference.
    - ``"items"``: the batch is divided into the maximum number of parts.
    - None: the number of parts minimises the library's own count of cycles, transfers included. If the library does not
      report cycles, the batch is one inference.

    Raises:
        DeviceError: the library failed, crashed or timed out.
    """
    batch = _Batch(model, program.inputs, options, samples)
    if options.batches == "whole":
        return batch.whole()
    if options.batches == "items":
        finest = deque(batch.divisions(), maxlen=1)
        return batch.divide(*finest[0]) if finest else batch.whole()
    key = (program.model_key, options.to_text())
    with _lock:
        chosen = _best_parts.get(key)
    if chosen is None:
        inferences = batch.find_fastest()
        with _lock:
            _best_parts[key] = inferences.parts
        return inferences
    return batch.whole() if chosen == 1 else next(batch.divide(*d) for d in batch.divisions([chosen]))


@dataclass(frozen=True)
class _Batch:
    """Model of a whole batch, and the models of its parts."""

    model: bytes
    inputs: Sequence[Port]
    options: Options
    samples: Sequence[Sequence[Array]]

    def divisions(self, among: Iterable[int] | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the possible numbers of parts, in ascending order, each with the model of one part.

        If ``among`` is not None, only its numbers are considered.
        """
        import onnx

        from torchmdla.devices.mdla.division import divide_batch, possible_parts

        model = onnx.load_from_string(self.model)
        for parts in possible_parts(model) if among is None else among:
            if (part := divide_batch(model, parts)) is not None:
                yield parts, part.SerializeToString()

    def find_fastest(self) -> Inferences:
        """Return the inferences with the fewest cycles.

        The number of parts increases as long as this reduces the cycles.
        """
        best = self.whole()
        if not best.cycles:
            return best
        for division in self.divisions():
            candidate = self.divide(*division)
            if candidate.cycles >= best.cycles:
                break
            best = candidate
        return best

    def whole(self) -> Inferences:
        return _inferences(1, compiling.compile_binary(self.model, self.inputs, self.options, self.samples))

    def divide(self, parts: int, model: bytes) -> Inferences:
        """Return the inferences for ``parts`` parts, where ``model`` is the model of one part."""
        inputs = [Port(port.position, (port.shape[0] // parts, *port.shape[1:])) for port in self.inputs]
        samples = [
            [np.split(array, parts)[part] for array in sample] for sample in self.samples for part in range(parts)
        ]
        return _inferences(parts, compiling.compile_binary(model, inputs, self.options, samples))


def _inferences(parts: int, binary: Binary) -> Inferences:
    return Inferences(parts, binary.content, binary.cost.of_stream(parts))
