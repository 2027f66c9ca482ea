"""Loader of programs of several devices: each device loads its parts, and one entry in C++ calls them in order.

The entry is one function for all programs, whose context is the loaded program.
"""

from __future__ import annotations

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
    entries, packs, first_kernel = [], 0, 0
    for part, block, piece, described in zip(
        description["parts"], blocks, loaded, artifact.manifest.parts, strict=True
    ):
        entries.append(
            (
                part["device"],
                piece.entry,
                piece.workspace,
                piece.fault,
                piece.context,
                piece.wait,
                block.manifest.workspace_bytes,
                [tuple(value) for value in part["values"]],
                len(block.manifest.results),
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
    return LoadedCode(
        entry=_C.SplitProgram.entry,
        packs=tuple(pack for piece in loaded for pack in piece.packs),
        owner=(program, loaded),
        releases=tuple(release for piece in loaded for release in piece.releases or (0,) * len(piece.packs)),
        fault=_C.SplitProgram.fault if any(piece.fault for piece in loaded) else 0,
        context=program.address,
        pack_contexts=tuple(
            context for piece in loaded for context in piece.pack_contexts or (piece.context,) * len(piece.packs)
        ),
    )


_shared = SharedCode(_load)


def _blocks(description: Any, code: bytes) -> Iterator[Artifact]:
    start = 0
    for part in description["parts"]:
        yield Artifact.from_bytes(code[start : start + part["bytes"]])
        start += part["bytes"]
