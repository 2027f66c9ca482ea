"""Device of a run host: this process compiles, or takes code from a store, and another one runs it.

Weights are sent once: a pack sends a parameter to the run host, and keeps the handle. Calls send the inputs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Client
from typing import Any

from run_host import DROP, HANDLE_BYTES, KEEP, LOAD, RUN, NumpyDevice, size_of

from torchmdla.compiler.artifact import Artifact, Pack
from torchmdla.compiler.program import Program
from torchmdla.devices import LoadedCode

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class RemoteDevice(NumpyDevice):
    name = "remote"

    def __init__(self) -> None:
        self._connection: Any = None
        self._lock = threading.Lock()  # a question and its answer are not interrupted
        self._fault = threading.local()

    def configure(self, address: str = "", **options: Any) -> None:
        """Connect to the run host at ``address``, as ``host:port``."""
        super().configure(**options)
        if address:
            host, _, port = address.rpartition(":")
            self._connection = Client((host, int(port)), authkey=bytes.fromhex(os.environ["RUN_HOST_SECRET"]))

    def lower(self, program: Program) -> Artifact:
        """Return the code of the run host's device, with a pack for each parameter."""
        artifact = super().lower(program)
        parameters = [number for number, argument in enumerate(program.arguments) if argument.role == "parameter"]
        packs = [
            Pack(f"keep_{number}", f"keep {program.arguments[number].shape}", (number,), HANDLE_BYTES)
            for number in parameters
        ]
        return replace(artifact, manifest=replace(artifact.manifest, packs=tuple(packs)))

    def load(self, artifact: Artifact) -> LoadedCode:
        """Send the artifact to the run host. The entry is a Python function, which asks it to run."""
        manifest, key = artifact.manifest, artifact.manifest.program.encode()
        self._ask(LOAD + artifact.to_bytes())
        count, packed = len(manifest.arguments), {pack.arguments[0]: k for k, pack in enumerate(manifest.packs)}

        def run(buffers: Any) -> None:
            handles = ctypes.cast(buffers[1], ctypes.POINTER(ctypes.c_void_p)) if packed else None
            inputs = [
                ctypes.string_at(handles[packed[k]], HANDLE_BYTES)
                if handles and k in packed
                else ctypes.string_at(buffers[3 + k], size_of(argument))
                for k, argument in enumerate(manifest.arguments)
            ]
            for k, result in enumerate(self._call(key, inputs, len(manifest.results))):
                ctypes.memmove(buffers[3 + count + k], result, len(result))

        def keep(number: int, buffers: Any) -> None:
            weight = ctypes.string_at(buffers[2], size_of(manifest.arguments[number]))
            ctypes.memmove(buffers[1], self._ask(KEEP + weight), HANDLE_BYTES)

        entry = _ENTRY(self._guarded(run))
        packs = [
            _ENTRY(self._guarded(lambda buffers, n=pack.arguments[0]: keep(n, buffers))) for pack in manifest.packs
        ]
        release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._release)
        fault = ctypes.CFUNCTYPE(ctypes.c_void_p)(self._describe_fault)
        owner = (entry, packs, release, fault)
        return LoadedCode(
            entry=_address(entry),
            packs=tuple(map(_address, packs)),
            owner=owner,
            releases=(_address(release),) * len(packs),
            fault=_address(fault),
        )

    def _ask(self, message: bytes) -> bytes:
        with self._lock:
            self._connection.send_bytes(message)
            answer: bytes = self._connection.recv_bytes()
            return answer

    def _call(self, key: bytes, inputs: list[bytes], results: int) -> list[bytes]:
        with self._lock:
            for message in (RUN + key, *inputs):
                self._connection.send_bytes(message)
            status, *outputs = (self._connection.recv_bytes() for _ in range(1 + results))
        if status != b"\0":
            raise RuntimeError("the program failed on the run host")
        return outputs

    def _guarded(self, function: Callable[[Any], None]) -> Callable[[Any], int]:
        """Return a function with a status. A failed call falls back; :meth:`_describe_fault` has the reason."""

        def call(buffers: Any) -> int:
            try:
                function(buffers)
            except Exception as error:
                text = f"run host: {type(error).__name__}: {error}"
                self._fault.text = ctypes.create_string_buffer(text.encode())
                return 1
            return 0

        return call

    def _describe_fault(self) -> int:
        return ctypes.addressof(self._fault.text)

    def _release(self, buffer: int) -> None:
        with contextlib.suppress(EOFError, OSError):  # The run host has ended, and its weights with it.
            self._ask(DROP + ctypes.string_at(buffer, HANDLE_BYTES))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
