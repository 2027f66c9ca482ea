"""Self-checking blocks of bytes: a description (JSON) and a content, under a version and a checksum.

A block consists of ``magic`` (16 bytes), version (4), SHA-256 of all that follows (32), lengths of description and
content (8 each), then both. Numbers are little-endian. A reader receives no part of a block before the whole block is
verified.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Decoded = TypeVar("Decoded")

_MAGIC_BYTES = 16
_SEAL = struct.Struct("<I32s")
_LENGTHS = struct.Struct("<QQ")
_HEADER_BYTES = _MAGIC_BYTES + _SEAL.size + _LENGTHS.size


@dataclass(frozen=True)
class Format:
    """Kind of block.

    Attributes:
        magic: first bytes of its blocks, at most 16.
        version: version of the content; blocks of other versions are refused.
        kind: name of the kind for messages: ``"an artifact"``.
        remedy: advice about a refused block, for messages.
        error: exception class that is raised.
    """

    magic: bytes
    version: int
    kind: str
    remedy: str
    error: type[ValueError]

    def seal(self, description: dict[str, Any], content: bytes) -> bytes:
        """Return a block with the description and the content."""
        text = json.dumps(description, sort_keys=True).encode()
        sealed = _LENGTHS.pack(len(text), len(content)) + text + content
        return self._padded_magic() + _SEAL.pack(self.version, hashlib.sha256(sealed).digest()) + sealed

    def size_of(self, data: bytes | memoryview) -> int | None:
        """Return the size that the block at the start of ``data`` states; None if it is not a block of this kind."""
        if bytes(data[:_MAGIC_BYTES]) != self._padded_magic() or len(data) < _HEADER_BYTES:
            return None
        text_bytes, content_bytes = _LENGTHS.unpack_from(data, _MAGIC_BYTES + _SEAL.size)
        return _HEADER_BYTES + int(text_bytes) + int(content_bytes)

    def open(self, data: bytes, make: Callable[[dict[str, Any], bytes], Decoded]) -> Decoded:
        """Return the result of ``make`` for the description and the content of an intact block.

        Raises:
            ValueError: as :attr:`error`, if the block has another kind or version, is altered, truncated or extended,
                or has a description that ``make`` does not accept.
        """
        if not data.startswith(self._padded_magic()) or len(data) < _HEADER_BYTES:
            raise self._format_error(f"not {self.kind}")
        version, digest = _SEAL.unpack_from(data, _MAGIC_BYTES)
        if version != self.version:
            raise self._format_error(f"{self.kind} of version {version}, where version {self.version} is needed")
        sealed = memoryview(data)[_MAGIC_BYTES + _SEAL.size :]
        text_bytes, content_bytes = _LENGTHS.unpack_from(sealed)
        expected = _LENGTHS.size + text_bytes + content_bytes
        if len(sealed) != expected:
            raise self._format_error(f"{self.kind} cut short or extended: {expected} bytes expected, got {len(sealed)}")
        if hashlib.sha256(sealed).digest() != digest:
            raise self._format_error(f"{self.kind} whose content does not match its checksum")
        body = sealed[_LENGTHS.size :]
        try:
            return make(json.loads(bytes(body[:text_bytes])), bytes(body[text_bytes:]))
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            # The block is intact, so another build wrote it without increasing the version, or it is malicious.
            raise self._format_error(f"{self.kind} with another description: {error!r}") from error

    def _padded_magic(self) -> bytes:
        return self.magic.ljust(_MAGIC_BYTES, b"\0")

    def _format_error(self, problem: str) -> ValueError:
        return self.error(f"{problem}; {self.remedy}")
