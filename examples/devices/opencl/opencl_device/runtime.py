"""Binding of the runtime in C (``runtime.c``), which the system's compiler builds at the first use."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from opencl_device.program import DeviceProgram
from torchmdla.compiler.artifact import Artifact
from torchmdla.devices import LoadedCode
from torchmdla.errors import CompileError

_KINDS = ("argument", "pack", "literal", "temporary", "result", "failure")
_PACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Slot(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32), ("bytes", ctypes.c_int64))


@cache
def library() -> ctypes.CDLL:
    """Return the runtime.

    Raises:
        CompileError: a C compiler is not installed, or it reports an error.
    """
    source = Path(__file__).with_name("runtime.c")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchmdla_opencl"
    built = folder / f"{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC") or shutil.which("cc")
        if compiler is None:
            raise CompileError("the opencl device needs a C compiler: install gcc, or set CC")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            output = Path(place) / "runtime.so"
            command = [compiler, "-O2", "-std=gnu11", "-shared", "-fPIC", "-o", output, source, "-lpthread", "-ldl"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise CompileError("the opencl device's runtime does not compile", diagnostic=result.stderr)
            output.replace(built)
    runtime = ctypes.CDLL(str(built))
    runtime.opencl_fault.restype = runtime.opencl_description.restype = ctypes.c_char_p
    for function in (runtime.opencl_device, runtime.opencl_load, runtime.opencl_upload):
        function.restype = ctypes.c_void_p
    return runtime


def address_of(name: str) -> int:
    return ctypes.cast(library()[name], ctypes.c_void_p).value or 0


def open_device(number: int, streams: int) -> ctypes.c_void_p:
    """Return the device with this number among those of all drivers.

    Raises:
        CompileError: it does not exist, or OpenCL is not installed.
    """
    device = library().opencl_device(number, streams)
    if not device:
        raise CompileError(f"the opencl device is not available: {_fault()}")
    return ctypes.c_void_p(device)


def description(number: int, streams: int) -> str:
    """Return the device's name and the version of its driver."""
    return str(library().opencl_description(open_device(number, streams)).decode())


def counts(number: int, streams: int) -> dict[str, int]:
    """Return how many uploads, downloads, and arguments that were on the device already, there were until now."""
    numbers = (ctypes.c_int64 * 3)()
    library().opencl_counts(open_device(number, streams), numbers)
    return dict(zip(("uploads", "downloads", "resident"), numbers, strict=True))


class _Code:
    """Program that is loaded on a device, and its packs."""

    def __init__(self, artifact: Artifact, streams: int) -> None:
        manifest, program = artifact.manifest, DeviceProgram.from_bytes(artifact.object_code)
        self._device = open_device(program.device, streams)
        places = [place for _, _, step in program.steps for place in step]
        self.address = library().opencl_load(
            self._device,
            program.source.encode(),
            len(manifest.arguments),
            len(manifest.results),
            len(program.buffers),
            (_Slot * len(program.buffers))(
                *(_Slot(_KINDS.index(kind), number, size) for kind, number, size in program.buffers)
            ),
            len(program.steps),
            (ctypes.c_char_p * len(program.steps))(*(kernel.encode() for kernel, _, _ in program.steps)),
            (ctypes.c_int64 * len(program.steps))(*(items for _, items, _ in program.steps)),
            (ctypes.c_int32 * len(program.steps))(*(len(step) for _, _, step in program.steps)),
            (ctypes.c_int32 * len(places))(*places),
            len(program.literals),
            (ctypes.c_int64 * len(program.literals))(*map(len, program.literals)),
            b"".join(program.literals),
        )
        if not self.address:
            raise CompileError("the driver refuses the kernels", diagnostic=_fault())
        self.packs = [_PACK(self._upload(size)) for size in program.pack_bytes]

    def _upload(self, size: int) -> Callable[[ctypes._Pointer[ctypes.c_void_p]], int]:
        """Return a pack that copies a weight to the device, and stores the address of its buffer."""

        def pack(buffers: ctypes._Pointer[ctypes.c_void_p]) -> int:
            buffer = library().opencl_upload(self._device, ctypes.c_void_p(buffers[2]), ctypes.c_int64(size))
            ctypes.cast(buffers[1], ctypes.POINTER(ctypes.c_void_p))[0] = buffer
            return 0 if buffer else 1

        return pack

    def __del__(self) -> None:
        if getattr(self, "address", None):
            library().opencl_unload(ctypes.c_void_p(self.address))


def load(artifact: Artifact, streams: int) -> LoadedCode:
    """Return a program whose entry is a function of the runtime.

    Raises:
        CompileError: the driver or its device is not available, or it refuses the kernels.
    """
    code = _Code(artifact, streams)
    return LoadedCode(
        entry=address_of("opencl_entry"),
        packs=tuple(ctypes.cast(pack, ctypes.c_void_p).value or 0 for pack in code.packs),
        owner=code,
        releases=(address_of("opencl_release"),) * len(code.packs),
        fault=address_of("opencl_fault"),
        context=code.address,
        wait=address_of("opencl_wait"),
        forget=address_of("opencl_forget"),
    )


def _fault() -> str:
    return str(library().opencl_fault().decode(errors="replace"))
