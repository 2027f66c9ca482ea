"""Content of an artifact: the source of kernels, the buffers and the calls of kernels. It is stored as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["argument", "pack", "literal", "temporary", "result", "failure"]


@dataclass(eq=False)
class Buffer:
    """Buffer of a program.

    Attributes:
        kind: the source of its memory. ``number`` counts the arguments, packs, results or literals. Temporary buffers
            with the same number share memory. ``"failure"`` is a number that is 0 before the call.
        bytes: its size.
    """

    kind: Kind
    bytes: int
    number: int = -1


@dataclass(frozen=True)
class Step:
    """Call of a kernel with ``items`` work items."""

    kernel: str
    items: int
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class DeviceProgram:
    """Program for a device of OpenCL.

    Attributes:
        device: number of the device.
        source: OpenCL C.
        buffers: all buffers, those of literals with their contents in ``literals``.
        steps: kernel, work items and the positions of its buffers.
        pack_bytes: sizes of the weights that the packs copy.
    """

    device: int
    source: str
    buffers: tuple[tuple[Kind, int, int], ...]
    steps: tuple[tuple[str, int, tuple[int, ...]], ...]
    pack_bytes: tuple[int, ...]
    literals: tuple[bytes, ...]

    @classmethod
    def of(
        cls,
        device: int,
        source: str,
        steps: Sequence[Step],
        pack_bytes: Sequence[int],
        literals: Mapping[Buffer, bytes],
    ) -> DeviceProgram:
        share_memory(steps)
        for number, buffer in enumerate(literals):
            buffer.number = number
        buffers = list(dict.fromkeys(buffer for step in steps for buffer in step.buffers))
        return cls(
            device,
            source,
            tuple((buffer.kind, buffer.number, buffer.bytes) for buffer in buffers),
            tuple((step.kernel, step.items, tuple(map(buffers.index, step.buffers))) for step in steps),
            tuple(pack_bytes),
            tuple(literals.values()),
        )

    def to_bytes(self) -> bytes:
        literals = [base64.b64encode(literal).decode() for literal in self.literals]
        return json.dumps([self.device, self.source, self.buffers, self.steps, self.pack_bytes, literals]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> DeviceProgram:
        device, source, buffers, steps, pack_bytes, literals = json.loads(data)
        return cls(
            device,
            source,
            tuple((kind, number, size) for kind, number, size in buffers),
            tuple((kernel, items, tuple(places)) for kernel, items, places in steps),
            tuple(pack_bytes),
            tuple(map(base64.b64decode, literals)),
        )


def share_memory(steps: Sequence[Step]) -> None:
    """Let temporary buffers that are not needed at the same time share memory, by their numbers.

    Kernels of a call run one after the other. Buffers with the same number have the same size.
    """
    last = {buffer: position for position, step in enumerate(steps) for buffer in step.buffers}
    free: dict[int, list[int]] = {}
    count = 0
    for position, step in enumerate(steps):
        for buffer in step.buffers:
            if buffer.kind != "temporary" or buffer.number >= 0:
                continue
            numbers = free.get(buffer.bytes)
            buffer.number = numbers.pop() if numbers else count
            count += buffer.number == count
        for buffer in dict.fromkeys(step.buffers):
            if buffer.kind == "temporary" and last[buffer] == position:
                free.setdefault(buffer.bytes, []).append(buffer.number)
