"""Loader of programs of several devices: each device loads its parts, and one entry in C++ calls them in order.

The entry is one function for all programs. The first packed buffer contains the address of the loaded program.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from torchmdla import devices
from torchmdla.compiler.artifact import Artifact, DamagedArtifact
from torchmdla.compiler.checksummed import Format
from torchmdla.devices.device import LoadedCode
from torchmdla.devices.shared_code import SharedCode
from torchmdla.errors import CompileError


class DamagedParts(ValueError):
    """Error of object code that is not that of a split program, or has another version."""


FORMAT = Format(b"mdla-parts\n", 1, "a split program", "compile its program anew", DamagedParts)

_PACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))

# Index of a pack's destination among its buffers.
_DESTINATION = 1


def load(artifact: Artifact) -> LoadedCode:
    """Return the entry and the packs of a program.

    Raises:
        CompileError: the artifact is damaged, or a device cannot load its part.
    """
    return _shared.of(artifact)


def _load(artifact: Artifact) -> LoadedCode:
    from torchmdla import _C

    try:
        description, code = FORMAT.open(artifact.object_code, lambda description, code: (description, code))
        blocks = list(_blocks(description, code))
    except (DamagedParts, DamagedArtifact) as error:
        raise CompileError(f"a program of several devices cannot be loaded: {error}") from error
    loaded = [devices.get(part["device"]).load(block) for part, block in zip(description["parts"], blocks, strict=True)]
    entries, packs, first_kernel = [], 1, 0
    for part, block, piece, described in zip(
        description["parts"], blocks, loaded, artifact.manifest.parts, strict=True
    ):
        entries.append(
            (
                part["device"],
                piece.entry,
                piece.workspace,
                piece.fault,
                block.manifest.workspace_bytes,
                [tuple(value) for value in part["values"]],
                list(range(packs, packs + len(piece.packs))),
                first_kernel,
                not block.manifest.kernels,
                described.transfers,
                ((((), described.bytes),) if isinstance(described.bytes, int) else described.bytes),
            )
        )
        packs += len(piece.packs)
        first_kernel += max(len(block.manifest.kernels), 1)
    program = _C.SplitProgram(entries, description["slots"], description["symbols"])
    pack = _PACK(_StoreAddress(program.address))
    has_releases = any(piece.releases for piece in loaded)
    return LoadedCode(
        entry=_C.SplitProgram.entry,
        packs=(ctypes.cast(pack, ctypes.c_void_p).value or 0, *(pack for piece in loaded for pack in piece.packs)),
        owner=(pack, program, loaded),
        releases=(0, *(r for piece in loaded for r in piece.releases or (0,) * len(piece.packs)))
        if has_releases
        else (),
        fault=_C.SplitProgram.fault if any(piece.fault for piece in loaded) else 0,
    )


_shared = SharedCode(_load)


class _StoreAddress:
    """Pack that stores an address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __call__(self, buffers: Any) -> int:
        ctypes.cast(buffers[_DESTINATION], ctypes.POINTER(ctypes.c_void_p))[0] = self._address
        return 0


def _blocks(description: Any, code: bytes) -> Iterator[Artifact]:
    start = 0
    for part in description["parts"]:
        yield Artifact.from_bytes(code[start : start + part["bytes"]])
        start += part["bytes"]
