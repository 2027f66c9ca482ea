"""Run host: a process with a device, which runs artifacts for other processes.

It here has the device of ``examples/devices/numpy``. Messages are bytes over an authenticated connection: a letter, a
key of 64 letters or a handle, and data.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from multiprocessing.connection import Connection, Listener
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "numpy"))

from numpy_device import NumpyDevice

from torchmdla.compiler.artifact import Artifact
from torchmdla.devices import LoadedCode

KEY_LETTERS, HANDLE_BYTES = 64, 8
LOAD, RUN, KEEP, DROP = b"L", b"R", b"K", b"D"


class Session:
    """Programs and weights of a connection. They are dropped at its end."""

    def __init__(self) -> None:
        self._device = NumpyDevice()
        self._programs: dict[bytes, tuple[Artifact, LoadedCode]] = {}
        self._weights: dict[bytes, bytes] = {}
        self._handles = itertools.count(1)

    def serve(self, connection: Connection) -> None:
        """Answer messages until the other side closes the connection."""
        answers = {LOAD: self._load, KEEP: self._keep, DROP: self._drop}
        try:
            while True:
                message = connection.recv_bytes()
                if message[:1] == RUN:
                    self._run(connection, message[1:])
                else:
                    connection.send_bytes(answers[message[:1]](message[1:]))
        except (EOFError, ConnectionError):
            connection.close()

    def _load(self, data: bytes) -> bytes:
        artifact = Artifact.from_bytes(data)
        self._programs[artifact.manifest.program.encode()] = artifact, self._device.load(artifact)
        return b""

    def _keep(self, data: bytes) -> bytes:
        handle = next(self._handles).to_bytes(HANDLE_BYTES, "little")
        self._weights[handle] = data
        return handle

    def _drop(self, handle: bytes) -> bytes:
        del self._weights[handle]
        return b""

    def _run(self, connection: Connection, key: bytes) -> None:
        """Receive an argument after the other, run the program, and send its status and its results."""
        artifact, code = self._programs[key]
        manifest = artifact.manifest
        arguments = [self._argument(connection, argument.role == "parameter") for argument in manifest.arguments]
        results = [ctypes.create_string_buffer(size_of(result)) for result in manifest.results]
        inputs = [ctypes.create_string_buffer(argument, max(len(argument), 1)) for argument in arguments]
        places = [None, None, None, *map(ctypes.addressof, [*inputs, *results])]
        entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(code.entry)
        status = entry(ctypes.cast((ctypes.c_void_p * len(places))(*places), ctypes.c_void_p))
        connection.send_bytes(bytes([status != 0]))
        for result in results:
            connection.send_bytes(result.raw)

    def _argument(self, connection: Connection, is_weight: bool) -> bytes:
        message = connection.recv_bytes()
        return self._weights[message] if is_weight else message


def size_of(tensor: object) -> int:
    """Return the bytes of an argument or a result of float32."""
    count = 4
    for size in tensor.shape:  # type: ignore[attr-defined]
        count *= size
    return count


def main() -> None:
    """Print the port, and answer connections until the process ends. The secret is in ``RUN_HOST_SECRET``."""
    with Listener(("localhost", 0), authkey=bytes.fromhex(os.environ["RUN_HOST_SECRET"])) as listener:
        print(listener.address[1], flush=True)
        while True:
            threading.Thread(target=Session().serve, args=(listener.accept(),), daemon=True).start()


if __name__ == "__main__":
    main()
