"""Content of an artifact: the code of kernels, their parameters and their launches. It is stored as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["argument", "scalar", "pack", "literal", "temporary", "result"]

# Alignment of memory in bytes.
_ALIGNMENT = 256


@dataclass(frozen=True)
class Slot:
    """Parameter of kernels.

    Attributes:
        kind: the source of the value. ``number`` counts the arguments, scalars among them, packs, or results.
        bytes: the size of the buffer.
        offset: the place of an argument or a temporary buffer in the workspace of a call, or of a literal among the
            literals.
    """

    kind: Kind
    bytes: int
    number: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Step:
    """Launch of a kernel with some blocks of threads, and the positions of its parameters among the slots."""

    kernel: str
    blocks: int
    places: tuple[int, ...]


@dataclass(frozen=True)
class DeviceProgram:
    """Program for a card.

    Attributes:
        index: number of the card.
        code: PTX, or the shared library of an emulated card.
        slots: all parameters.
        steps: the launches, in order.
        workspace: bytes of the memory that a call needs.
        pack_bytes: sizes of the weights that the packs copy.
        literals: contents of constant tensors.
    """

    index: int
    code: bytes
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    workspace: int
    pack_bytes: tuple[int, ...]
    literals: bytes

    def to_bytes(self) -> bytes:
        def text(value: Any) -> Any:
            return base64.b64encode(value).decode() if isinstance(value, bytes) else vars(value)

        return json.dumps(vars(self), default=text).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> DeviceProgram:
        fields = json.loads(data)
        return cls(
            fields["index"],
            base64.b64decode(fields["code"]),
            tuple(Slot(**slot) for slot in fields["slots"]),
            tuple(Step(step["kernel"], step["blocks"], tuple(step["places"])) for step in fields["steps"]),
            fields["workspace"],
            tuple(fields["pack_bytes"]),
            base64.b64decode(fields["literals"]),
        )


def place_literals(slots: Sequence[Slot], contents: Mapping[int, bytes]) -> tuple[list[Slot], bytes]:
    """Return the slots with the offsets of literals, whose ``contents`` are by slot, and all contents."""
    placed, data = list(slots), b""
    for position, content in contents.items():
        placed[position] = replace(placed[position], offset=len(data))
        data += content + bytes(-len(content) % _ALIGNMENT)
    return placed, data


def place_buffers(slots: Sequence[Slot], steps: Sequence[Step]) -> tuple[list[Slot], int]:
    """Return the slots with their offsets in the workspace, and its size. Kernels run one after the other.

    Each buffer gets the first place that no buffer has which is needed at the same time. Arguments are needed from
    the beginning.
    """
    first, last = dict[int, int](), dict[int, int]()
    for number, step in enumerate(steps):
        for position in step.places:
            first.setdefault(position, -1 if slots[position].kind == "argument" else number)
            last[position] = number
    placed, size = list(slots), 0
    done: list[int] = []
    for position in sorted(first, key=first.__getitem__):
        slot = slots[position]
        if slot.kind not in ("argument", "temporary"):
            continue
        needed = [placed[other] for other in done if last[other] >= first[position]]
        offset = 0
        for other in sorted(needed, key=lambda other: other.offset):
            if offset + slot.bytes <= other.offset:
                break
            offset = max(offset, -(-(other.offset + other.bytes) // _ALIGNMENT) * _ALIGNMENT)
        placed[position] = replace(slot, offset=offset)
        size = max(size, offset + slot.bytes)
        done.append(position)
    return placed, size
