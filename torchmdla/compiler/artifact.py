"""The compiler's output: object code and a manifest, as one value that can be stored, sent and checked."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

from torchmdla.compiler.program import Argument, Result

# The calling convention of an entry, described in docs/architecture.md. Raised whenever it changes.
ABI_VERSION = 2

_MAGIC = b"MDLA-ARTIFACT\n"
_HEADER = struct.Struct("<32sQQ")


class DamagedArtifact(ValueError):
    """The bytes are not an artifact, or not the one that was written."""


@dataclass(frozen=True)
class Pack:
    """One packed buffer of ``size`` bytes: function ``symbol`` makes it from the ``arguments``, all parameters.

    ``recipe`` is a hash of what is computed, types included: equal recipes make equal buffers of equal parameters, so
    that specialisations and instances share them.
    """

    symbol: str
    recipe: str
    arguments: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Manifest:
    """What a loader must know about the object code.

    ``entry`` computes the results, from the arguments and from the buffers that ``packs`` make of parameters, once for
    every version of these. ``workspace_bytes`` are what the entry and the packs need; the entry of a dynamic program,
    with ``symbols`` symbols, needs what the function ``workspace`` says. ``device_calls`` are the undefined symbols
    that the loader has to provide. ``statistics`` are times (seconds) and counts of the compilation, for people.
    """

    program: str
    entry: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    workspace_bytes: int
    symbols: int = 0
    workspace: str = ""
    packs: tuple[Pack, ...] = ()
    device_calls: tuple[str, ...] = ()
    statistics: dict[str, float] = field(default_factory=dict)
    abi: int = ABI_VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        raw: dict[str, Any] = json.loads(text)
        raw["arguments"] = tuple(
            Argument(a["role"], a["dtype"], tuple(a["shape"]), a["kind"]) for a in raw["arguments"]
        )
        raw["results"] = tuple(Result(r["dtype"], tuple(r["shape"])) for r in raw["results"])
        raw["packs"] = tuple(Pack(p["symbol"], p["recipe"], tuple(p["arguments"]), p["size"]) for p in raw["packs"])
        raw["device_calls"] = tuple(raw["device_calls"])
        return cls(**raw)


@dataclass(frozen=True)
class Artifact:
    """Object code (a relocatable file of the target's format, or whatever the device loads) and its manifest."""

    object_code: bytes
    manifest: Manifest

    def to_bytes(self) -> bytes:
        """One self-checking block: magic, SHA-256 of the rest, lengths, manifest (JSON), object code."""
        manifest = self.manifest.to_json().encode()
        digest = hashlib.sha256(manifest + self.object_code).digest()
        return _MAGIC + _HEADER.pack(digest, len(manifest), len(self.object_code)) + manifest + self.object_code

    @classmethod
    def from_bytes(cls, data: bytes) -> Artifact:
        """The inverse of :meth:`to_bytes`.

        Raises:
            DamagedArtifact: the block is truncated, altered, or of another ABI version.
        """
        start = len(_MAGIC) + _HEADER.size
        if len(data) < start or not data.startswith(_MAGIC):
            raise DamagedArtifact("not an artifact")
        digest, manifest_size, object_size = _HEADER.unpack_from(data, len(_MAGIC))
        body = data[start:]
        if len(body) != manifest_size + object_size or hashlib.sha256(body).digest() != digest:
            raise DamagedArtifact("the content does not match its hash")
        manifest = body[:manifest_size].decode()
        # Before anything else of it is read: another version has other fields.
        abi = json.loads(manifest).get("abi")
        if abi != ABI_VERSION:
            raise DamagedArtifact(f"ABI version {abi}, this build reads {ABI_VERSION}")
        return cls(body[manifest_size:], Manifest.from_json(manifest))
