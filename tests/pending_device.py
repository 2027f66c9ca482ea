"""Asynchronous device for tests: the device of examples/devices/numpy, whose results stay in memory of its own.

The host memory of a result holds ``0xff`` bytes (NaN) until ``wait`` copies the result, so that a read without a wait
gives a wrong value. The functions are Python, and :attr:`PendingDevice.log` records their calls.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "devices" / "numpy"))

from numpy_device import NumpyDevice

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices import Asynchronous, LoadedCode

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_FORGET = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_FAULT = ctypes.CFUNCTYPE(ctypes.c_void_p)

_FLOAT = 4
_BEFORE_ARGUMENTS = 3


class PendingDevice(NumpyDevice, Asynchronous):
    """Device that is compiled in the calling process.

    Attributes:
        log: ``("entry", number of resident arguments)``, ``("wait",)`` and ``("forget",)``, in order.
        fails: whether ``wait`` fails.
    """

    name = "pending"

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.fails = False
        self.content: dict[int, Any] = {}
        self._text = ctypes.create_string_buffer(b"pending_wait: the device was unplugged")
        self._wait, self._forget = _WAIT(self._copy), _FORGET(self._drop)
        self._fault = _FAULT(lambda: ctypes.addressof(self._text) if self.fails else 0)

    def load(self, artifact: Artifact) -> LoadedCode:
        synchronous = super().load(artifact)
        compute, manifest = _ENTRY(synchronous.entry), artifact.manifest
        first = _BEFORE_ARGUMENTS + len(manifest.arguments)

        def run(buffers: Any) -> int:
            arguments = [buffers[_BEFORE_ARGUMENTS + k] for k in range(len(manifest.arguments))]
            resident = [address for address in arguments if address in self.content]
            results = []
            for result in manifest.results:
                size = _FLOAT
                for length in result.shape:
                    size *= length
                results.append(ctypes.create_string_buffer(size))
            places = [ctypes.addressof(self.content[a]) if a in self.content else a for a in arguments]
            places += [ctypes.addressof(memory) for memory in results]
            status: int = compute((ctypes.c_void_p * (first + len(results)))(None, None, None, *places))
            for number, memory in enumerate(results):
                ctypes.memset(buffers[first + number], 0xFF, len(memory))
                self.content[buffers[first + number]] = memory
            self.log.append(("entry", len(resident)))
            return status

        entry = _ENTRY(run)
        return LoadedCode(
            _address(entry),
            (),
            owner=(entry, synchronous, self),
            fault=_address(self._fault),
            wait=_address(self._wait),
            forget=_address(self._forget),
        )

    def _copy(self, result: int) -> int:
        memory = self.content.pop(result, None)
        self.log.append(("wait",))
        if self.fails:
            return 1
        if memory is not None:
            ctypes.memmove(result, memory, len(memory))
        return 0

    def _drop(self, result: int) -> None:
        self.content.pop(result, None)
        self.log.append(("forget",))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
