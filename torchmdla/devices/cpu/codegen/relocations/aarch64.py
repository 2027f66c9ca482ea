"""Relocations of AArch64.

Instructions refer to an address by its 4096-byte page (``adrp``) and by its place in that page. Code for large
distances puts an address together from four parts of 16 bits (``movz`` and three ``movk``). In an image they become
``adrp``, then ``add`` for a target in the image or a load from a slot for an import, and two instructions without
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

from torchmdla.devices.cpu.codegen.image import AARCH64
from torchmdla.devices.cpu.codegen.relocations import (
    Architecture,
    NotLinkable,
    Reference,
    check_addend,
    check_range,
    pack,
    unknown_kind,
)


class _Kind(IntEnum):
    """Kinds of relocations, with the numbers and names of the processor's ABI (after ``R_AARCH64_``)."""

    ABS64 = 257
    PREL64 = 260
    PREL32 = 261
    MOVW_UABS_G0_NC = 264
    MOVW_UABS_G1_NC = 266
    MOVW_UABS_G2_NC = 268
    MOVW_UABS_G3 = 269
    ADR_PREL_PG_HI21 = 275
    ADD_ABS_LO12_NC = 277
    LDST8_ABS_LO12_NC = 278
    JUMP26 = 282
    CALL26 = 283
    LDST16_ABS_LO12_NC = 284
    LDST32_ABS_LO12_NC = 285
    LDST64_ABS_LO12_NC = 286
    LDST128_ABS_LO12_NC = 299
    ADR_GOT_PAGE = 311
    LD64_GOT_LO12_NC = 312


# The parts of an address, from the lowest.
_PARTS = (_Kind.MOVW_UABS_G0_NC, _Kind.MOVW_UABS_G1_NC, _Kind.MOVW_UABS_G2_NC, _Kind.MOVW_UABS_G3)

# Instructions whose other bits are zero, by their names. ``ldr`` loads a register of 64 bits.
_MOVZ, _MOVK, _ADRP, _ADD, _LDR, _BR, _NOP = (
    0xD2800000, 0xF2800000, 0x90000000, 0x91000000, 0xF9400000, 0xD61F0000, 0xD503201F,
)  # fmt: skip

# Places in instructions: the number of the second register, immediate numbers.
_SECOND, _IMMEDIATE, _PART = 5, 10, 21
_REGISTER = 0x1F

# The register that stubs may change, and their size.
_SCRATCH, _STUB_BYTES = 16, 16

_PAGE_BITS, _IN_PAGE = 12, 0xFFF


def _page_distance(goal: int, place: int) -> int:
    """Return the immediate bits of ``adrp`` at ``place`` for the page of ``goal``."""
    pages = check_range((goal >> _PAGE_BITS) - (place >> _PAGE_BITS), 21)
    return (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _in_page(goal: int, scale: int = 0) -> int:
    """Return the immediate bits for the place of ``goal`` in its page, a multiple of ``2**scale``."""
    rest = goal & _IN_PAGE
    if rest & ((1 << scale) - 1):
        raise NotLinkable("the object code loads from an address that is not aligned")
    return rest >> scale << _IMMEDIATE


def _branch(goal: int, place: int) -> int:
    return check_range(goal - place, 28) >> 2 & 0x3FFFFFF


# The immediate bits of instructions, by the kind of the relocation.
_IMMEDIATES: Mapping[int, Callable[[Reference], int]] = {
    _Kind.ADR_PREL_PG_HI21: lambda r: _page_distance(r.target + r.addend, r.place),
    _Kind.ADD_ABS_LO12_NC: lambda r: _in_page(r.target + r.addend),
    _Kind.LDST8_ABS_LO12_NC: lambda r: _in_page(r.target + r.addend),
    _Kind.LDST16_ABS_LO12_NC: lambda r: _in_page(r.target + r.addend, 1),
    _Kind.LDST32_ABS_LO12_NC: lambda r: _in_page(r.target + r.addend, 2),
    _Kind.LDST64_ABS_LO12_NC: lambda r: _in_page(r.target + r.addend, 3),
    _Kind.LDST128_ABS_LO12_NC: lambda r: _in_page(r.target + r.addend, 4),
    _Kind.CALL26: lambda r: _branch(r.callee + r.addend, r.place),
    _Kind.JUMP26: lambda r: _branch(r.callee + r.addend, r.place),
    _Kind.ADR_GOT_PAGE: lambda r: _page_distance(r.slot, r.place),
    _Kind.LD64_GOT_LO12_NC: lambda r: _in_page(r.slot, 3),
}

# The sizes of numbers that are distances.
_DISTANCES: Mapping[int, int] = {_Kind.PREL32: 4, _Kind.PREL64: 8}


def _stub(address: int, slot: int) -> bytes:
    load = _LDR | _in_page(slot, 3) | _SCRATCH << _SECOND | _SCRATCH
    return _encode(_ADRP | _page_distance(slot, address) | _SCRATCH, load, _BR | _SCRATCH << _SECOND, _NOP)


def _patch(reference: Reference) -> tuple[int, bytes]:
    kind = reference.kind
    if kind in _DISTANCES:
        return 0, pack(reference.target + reference.addend - reference.place, _DISTANCES[kind])
    instruction = int.from_bytes(reference.read(0, 4), "little")
    if kind in _PARTS:
        return 0, _encode(_relax(reference, instruction, _PARTS.index(kind)))
    if kind not in _IMMEDIATES:
        raise unknown_kind(kind)
    return 0, _encode(instruction | _IMMEDIATES[kind](reference))


def _relax(reference: Reference, instruction: int, part: int) -> int:
    """Return the instruction that replaces the one with a part of an address."""
    register = instruction & _REGISTER
    if instruction != (_MOVK if part else _MOVZ) | part << _PART | register:
        raise NotLinkable("the object code has a part of an address in an instruction other than movz and movk")
    check_addend(reference)
    goal = reference.slot if reference.import_name else reference.target + reference.addend
    if part == 0:
        return _ADRP | _page_distance(goal, reference.place) | register
    if part > 1:
        return _NOP
    both = register << _SECOND | register
    return _LDR | _in_page(goal, 3) | both if reference.import_name else _ADD | _in_page(goal) | both


def _encode(*instructions: int) -> bytes:
    return b"".join(instruction.to_bytes(4, "little") for instruction in instructions)


ARCHITECTURE = Architecture(
    number=AARCH64,
    absolute=_Kind.ABS64,
    slot_kinds=frozenset((_Kind.ADR_GOT_PAGE, _Kind.LD64_GOT_LO12_NC)),
    call_kinds=frozenset((_Kind.CALL26, _Kind.JUMP26)),
    wide_kinds=frozenset(_PARTS),
    stub_bytes=_STUB_BYTES,
    stub=_stub,
    patch=_patch,
    common_records=(b"\x01zR\0\x01\x7c\x1e\x01\x1b", b"\x01zR\0\x01\x7c\x1e\x01\x1c"),
)
