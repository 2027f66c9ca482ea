"""Linker of x86-64 object files into an image (:mod:`torchmdla.devices.cpu.codegen.image`).

Object code refers to symbols by 64-bit addresses in its instructions, because the distance to a symbol may be large and
is not known. In an image, the distances are known. The linker therefore replaces each ``movabs`` of an address by code
of the same size. It is ``lea`` for a target in the image, and a load from a *slot* for an external symbol. A slot is a
word of the constants that the loader writes. The unwind tables of all files are merged into one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from torchmdla.devices.cpu.codegen.image import PAGE, Function, Image, Segment
from torchmdla.devices.cpu.codegen.object_file import (
    NO_BITS,
    UNDEFINED,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
    is_elf,
)

_X86_64 = 62

# Sections: flags, names of the sections that a process would run, and the largest section number.
_WRITE, _ALLOCATED, _EXECUTABLE, _THREAD_LOCAL = 0x1, 0x2, 0x4, 0x400
_STARTUP_SECTIONS = (".preinit_array", ".init_array", ".fini_array", ".ctors", ".dtors")
_LAST_SECTION = 0xFEFF

# Symbols: kinds and bindings.
_FUNCTION, _INDIRECT_FUNCTION = 2, 10
_LOCAL, _WEAK = 0, 2


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


_SLOT_KINDS = frozenset((_Kind.GOTPCREL, _Kind.GOTPCRELX, _Kind.REX_GOTPCRELX, _Kind.GOT64))
_CALL_KINDS = frozenset((_Kind.PLT32, _Kind.PLTOFF64))
_WIDE_KINDS = frozenset((_Kind.PC64, _Kind.GOTOFF64, _Kind.GOT64, _Kind.GOTPC64, _Kind.PLTOFF64))

_WORD = struct.Struct("<Q")
_WORD_BYTES = 8

# Unwind tables: a record's length and reference, the next bytes of a common record, and the end of the table.
_RECORD = struct.Struct("<II")
_COMMON_RECORDS = (b"\x01zR\0\x01\x78\x10\x01\x1b", b"\x01zR\0\x01\x78\x10\x01\x1c")
_TABLE_END = bytes(4)

# movabs: a prefix that may extend the register number, the operation with the register number, the value.
_MOVABS_PREFIXES = (0x48, 0x49)
_MOVABS = 0xB8
# lea and mov encode the register in another byte, and the distance from the end of the instruction.
_WIDE, _LEA, _LOAD, _RIP_RELATIVE, _SHORT_BYTES = 0x48, 0x8D, 0x8B, 0x05, 7
_NOP = b"\x0f\x1f\x00"
# jmp to the address that a word at a distance holds.
_JUMP, _JUMP_BYTES = b"\xff\x25", 6


class NotLinkable(ValueError):
    """Error for object code that cannot be linked into an image. The message is the reason."""


# A location: the name of an external symbol, or the number of a file, the number of a section in it, and an offset.
_Target = str | tuple[int, int, int]


@dataclass(frozen=True)
class _Reference:
    """Relocation in the file with number ``file``, and its target."""

    file: int
    relocation: Relocation
    target: _Target

    @property
    def is_import(self) -> bool:
        return isinstance(self.target, str)


def link(objects: Sequence[bytes]) -> Image:
    """Link ``objects`` into an image. Symbols that none of them defines become imports.

    Raises:
        NotLinkable: they are for another machine, or contain something that an image does not support.
    """
    if not all(map(is_elf, objects)):
        raise NotLinkable("the object code is in another format than ELF")
    files = [ObjectFile.of(data) for data in objects]
    if others := {file.machine for file in files} - {_X86_64}:
        raise NotLinkable(f"the object code is for machine {min(others)}")
    return _Linker(files).image()


class _Linker:
    """Linker of object files. It finds the stubs and slots, then assigns addresses, then writes the contents."""

    def __init__(self, files: Sequence[ObjectFile]) -> None:
        self._files = files
        self._references = list(self._all_references())
        self._addresses: dict[tuple[int, int], int] = {}
        self._imports: list[tuple[str, int]] = []
        self._fixups: list[int] = []
        calls = (r for r in self._references if r.is_import and r.relocation.kind in _CALL_KINDS)
        self._stubs = _number_targets(reference.target for reference in calls)
        self._slots = _number_targets(reference.target for reference in self._references if self._needs_slot(reference))

    def image(self) -> Image:
        code = self._lay_out(0, len(self._stubs) * _WORD_BYTES, _EXECUTABLE)
        constants = self._lay_out(_next_page(code), len(self._slots) * _WORD_BYTES, 0)
        unwinding = self._lay_out_unwinding(constants)
        data = self._lay_out(_next_page(constants), 0, _WRITE)
        self._segments = (code, constants, data)
        if _next_page(data) >= 1 << 31:
            raise NotLinkable("the object code is larger than instructions reach")
        self._write_stubs()
        for target in self._slots:
            self._write_address(self._slot(target), target, 0)
        for reference in self._references:
            self._resolve(reference)
        return Image(
            machine=_X86_64,
            code=code.to_segment(),
            constants=constants.to_segment(),
            data=data.to_segment(),
            imports=tuple(self._imports),
            functions=tuple(self._functions()),
            fixups=tuple(self._fixups),
            unwinding=unwinding,
        )

    # --- symbols and references ---

    def _all_references(self) -> Iterator[_Reference]:
        for number, file in enumerate(self._files):
            for relocation in file.relocations:
                if _is_kept(file.sections[relocation.section]):
                    yield _Reference(number, relocation, self._target(number, file.symbols[relocation.symbol]))

    def _target(self, file: int, symbol: Symbol) -> _Target:
        if symbol.section == UNDEFINED:
            return self._definitions.get(symbol.name, symbol.name)
        if symbol.binding == _LOCAL:
            return _locate(file, symbol)
        return self._definitions[symbol.name]

    @cached_property
    def _definitions(self) -> dict[str, _Target]:
        """Return the locations of global symbols. A strong definition overrides a weak one."""
        definitions: dict[str, tuple[int, Symbol]] = {}
        for number, file in enumerate(self._files):
            for symbol in file.symbols:
                if symbol.binding == _LOCAL or symbol.section == UNDEFINED:
                    continue
                _, other = definitions.setdefault(symbol.name, (number, symbol))
                if other is symbol or symbol.binding == _WEAK:
                    continue
                if other.binding != _WEAK:
                    raise NotLinkable(f"{symbol.name} is defined twice")
                definitions[symbol.name] = (number, symbol)
        return {name: _locate(*where) for name, where in definitions.items()}

    def _needs_slot(self, reference: _Reference) -> bool:
        kind = reference.relocation.kind
        if kind in _SLOT_KINDS:
            return True
        in_code = self._section(reference).flags & _EXECUTABLE
        return reference.is_import and (kind in _CALL_KINDS or bool(kind == _Kind.ABSOLUTE and in_code))

    def _section(self, reference: _Reference) -> Section:
        return self._files[reference.file].sections[reference.relocation.section]

    def _functions(self) -> Iterator[Function]:
        """Yield all functions. A local function gets a new name if its name is already used."""
        taken = set(self._definitions)
        for number, file in enumerate(self._files):
            for symbol in file.symbols:
                if symbol.kind != _FUNCTION or symbol.section == UNDEFINED:
                    continue
                place, name = _locate(number, symbol), symbol.name
                if symbol.binding == _LOCAL:
                    name = _make_unique(name, taken)
                elif self._definitions[name] != place:
                    continue
                yield Function(_check_printable(name), self._address(place), symbol.size)

    # --- addresses ---

    def _lay_out(self, address: int, reserved: int, kind: int) -> _Content:
        """Lay out the sections of a kind in a segment, after ``reserved`` bytes, and return the segment."""
        segment = _Content(address, bytearray(reserved), reserved)
        sections = [
            (number, index, section)
            for number, file in enumerate(self._files)
            for index, section in enumerate(file.sections)
            if _is_kept(section) and section.flags & (_WRITE | _EXECUTABLE) == kind
        ]
        # Sections without bytes in the file come last.
        for number, index, section in sorted(sections, key=lambda entry: entry[2].kind == NO_BITS):
            if not _is_unwinding(section):
                self._addresses[number, index] = segment.add(section.data, section.size, section.alignment)
        return segment

    def _lay_out_unwinding(self, constants: _Content) -> tuple[int, int]:
        """Append the unwind table to the constants; return its address and its size in bytes.

        Its parts are stored without gaps: a gap would end the table.
        """
        start = constants.add(b"", 0, _WORD_BYTES)
        for number, file in enumerate(self._files):
            for index, section in enumerate(file.sections):
                if _is_kept(section) and _is_unwinding(section):
                    self._addresses[number, index] = constants.add(_unwind_table(section), section.size, 1)
        if constants.end == start:
            return 0, 0
        constants.add(_TABLE_END, len(_TABLE_END), 1)
        return start, constants.end - start

    def _address(self, target: _Target) -> int:
        if isinstance(target, str):
            raise NotLinkable(f"the object code refers to {target} as if it were near")
        file, section, offset = target
        if (file, section) not in self._addresses:
            raise NotLinkable("the object code refers to a section that is not loaded")
        return self._addresses[file, section] + offset

    @property
    def _slots_address(self) -> int:
        return self._segments[1].address

    def _slot(self, target: _Target) -> int:
        return self._slots_address + self._slots[target] * _WORD_BYTES

    def _callee(self, target: _Target) -> int:
        return self._stubs[target] * _WORD_BYTES if target in self._stubs else self._address(target)

    # --- contents ---

    def _write_stubs(self) -> None:
        for target, number in self._stubs.items():
            address = number * _WORD_BYTES
            distance = self._slot(target) - (address + _JUMP_BYTES)
            self._write(address, _JUMP + _pack(distance, 4))

    def _write_address(self, word: int, target: _Target, addend: int) -> None:
        """Write an address into a word of constants or data, or register the word as an import."""
        if word % _WORD_BYTES:
            raise NotLinkable("an address in the object code's data is not aligned")
        if isinstance(target, str):
            if addend:
                raise NotLinkable(f"the object code refers to what is beside {target}")
            self._imports.append((_check_printable(target), word))
            return
        value = self._address(target) + addend
        if not 0 <= value <= self._segments[-1].end:
            raise NotLinkable("an address in the object code's data is outside of it")
        self._write(word, _WORD.pack(value))
        self._fixups.append(word)

    def _resolve(self, reference: _Reference) -> None:
        relocation, target = reference.relocation, reference.target
        place = self._address((reference.file, relocation.section, relocation.offset))
        if relocation.kind == _Kind.ABSOLUTE:
            if self._section(reference).flags & _EXECUTABLE:
                self._relax(place, target, relocation.addend)
            else:
                self._write_address(place, target, relocation.addend)
            return
        value = self._distance(relocation.kind, target, place) + relocation.addend
        self._write(place, _pack(value, 8 if relocation.kind in _WIDE_KINDS else 4))

    def _distance(self, kind: int, target: _Target, place: int) -> int:
        """Return the value of a relocation without its addend.

        The slots are the global offset table that some relocations are relative to.
        """
        match kind:
            case _Kind.PC32 | _Kind.PC64:
                return self._address(target) - place
            case _Kind.PLT32:
                return self._callee(target) - place
            case _Kind.GOTPCREL | _Kind.GOTPCRELX | _Kind.REX_GOTPCRELX:
                return self._slot(target) - place
            case _Kind.GOTOFF64:
                return self._address(target) - self._slots_address
            case _Kind.GOT64:
                return self._slot(target) - self._slots_address
            case _Kind.GOTPC32 | _Kind.GOTPC64:
                return self._slots_address - place
            case _Kind.PLTOFF64:
                return self._callee(target) - self._slots_address
        raise NotLinkable(f"the object code has a relocation of kind {kind}")

    def _relax(self, place: int, target: _Target, addend: int) -> None:
        """Replace the ``movabs`` whose value is at ``place`` by an instruction with a relative distance."""
        start = place - 2
        segment = self._segment_at(start, 2)
        prefix, operation = segment.content[start - segment.address :][:2]
        register = operation - _MOVABS
        if prefix not in _MOVABS_PREFIXES or not 0 <= register < 8:
            raise NotLinkable("the object code has an address in an instruction other than movabs")
        if isinstance(target, str) and addend:
            raise NotLinkable(f"the object code refers to what is beside {target}")
        operation, goal = (_LOAD, self._slot(target)) if isinstance(target, str) else (_LEA, self._address(target))
        extended = (prefix & 1) << 2
        instruction = bytes((_WIDE | extended, operation, register << 3 | _RIP_RELATIVE))
        distance = goal + addend - (start + _SHORT_BYTES)
        self._write(start, instruction + _pack(distance, 4) + _NOP)

    def _write(self, address: int, data: bytes) -> None:
        segment = self._segment_at(address, len(data))
        start = address - segment.address
        segment.content[start : start + len(data)] = data

    def _segment_at(self, address: int, size: int) -> _Content:
        for segment in self._segments:
            if segment.address <= address and address + size <= segment.address + len(segment.content):
                return segment
        raise NotLinkable("the object code has a relocation outside of its sections")


@dataclass
class _Content:
    """Segment that is being filled."""

    address: int
    content: bytearray
    size: int

    @property
    def end(self) -> int:
        return self.address + self.size

    def add(self, data: bytes, size: int, alignment: int) -> int:
        """Append ``size`` bytes that begin with ``data``, and return their address."""
        if alignment > PAGE:
            raise NotLinkable(f"a section wants an alignment of {alignment} bytes")
        start = -(-self.size // alignment) * alignment
        self.size = start + size
        if data:
            self.content += bytes(start - len(self.content)) + data
        return self.address + start

    def to_segment(self) -> Segment:
        return Segment(self.address, bytes(self.content), self.size)


def _is_kept(section: Section) -> bool:
    """Return whether a section is part of the image."""
    if not section.flags & _ALLOCATED or not section.size:
        return False
    both = section.flags & _WRITE and section.flags & _EXECUTABLE
    if both or section.flags & _THREAD_LOCAL or section.name.startswith(_STARTUP_SECTIONS):
        raise NotLinkable(f"there is nothing for section {section.name} in an image")
    return True


def _is_unwinding(section: Section) -> bool:
    return section.name == ".eh_frame"


def _unwind_table(section: Section) -> bytes:
    """Return the data of an unwind section, if it has the form that LLVM emits and loaders support.

    Each record follows its length. Common records, which other records refer to, have a reference of zero and begin
    with one of the known byte sequences.
    """
    data, at = section.data, 0
    while at < len(data):
        length, reference = _RECORD.unpack_from(data, at)
        if not length or (not reference and not data.startswith(_COMMON_RECORDS, at + _RECORD.size)):
            raise NotLinkable("the object code's unwind table has another form")
        at += length + 4
    return data


def _locate(file: int, symbol: Symbol) -> _Target:
    if symbol.section > _LAST_SECTION or symbol.kind == _INDIRECT_FUNCTION:
        raise NotLinkable(f"there is nothing for symbol {symbol.name} in an image")
    return file, symbol.section, symbol.value


def _next_page(segment: _Content) -> int:
    """Return the first address at which the next segment may begin."""
    return -(-segment.end // PAGE) * PAGE


def _number_targets(targets: Iterable[_Target]) -> dict[_Target, int]:
    """Return the distinct targets, numbered in order of appearance."""
    return {target: number for number, target in enumerate(dict.fromkeys(targets))}


def _make_unique(name: str, taken: set[str]) -> str:
    """Return ``name``, with a number appended if it is in ``taken``; add the result to ``taken``."""
    number, free = 0, name
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    taken.add(free)
    return free


def _check_printable(name: str) -> str:
    if not name or not all("!" <= character <= "~" for character in name):
        raise NotLinkable(f"there is nothing for a symbol of the name {name!r} in an image")
    return name


def _pack(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "little", signed=True)
    except OverflowError:
        raise NotLinkable("the object code refers to something farther away than instructions reach") from None
