"""Compiled network on the device, called with arrays, without PyTorch or groups."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchmdla.devices.levels.onnx import Port
from torchmdla.devices.levels.onnx.weights import Array
from torchmdla.devices.mdla import runtime_library
from torchmdla.devices.mdla.batches import Inferences
from torchmdla.devices.mdla.loader import load_context
from torchmdla.devices.mdla.options import Options
from torchmdla.errors import DeviceError

# The types of values that ``ie_getinfo`` returns.
_STRING = 1
_READERS: dict[int, Any] = {2: ctypes.c_bool, 3: ctypes.c_int32, 4: ctypes.c_int64, 5: ctypes.c_float}

_TEXT_BYTES = 1 << 20


class Network:
    """Network with its own context on the device.

    Any thread may use it. :meth:`close` it, or use it in a ``with`` statement.

    Args:
        binary: the output of ``ie_compile``.
        inputs, outputs: their shapes.
        options: the library, and the flags of the context.

    Raises:
        DeviceError: the library is not usable, or refuses a flag or the binary.
    """

    def __init__(
        self, binary: bytes, inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], options: Options
    ) -> None:
        self._inputs = tuple(Port(place, tuple(shape)) for place, shape in enumerate(inputs))
        self._outputs = tuple(Port(place, tuple(shape)) for place, shape in enumerate(outputs))
        self._context = load_context(
            options.with_library(), Inferences(1, binary), self._inputs, self._outputs, len(self._inputs)
        )

    def run(self, *inputs: Array, software: bool = False) -> list[Array]:
        """Run one inference; with ``software``, use the library's reference software in the device's number formats.

        Raises:
            ValueError: the number or the shapes of the inputs are wrong.
            DeviceError: the library reported an error.
        """
        arrays, outputs = self._check_inputs(inputs), self._empty_outputs()
        self._check(runtime_library.runtime().mdla_run(self._context, _array(arrays), _array(outputs), software))
        return outputs

    def submit(self, *inputs: Array, user: int = 0) -> None:
        """Start an inference (``ie_putinput``, which copies the inputs and waits while no buffer is free).

        Raises:
            ValueError, DeviceError: as :meth:`run`.
        """
        self._check(runtime_library.runtime().mdla_submit(self._context, _array(self._check_inputs(inputs)), user))

    def collect(self) -> tuple[list[Array], int]:
        """Return the results of the oldest submitted inference (``ie_getresult``), and its ``user``.

        Raises:
            DeviceError: the library reported an error.
        """
        outputs, user = self._empty_outputs(), ctypes.c_void_p()
        binding = runtime_library.runtime()
        self._check(binding.mdla_collect(self._context, _array(outputs), ctypes.byref(user)))
        return outputs, user.value or 0

    def info(self, name: str) -> str | bool | int | float | None:
        """Return a measurement or flag of the library (``ie_getinfo``); None if it does not have a value.

        Raises:
            KeyError: the library does not know this name.
        """
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        kind = runtime_library.runtime().mdla_info(self._context, name.encode(), buffer, len(buffer))
        if kind < 0:
            raise KeyError(name)
        if kind == _STRING:
            return buffer.value.decode(errors="replace")
        if kind not in _READERS:
            return None
        value: bool | int | float = _READERS[kind].from_buffer(buffer).value
        return value

    def close(self) -> None:
        """Remove the network from the device. Repeated calls are harmless."""
        context, self._context = self._context, 0
        runtime_library.runtime().mdla_unload(context)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_inputs(self, inputs: Sequence[Array]) -> list[Array]:
        expected = [port.shape for port in self._inputs]
        if [np.shape(array) for array in inputs] != expected:
            raise ValueError(f"inputs of shapes {expected} are needed, got {[np.shape(array) for array in inputs]}")
        return [np.ascontiguousarray(array, dtype=np.float32) for array in inputs]

    def _empty_outputs(self) -> list[Array]:
        return [np.empty(port.shape, dtype=np.float32) for port in self._outputs]

    def _check(self, status: int) -> None:
        if status != 0:
            raise DeviceError(runtime_library.fault())


def _array(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
