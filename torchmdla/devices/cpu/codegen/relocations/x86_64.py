"""Relocations of x86-64.

Object code refers to symbols by 64-bit addresses in its instructions, because the distance to a symbol may be large and
is not known. In an image, the distances are known. Each ``movabs`` of an address is therefore replaced by code of the
same size. It is ``lea`` for a target in the image, and a load from a slot for an import.
"""

from __future__ import annotations

from enum import IntEnum

from torchmdla.devices.cpu.codegen.image import X86_64
from torchmdla.devices.cpu.codegen.relocations import (
    Architecture,
    NotLinkable,
    Reference,
    check_addend,
    pack,
    unknown_kind,
)


class _Kind(IntEnum):
    """Kinds of relocations, with the numbers and names of the processor's ABI (after ``R_X86_64_``)."""

    ABSOLUTE = 1  # R_X86_64_64
    PC32 = 2
    PLT32 = 4
    GOTPCREL = 9
    PC64 = 24
    GOTOFF64 = 25
    GOTPC32 = 26
    GOT64 = 27
    GOTPC64 = 29
    PLTOFF64 = 31
    GOTPCRELX = 41
    REX_GOTPCRELX = 42


_WIDE_KINDS = frozenset((_Kind.PC64, _Kind.GOTOFF64, _Kind.GOT64, _Kind.GOTPC64, _Kind.PLTOFF64))

# movabs: a prefix that may extend the register number, the operation with the register number, the value.
_MOVABS_PREFIXES = (0x48, 0x49)
_MOVABS = 0xB8
# lea and mov encode the register in another byte, and the distance from the end of the instruction.
_WIDE, _LEA, _LOAD, _RIP_RELATIVE, _SHORT_BYTES = 0x48, 0x8D, 0x8B, 0x05, 7
_NOP = b"\x0f\x1f\x00"
# jmp to the address that a word at a distance holds.
_JUMP, _JUMP_BYTES, _STUB_BYTES = b"\xff\x25", 6, 8


def _stub(address: int, slot: int) -> bytes:
    return _JUMP + pack(slot - (address + _JUMP_BYTES), 4)


def _patch(reference: Reference) -> tuple[int, bytes]:
    if reference.kind == _Kind.ABSOLUTE:
        return _relax(reference)
    return 0, pack(_value(reference) + reference.addend, 8 if reference.kind in _WIDE_KINDS else 4)


def _value(reference: Reference) -> int:
    """Return the value of a relocation without its addend.

    The slots are the global offset table that some relocations are relative to.
    """
    match reference.kind:
        case _Kind.PC32 | _Kind.PC64:
            return reference.target - reference.place
        case _Kind.PLT32:
            return reference.callee - reference.place
        case _Kind.GOTPCREL | _Kind.GOTPCRELX | _Kind.REX_GOTPCRELX:
            return reference.slot - reference.place
        case _Kind.GOTOFF64:
            return reference.target - reference.slots
        case _Kind.GOT64:
            return reference.slot - reference.slots
        case _Kind.GOTPC32 | _Kind.GOTPC64:
            return reference.slots - reference.place
        case _Kind.PLTOFF64:
            return reference.callee - reference.slots
    raise unknown_kind(reference.kind)


def _relax(reference: Reference) -> tuple[int, bytes]:
    """Return an instruction with a relative distance that replaces ``movabs``."""
    prefix, operation = reference.read(-2, 2)
    register = operation - _MOVABS
    if prefix not in _MOVABS_PREFIXES or not 0 <= register < 8:
        raise NotLinkable("the object code has an address in an instruction other than movabs")
    check_addend(reference)
    operation, goal = (_LOAD, reference.slot) if reference.import_name else (_LEA, reference.target)
    extended = (prefix & 1) << 2
    instruction = bytes((_WIDE | extended, operation, register << 3 | _RIP_RELATIVE))
    distance = goal + reference.addend - (reference.place - 2 + _SHORT_BYTES)
    return -2, instruction + pack(distance, 4) + _NOP


ARCHITECTURE = Architecture(
    number=X86_64,
    absolute=_Kind.ABSOLUTE,
    slot_kinds=frozenset((_Kind.GOTPCREL, _Kind.GOTPCRELX, _Kind.REX_GOTPCRELX, _Kind.GOT64)),
    call_kinds=frozenset((_Kind.PLT32, _Kind.PLTOFF64)),
    wide_kinds=frozenset((_Kind.ABSOLUTE,)),
    stub_bytes=_STUB_BYTES,
    stub=_stub,
    patch=_patch,
    common_records=(b"\x01zR\0\x01\x78\x10\x01\x1b", b"\x01zR\0\x01\x78\x10\x01\x1c"),
)
