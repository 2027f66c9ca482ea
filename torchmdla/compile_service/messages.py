"""Messages on the pipes between a process and its compiler process: a JSON object and a block of bytes."""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from collections.abc import Callable
from typing import Any, TypeVar

_HEADER = struct.Struct("<IQ")

# Longest wait, in seconds. A signal that arrives just before a wait begins is only handled when that wait ends.
_LONGEST_WAIT = 0.5

_Result = TypeVar("_Result")


def write_message(descriptor: int, head: dict[str, Any], body: bytes = b"", *, until: float = math.inf) -> None:
    """Write one message and wait until the pipe has accepted all of it.

    Args:
        descriptor: the pipe.
        head: the JSON object.
        body: the block of bytes.
        until: the deadline by ``time.monotonic()``, if ``descriptor`` does not block. After the deadline, the function
            still writes the bytes that the pipe accepts at once.

    Raises:
        BrokenPipeError: the reader has closed the pipe.
        TimeoutError: the reader has not read the message before the deadline.
    """
    # ASCII JSON can encode text with lone surrogates. Values that JSON does not support are sent as text.
    encoded = json.dumps(head, default=str).encode("ascii")
    for block in (_HEADER.pack(len(encoded), len(body)) + encoded, body):
        rest = memoryview(block)
        while rest:
            rest = rest[_call_when_ready(descriptor, until, os.write, rest) :]


def read_message(descriptor: int, *, until: float = math.inf) -> tuple[dict[str, Any], bytes]:
    """Wait for one message and return it.

    Args:
        descriptor: the pipe.
        until: as for :func:`write_message`.

    Raises:
        EOFError: the writer closed its end, before or within a message.
        TimeoutError: the message was not complete before the deadline.
    """
    head_size, body_size = _HEADER.unpack(_read_exactly(descriptor, _HEADER.size, until))
    head = json.loads(_read_exactly(descriptor, head_size, until))
    return head, _read_exactly(descriptor, body_size, until)


def _read_exactly(descriptor: int, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = _call_when_ready(descriptor, until, os.read, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the other side closed the pipe")
        data += chunk
    return bytes(data)


def _call_when_ready(descriptor: int, until: float, call: Callable[[int, Any], _Result], argument: object) -> _Result:
    """Return the result of ``call`` on a descriptor, as soon as it does not have to wait."""
    while True:
        try:
            return call(descriptor, argument)
        except BlockingIOError:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("the other side of the pipe does not answer") from None
            # poll() does not need a descriptor of its own, unlike epoll: none may be available.
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT if call is os.write else select.POLLIN)
            ready.poll(math.ceil(min(remaining, _LONGEST_WAIT) * 1000))
