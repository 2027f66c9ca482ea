"""Messages on the pipes between a process and its compiler process: a JSON object and a block of bytes."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_HEADER = struct.Struct("<IQ")


def write_message(descriptor: int, head: dict[str, Any], body: bytes = b"") -> None:
    """Writes one message; blocks until the pipe has taken it whole.

    Raises:
        BrokenPipeError: the reader is gone.
    """
    # ASCII JSON: text with lone surrogates passes too. What JSON does not know is sent as text.
    encoded = json.dumps(head, default=str).encode("ascii")
    _write_all(descriptor, _HEADER.pack(len(encoded), len(body)) + encoded)
    _write_all(descriptor, body)


def read_message(descriptor: int) -> tuple[dict[str, Any], bytes]:
    """Reads one message; blocks until it is there.

    Raises:
        EOFError: the writer closed its end, before or within a message.
    """
    head_size, body_size = _HEADER.unpack(_read_exactly(descriptor, _HEADER.size))
    head = json.loads(_read_exactly(descriptor, head_size))
    return head, _read_exactly(descriptor, body_size)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(descriptor, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the other side closed the pipe")
        data += chunk
    return bytes(data)
