"""Relocations: for each machine, how object code refers to addresses (:mod:`torchmdla.devices.cpu.codegen.linking`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class NotLinkable(ValueError):
    """Error for object code that cannot be linked into an image. The message is the reason."""


class Reference(Protocol):
    """Reference of an instruction or a constant, whose target has an address.

    A *slot* is a word that holds the target's address. A *callee* is the target, or the stub that jumps to it.
    """

    @property
    def kind(self) -> int: ...

    @property
    def place(self) -> int: ...

    @property
    def addend(self) -> int: ...

    @property
    def import_name(self) -> str | None:
        """The name of the target, if the image does not contain it."""

    @property
    def target(self) -> int: ...

    @property
    def slot(self) -> int: ...

    @property
    def callee(self) -> int: ...

    @property
    def slots(self) -> int:
        """The address of the first slot."""

    def read(self, distance: int, size: int) -> bytes:
        """Return the bytes at a distance from the place."""


@dataclass(frozen=True)
class Architecture:
    """Machine that images can be linked for.

    Attributes:
        number: ELF's number of the machine.
        absolute: the kind of relocations of words that hold an address.
        slot_kinds: kinds of relocations that refer to slots.
        call_kinds: kinds of relocations of calls. A call of an import goes to a stub.
        wide_kinds: kinds of relocations of addresses in instructions. That of an import comes from a slot.
        stub_bytes: the size of a stub.
        stub: returns the stub, whose address is the first argument, for the slot at the second.
        patch: returns the distance from the place to the bytes that a reference changes, and these bytes.
        common_records: the first bytes of common records of unwind tables.
    """

    number: int
    absolute: int
    slot_kinds: frozenset[int]
    call_kinds: frozenset[int]
    wide_kinds: frozenset[int]
    stub_bytes: int
    stub: Callable[[int, int], bytes]
    patch: Callable[[Reference], tuple[int, bytes]]
    common_records: tuple[bytes, ...]


def unknown_kind(kind: int) -> NotLinkable:
    return NotLinkable(f"the object code has a relocation of kind {kind}")


def check_addend(reference: Reference) -> None:
    """Raise NotLinkable if a reference has an addend to an import."""
    if reference.import_name and reference.addend:
        raise NotLinkable(f"the object code refers to what is beside {reference.import_name}")


def check_range(value: int, bits: int) -> int:
    """Return ``value`` if it is a signed number of that many bits; raise NotLinkable otherwise."""
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise NotLinkable("the object code refers to something farther away than instructions reach")
    return value


def pack(value: int, size: int) -> bytes:
    """Return a signed number of ``size`` bytes."""
    return check_range(value, 8 * size).to_bytes(size, "little", signed=True)
