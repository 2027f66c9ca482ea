"""Buffers that are mapped from files, and the execution of packs outside of a call, which fills them."""

from __future__ import annotations

import ctypes
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

import torch

from torchmdla.compiler.artifact import Manifest
from torchmdla.devices import LoadedCode
from torchmdla.errors import CompileError

# The alignment of buffers: a page, or a cache line for buffers shorter than a page.
PAGE = 4096
_LINE = 64


@dataclass(frozen=True)
class WeightInfo:
    """Position of a weight, relative to the first one, and its SHA-256 in hexadecimal."""

    offset: int
    size: int
    digest: str


class Weights:
    """Mapped buffers of a model, without duplicates."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._data: list[memoryview] = []
        self._infos: list[WeightInfo] = []
        self._end = 0

    @property
    def infos(self) -> tuple[WeightInfo, ...]:
        return tuple(self._infos)

    def add(self, tensor: torch.Tensor) -> int:
        """Return the number of a weight with the bytes of ``tensor``, which is contiguous."""
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._data)
            offset = align_up(PAGE if len(data) >= PAGE else _LINE, self._end)
            self._data.append(data)
            self._infos.append(WeightInfo(offset, len(data), digest))
            self._end = offset + len(data)
        return self._numbers[digest]

    def getvalue(self) -> bytes:
        """Return the bytes of the file from the first weight on."""
        buffer = io.BytesIO()
        self.write(buffer)
        return buffer.getvalue()

    def write(self, file: IO[bytes]) -> None:
        begin = file.tell()
        for data, info in zip(self._data, self._infos, strict=True):
            file.write(bytes(begin + info.offset - file.tell()))
            file.write(data)


def align_up(step: int, offset: int) -> int:
    return -(-offset // step) * step


def run_packs(
    loaded: LoadedCode, manifest: Manifest, arguments: Mapping[int, torch.Tensor]
) -> list[torch.Tensor | None]:
    """Run the packs and return their buffers, as bytes.

    ``arguments`` are the program's arguments by position. The entry of a pack is None if it needs other arguments, or
    if its buffer is valid in this process only: it must be released, or it is not made of parameters.

    Raises:
        CompileError: a pack reports an error, because the parameters violate an assumption of the code.
    """
    workspace = _buffer(manifest.workspace_bytes)
    first = loaded.context or workspace.data_ptr()
    buffers: list[torch.Tensor | None] = []
    releases = loaded.releases or [0] * len(loaded.packs)
    for address, pack, release in zip(loaded.packs, manifest.packs, releases, strict=True):
        if release or not pack.arguments or not all(place in arguments for place in pack.arguments):
            buffers.append(None)
            continue
        buffer = _buffer(pack.size)
        operands = [buffer, *(arguments[place] for place in pack.arguments)]
        addresses = (ctypes.c_void_p * (1 + len(operands)))(first, *(operand.data_ptr() for operand in operands))
        if ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address)(ctypes.cast(addresses, ctypes.c_void_p)):
            raise CompileError("packing the parameters failed")
        buffers.append(buffer)
    return buffers


def _buffer(size: int) -> torch.Tensor:
    buffer = torch.zeros(size, dtype=torch.uint8)
    assert buffer.data_ptr() % _LINE == 0
    return buffer
