"""Linker of object files into an image (:mod:`torchmdla.devices.cpu.codegen.image`).

An import's address is in a *slot*, a word of the constants that the loader writes. Calls of imports go to *stubs*,
which jump to the address in a slot. The relocations of each machine are in
:mod:`torchmdla.devices.cpu.codegen.relocations`. The unwind tables of all files are merged into one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchmdla.devices.cpu.codegen.image import PAGES, Function, Image, Segment
from torchmdla.devices.cpu.codegen.object_file import (
    NO_BITS,
    UNDEFINED,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
    is_elf,
)
from torchmdla.devices.cpu.codegen.relocations import Architecture, NotLinkable, aarch64, x86_64

_ARCHITECTURES = {each.number: each for each in (x86_64.ARCHITECTURE, aarch64.ARCHITECTURE)}

# Sections: flags, the largest alignment, names of those that a process would run, and the largest section number.
_WRITE, _ALLOCATED, _EXECUTABLE, _THREAD_LOCAL = 0x1, 0x2, 0x4, 0x400
_MOST_ALIGNMENT = 4096
_STARTUP_SECTIONS = (".preinit_array", ".init_array", ".fini_array", ".ctors", ".dtors")
_LAST_SECTION = 0xFEFF

# Symbols: kinds and bindings.
_FUNCTION, _INDIRECT_FUNCTION = 2, 10
_LOCAL, _WEAK = 0, 2

_WORD = struct.Struct("<Q")
_WORD_BYTES = 8

# Unwind tables: a record's length and reference, and the end of the table.
_RECORD = struct.Struct("<II")
_TABLE_END = bytes(4)

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
    machines = {file.machine for file in files}
    if others := (machines - _ARCHITECTURES.keys()) or sorted(machines)[1:]:
        raise NotLinkable(f"the object code is for machine {min(others)}")
    return _Linker(files, _ARCHITECTURES[machines.pop()]).image()


class _Linker:
    """Linker of object files. It finds the stubs and slots, then assigns addresses, then writes the contents."""

    def __init__(self, files: Sequence[ObjectFile], architecture: Architecture) -> None:
        self._files = files
        self._architecture = architecture
        self._references = list(self._all_references())
        self._addresses: dict[tuple[int, int], int] = {}
        self._imports: list[tuple[str, int]] = []
        self._fixups: list[int] = []
        calls = (r for r in self._references if r.is_import and r.relocation.kind in architecture.call_kinds)
        self._stubs = _number_targets(reference.target for reference in calls)
        self._slots = _number_targets(reference.target for reference in self._references if self._needs_slot(reference))

    def image(self) -> Image:
        code = self._lay_out(0, len(self._stubs) * self._architecture.stub_bytes, _EXECUTABLE)
        constants = self._lay_out(self._next_page(code), len(self._slots) * _WORD_BYTES, 0)
        unwinding = self._lay_out_unwinding(constants)
        data = self._lay_out(self._next_page(constants), 0, _WRITE)
        self._segments = (code, constants, data)
        if self._next_page(data) >= 1 << 31:
            raise NotLinkable("the object code is larger than instructions reach")
        self._write_stubs()
        for target in self._slots:
            self._write_address(self._slot(target), target, 0)
        for reference in self._references:
            self._resolve(reference)
        return Image(
            machine=self._architecture.number,
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
        if kind in self._architecture.slot_kinds:
            return True
        is_wide = kind in self._architecture.wide_kinds and self._is_code(reference)
        return reference.is_import and (kind in self._architecture.call_kinds or is_wide)

    def _is_code(self, reference: _Reference) -> bool:
        section = self._files[reference.file].sections[reference.relocation.section]
        return bool(section.flags & _EXECUTABLE)

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
                    table = _unwind_table(section, self._architecture.common_records)
                    self._addresses[number, index] = constants.add(table, section.size, 1)
        if constants.end == start:
            return 0, 0
        constants.add(_TABLE_END, len(_TABLE_END), 1)
        return start, constants.end - start

    def _next_page(self, segment: _Content) -> int:
        """Return the first address at which the next segment may begin."""
        page = PAGES[self._architecture.number]
        return -(-segment.end // page) * page

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

    def _stub(self, target: _Target) -> int:
        return self._stubs[target] * self._architecture.stub_bytes

    # --- contents ---

    def _write_stubs(self) -> None:
        for target in self._stubs:
            self._write(self._stub(target), self._architecture.stub(self._stub(target), self._slot(target)))

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
        relocation = reference.relocation
        place = self._address((reference.file, relocation.section, relocation.offset))
        if relocation.kind == self._architecture.absolute and not self._is_code(reference):
            self._write_address(place, reference.target, relocation.addend)
            return
        distance, data = self._architecture.patch(_Site(self, place, reference))
        self._write(place + distance, data)

    def _write(self, address: int, data: bytes) -> None:
        segment = self._segment_at(address, len(data))
        start = address - segment.address
        segment.content[start : start + len(data)] = data

    def _segment_at(self, address: int, size: int) -> _Content:
        for segment in self._segments:
            if segment.address <= address and address + size <= segment.address + len(segment.content):
                return segment
        raise NotLinkable("the object code has a relocation outside of its sections")


@dataclass(frozen=True)
class _Site:
    """Reference with the addresses that a linker assigned (:class:`relocations.Reference`)."""

    linker: _Linker
    place: int
    reference: _Reference

    @property
    def kind(self) -> int:
        return self.reference.relocation.kind

    @property
    def addend(self) -> int:
        return self.reference.relocation.addend

    @property
    def import_name(self) -> str | None:
        return self.reference.target if isinstance(self.reference.target, str) else None

    @property
    def target(self) -> int:
        return self.linker._address(self.reference.target)

    @property
    def slot(self) -> int:
        return self.linker._slot(self.reference.target)

    @property
    def callee(self) -> int:
        return self.linker._stub(self.reference.target) if self.import_name else self.target

    @property
    def slots(self) -> int:
        return self.linker._slots_address

    def read(self, distance: int, size: int) -> bytes:
        segment = self.linker._segment_at(self.place + distance, size)
        start = self.place + distance - segment.address
        return bytes(segment.content[start : start + size])


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
        if alignment > _MOST_ALIGNMENT:
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


def _unwind_table(section: Section, common_records: tuple[bytes, ...]) -> bytes:
    """Return the data of an unwind section, if it has the form that LLVM emits and loaders support.

    Each record follows its length. Common records, which other records refer to, have a reference of zero and begin
    with one of the known byte sequences.
    """
    data, at = section.data, 0
    while at < len(data):
        length, reference = _RECORD.unpack_from(data, at)
        if not length or (not reference and not data.startswith(common_records, at + _RECORD.size)):
            raise NotLinkable("the object code's unwind table has another form")
        at += length + 4
    return data


def _locate(file: int, symbol: Symbol) -> _Target:
    if symbol.section > _LAST_SECTION or symbol.kind == _INDIRECT_FUNCTION:
        raise NotLinkable(f"there is nothing for symbol {symbol.name} in an image")
    return file, symbol.section, symbol.value


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
