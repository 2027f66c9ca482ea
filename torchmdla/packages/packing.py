"""Runs packs where there is no call: what they make of parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch

from torchmdla.compiler.artifact import Manifest
from torchmdla.devices import LoadedCode
from torchmdla.errors import CompileError

_ALIGNMENT = 64


def packed(loaded: LoadedCode, manifest: Manifest, arguments: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
    """The buffers of all packs, as bytes, of the program's ``arguments`` by their places; None of packs of others.

    Raises:
        CompileError: a pack reports an error: the parameters are not what the code relies on.
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
