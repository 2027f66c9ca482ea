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
from typing import get_args

from cuda_device.code import ARCHITECTURE
from cuda_device.kernels import BLOCK
from cuda_device.program import DeviceProgram, Kind
from torchmdla.compiler.artifact import Artifact
from torchmdla.devices import LoadedCode
from torchmdla.errors import CompileError

_DRIVER = "libcuda.so.1"
_PACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Slot(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("bytes", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    )


def _built(name: str) -> str:
    """Return the path of a library that is built from a source of this folder.

    Raises:
        CompileError: a C compiler is not installed, or it reports an error.
    """
    source, header = Path(__file__).with_name(name), Path(__file__).with_name("driver.h")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchmdla_cuda"
    contents = source.read_bytes() + header.read_bytes()
    built = folder / f"{source.stem}-{hashlib.sha256(contents).hexdigest()[:16]}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compiler = os.environ.get("CC") or shutil.which("cc")
        if compiler is None:
            raise CompileError("the cuda device needs a C compiler: install gcc, or set CC")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            output = Path(place) / "library.so"
            command = [compiler, "-O2", "-std=gnu11", "-shared", "-fPIC", "-o", output, source, "-lpthread", "-ldl"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise CompileError(f"{name} of the cuda device does not compile", diagnostic=result.stderr)
            output.replace(built)
    return str(built)


@cache
def library() -> ctypes.CDLL:
    """Return the runtime.

    Raises:
        CompileError: it cannot be built.
    """
    runtime = ctypes.CDLL(_built("runtime.c"))
    runtime.cuda_fault.restype = runtime.cuda_description.restype = ctypes.c_char_p
    runtime.cuda_device.restype = runtime.cuda_load.restype = ctypes.c_void_p
    return runtime


def open_device(index: int, streams: int, is_emulated: bool) -> ctypes.c_void_p:
    """Return a card.

    Raises:
        CompileError: it does not exist or is too old, or NVIDIA's driver is not installed.
    """
    driver = _built("emulator.c") if is_emulated else _DRIVER
    capability = int(ARCHITECTURE.removeprefix("sm_"))
    device = library().cuda_device(driver.encode(), index, streams, capability)
    if not device:
        remedy = "install NVIDIA's driver, choose another index, or enable(device='cuda', emulate=True)"
        raise CompileError(f"the cuda device is not available: {_fault()}: {remedy}")
    return ctypes.c_void_p(device)


def description(index: int, streams: int, is_emulated: bool) -> str:
    """Return the card's name and the version of its driver."""
    return str(library().cuda_description(open_device(index, streams, is_emulated)).decode())


def counts(index: int, streams: int, is_emulated: bool) -> dict[str, int]:
    """Return how many uploads, downloads, and arguments that were on the card already, there were until now."""
    numbers = (ctypes.c_int64 * 3)()
    library().cuda_counts(open_device(index, streams, is_emulated), numbers)
    return dict(zip(("uploads", "downloads", "resident"), numbers, strict=True))


class _Code:
    """Program that is loaded on a card, and its packs."""

    def __init__(self, artifact: Artifact, streams: int, is_emulated: bool) -> None:
        program, kinds = DeviceProgram.from_bytes(artifact.object_code), get_args(Kind)
        self._device = open_device(program.index, streams, is_emulated)
        places = [place for step in program.steps for place in step.places]
        slots = [_Slot(kinds.index(slot.kind), slot.number, slot.bytes, slot.offset) for slot in program.slots]
        names = [step.kernel.encode() for step in program.steps]
        self.address = library().cuda_load(
            self._device,
            program.code,
            len(artifact.manifest.arguments),
            BLOCK,
            ctypes.c_int64(program.workspace),
            len(slots),
            (_Slot * len(slots))(*slots),
            len(names),
            (ctypes.c_char_p * len(names))(*names),
            (ctypes.c_int32 * len(names))(*(step.blocks for step in program.steps)),
            (ctypes.c_int32 * len(names))(*(len(step.places) for step in program.steps)),
            (ctypes.c_int32 * len(places))(*places),
            program.literals,
            ctypes.c_int64(len(program.literals)),
        )
        if not self.address:
            raise CompileError("the driver refuses the kernels", diagnostic=_fault())
        self.packs = [_PACK(self._upload(size)) for size in program.pack_bytes]

    def _upload(self, size: int) -> Callable[[ctypes._Pointer[ctypes.c_void_p]], int]:
        """Return a pack that copies a weight to the card."""

        def pack(buffers: ctypes._Pointer[ctypes.c_void_p]) -> int:
            handle, data = ctypes.c_void_p(buffers[1]), ctypes.c_void_p(buffers[2])
            return int(library().cuda_upload(handle, self._device, data, ctypes.c_int64(size)))

        return pack

    def __del__(self) -> None:
        if getattr(self, "address", None):
            library().cuda_unload(ctypes.c_void_p(self.address))


def load(artifact: Artifact, streams: int, is_emulated: bool) -> LoadedCode:
    """Return a program whose entry is a function of the runtime.

    Raises:
        CompileError: the driver or the card is not available, or the driver refuses the kernels.
    """
    code = _Code(artifact, streams, is_emulated)
    return LoadedCode(
        entry=_address_of("cuda_entry"),
        packs=tuple(ctypes.cast(pack, ctypes.c_void_p).value or 0 for pack in code.packs),
        owner=code,
        releases=(_address_of("cuda_release"),) * len(code.packs),
        fault=_address_of("cuda_fault"),
        context=code.address,
        wait=_address_of("cuda_wait"),
        forget=_address_of("cuda_forget"),
    )


def _address_of(name: str) -> int:
    return ctypes.cast(library()[name], ctypes.c_void_p).value or 0


def _fault() -> str:
    return str(library().cuda_fault().decode(errors="replace"))
