"""Execution of packs outside of a call, to obtain the packed parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch

from torchmdla.compiler.artifact import Manifest
from torchmdla.devices import LoadedCode
from torchmdla.errors import CompileError

_ALIGNMENT = 64


def run_packs(
    loaded: LoadedCode, manifest: Manifest, arguments: Mapping[int, torch.Tensor]
) -> list[torch.Tensor | None]:
    """Run the packs and return their buffers, as bytes.

    ``arguments`` are the program's arguments by position. A pack that needs other arguments does not run; its entry in
    the result is empty (None).

    Raises:
        CompileError: a pack reports an error, because the parameters violate an assumption of the code.
    """
    workspace = _buffer(manifest.workspace_bytes)
    buffers: list[torch.Tensor | None] = []
    for address, pack in zip(loaded.packs, manifest.packs, strict=True):
        if not all(place in arguments for place in pack.arguments):
            buffers.append(None)
            continue
        buffer = _buffer(pack.size)
        _run(address, [workspace, buffer, *(arguments[place] for place in pack.arguments)])
        buffers.append(buffer)
    return buffers


def _run(address: int, buffers: Sequence[torch.Tensor]) -> None:
    pack = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address)
    addresses = (ctypes.c_void_p * len(buffers))(*(buffer.data_ptr() for buffer in buffers))
    if pack(ctypes.cast(addresses, ctypes.c_void_p)):
        raise CompileError("packing the parameters failed")


def _buffer(size: int) -> torch.Tensor:
    buffer = torch.zeros(size, dtype=torch.uint8)
    assert buffer.data_ptr() % _ALIGNMENT == 0
    return buffer
