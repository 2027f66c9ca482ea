"""A compiled program with its weights as a file: versioned, checksummed, and refused before anything of it runs."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass

VERSION = 1

_MAGIC = b"torchmdla-mdla\n\0"
# Version, SHA-256 of the rest, lengths of the description (JSON) and of the binary.
_HEADER = struct.Struct("<I32sQQ")


class DamagedProgram(ValueError):
    """A file holds no program, another version's, or one that was altered or cut short."""


@dataclass(frozen=True)
class ProgramFile:
    """
    Attributes:
        binary: what the library's compiler wrote, the weights in it.
        inputs: shapes of the program's inputs.
        used: for each of the device's inputs the program's.
        outputs: shapes of the device's outputs.
        results: for each leaf of the results the device's output.
        structure: of the results, as ``torch.utils._pytree`` writes it.
        options: flags of the context by the name of their option; no library.
    """

    binary: bytes
    inputs: tuple[tuple[int, ...], ...]
    used: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]
    results: tuple[int, ...]
    structure: str
    options: dict[str, str | int]

    def to_bytes(self) -> bytes:
        description = asdict(self)
        del description["binary"]
        text = json.dumps(description, sort_keys=True).encode()
        body = text + self.binary
        return _MAGIC + _HEADER.pack(VERSION, hashlib.sha256(body).digest(), len(text), len(self.binary)) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> ProgramFile:
        """The inverse of :meth:`to_bytes`.

        Raises:
            DamagedProgram: see there.
        """
        start = len(_MAGIC) + _HEADER.size
        if not data.startswith(_MAGIC) or len(data) < start:
            raise DamagedProgram("not a program of the mdla device")
        version, digest, text_size, binary_size = _HEADER.unpack_from(data, len(_MAGIC))
        if version != VERSION:
            raise DamagedProgram(f"a program of version {version}; this build reads version {VERSION}")
        body = data[start:]
        if len(body) != text_size + binary_size:
            raise DamagedProgram(f"cut short or extended: {text_size + binary_size} bytes expected, got {len(body)}")
        if hashlib.sha256(body).digest() != digest:
            raise DamagedProgram("the content does not match its checksum")
        raw = json.loads(body[:text_size])
        return cls(
            body[text_size:],
            tuple(map(tuple, raw["inputs"])),
            tuple(raw["used"]),
            tuple(map(tuple, raw["outputs"])),
            tuple(raw["results"]),
            raw["structure"],
            raw["options"],
        )
