"""Mdla device with ONNX Runtime instead of its library. It computes the groups' values if the models are right."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from torchmdla.compiler.artifact import Artifact
from torchmdla.compiler.program import Target
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.mdla import MdlaDevice, loader

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))

_sessions: dict[int, Any] = {}
_numbers = itertools.count(1)


class OnnxDevice(MdlaDevice):
    """Device that is registered and used like any device. ONNX Runtime runs its models."""

    name = "mdla-onnx"

    def target(self) -> Target:
        # The mdla device, which compile processes know, lowers the programs.
        return Target("mdla", features=self._options.to_text())

    def load(self, artifact: Artifact) -> LoadedCode:
        packer = loader.Packer(artifact)
        entry = _ENTRY(_Entry(packer))

        def pack(buffers: Any) -> int:
            number = next(_numbers)
            _sessions[number] = onnxruntime.InferenceSession(packer.model(buffers))
            ctypes.cast(buffers[1], ctypes.POINTER(ctypes.c_int64))[0] = number
            return 0

        function = _ENTRY(pack)
        addresses = [ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in (entry, function)]
        return LoadedCode(addresses[0], (addresses[1],), (entry, function))


class _Entry:
    def __init__(self, packer: Any) -> None:
        self._program = packer.program
        self._first_result = 3 + len(packer.arguments)

    def __call__(self, buffers: Any) -> int:
        packed = ctypes.cast(buffers[1], ctypes.POINTER(ctypes.c_void_p))[0]
        session = _sessions[ctypes.cast(packed, ctypes.POINTER(ctypes.c_int64))[0]]
        ports = zip(session.get_inputs(), self._program.inputs, strict=True)
        feeds: Mapping[str, Any] = {i.name: _array(buffers[3 + port.position], port.shape) for i, port in ports}
        for port, result in zip(self._program.outputs, session.run(None, feeds), strict=True):
            _array(buffers[self._first_result + port.position], port.shape)[...] = result
        return 0


def _array(address: int, shape: tuple[int, ...]) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * math.prod(shape)).from_address(address)).reshape(shape)
