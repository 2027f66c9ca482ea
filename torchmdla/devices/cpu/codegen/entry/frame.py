"""Frame of a function: the addresses of buffers, values of scalars and sizes that its steps refer to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.codegen.checks import Marks
from torchmdla.devices.cpu.codegen.entry.abi import ARGUMENTS, DESTINATION, PACK_ARGUMENTS, PACKED, SIZES, WORD, Abi
from torchmdla.devices.cpu.codegen.sizes import Lifetime, SizeCode, plan
from torchmdla.devices.cpu.codegen.tile_loops import describe_buffer
from torchmdla.devices.cpu.ir.accesses import Buffer, Scalar
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.loop_program import Packing, Step, first_and_last_uses
from torchmdla.devices.cpu.schedule import Symbols

# The memory on the stack in which a kernel's scalars and the status are passed.
_SLOTS = "%slots"


class Frame:
    """Frame of the entry, or of a pack (``packing``): the function's text and the names of its values.

    Attributes:
        symbols: the pointer to the values of the symbols; empty in a function without symbols.
        sizes: the writer of sizes computed from the symbols.
        values: the values of scalars.
        views: the addresses of the views of a loop, for its current iteration.
        arguments: the positions of the arguments that are used so far.
        marks: the marks, if accesses are checked. The function's argument is then called ``%given``, and
            :meth:`prologue` defines ``%buffers`` and ``%workspace`` from it.
        status: the address that kernels write to if they fail, if it is an argument.
    """

    def __init__(
        self, steps: Sequence[Step], abi: Abi, marks: Marks | None, packing: Packing | None, status: str = ""
    ) -> None:
        self.text = FunctionText(("%buffers", "%operands", _SLOTS))
        self.packing = packing
        self.marks = marks
        self.values: dict[Scalar, str] = {}
        self.views: dict[Buffer, str] = {}
        self.arguments: set[int] = set()
        self._steps = steps
        self._abi = abi
        self._slots: dict[Scalar | None, int] = {}
        self._status = status
        used = Symbols() if packing else abi.symbols
        self.symbols = self._mark_sizes(self.text.pointer_in("%buffers", SIZES)) if used.is_used else ""
        self.sizes = SizeCode.from_pointer(self.text.define, self.symbols, used.count)
        self._layout = lay_out(steps, used, self.sizes)
        self._prologue = self.text.take()

    # The workspace.

    @property
    def workspace_bytes(self) -> int:
        """Return the size in bytes of a workspace that is planned at compile time."""
        return self._layout.end.offset

    def workspace_value(self, sizes: str) -> str:
        """Return the name of the size of a workspace that is planned at run time.

        In the function that is written, ``sizes`` points to the values of the symbols.
        """
        symbols = self._abi.symbols
        code = SizeCode.from_pointer(self.text.define, self._mark_sizes(sizes), symbols.count)
        return lay_out(self._steps, symbols, code).end.base

    def _in_workspace(self, place: Place, distance: int | Size = 0) -> str:
        """Return the address of the byte at a distance after a place of the workspace."""
        pointer = "%workspace" if self.marks else self.text.pointer_in("%buffers", 0)
        return self._offset(
            self.text.offset_pointer(pointer, place.base) if place.base else pointer, distance + place.offset
        )

    # Buffers.

    def pointer(self, buffer: Buffer, offset: int | Size = 0) -> str:
        """Return the address of a buffer's element ``offset``."""
        distance = offset * ELEMENT_BYTES[storage_type(buffer.element)]
        if buffer.kind == "temporary" and not self.marks:
            return self._in_workspace(self._layout.places[buffer], distance)
        return self._offset(self.views[buffer] if buffer.kind == "view" else self._base(buffer), distance)

    def number(self, number: int | Size) -> str:
        """Return the name of the value of ``number``."""
        return self.sizes.value(number) if isinstance(number, Size) else self.text.constant(number)

    def _offset(self, pointer: str, offset: int | Size) -> str:
        if not offset:
            return pointer
        return self.text.offset_pointer(pointer, self.sizes.value(offset) if isinstance(offset, Size) else offset)

    def _base(self, buffer: Buffer) -> str:
        if buffer.kind == "temporary":
            pointer = self._in_workspace(self._layout.places[buffer])
        elif buffer.kind == "global":
            pointer = self.text.define(f"llvm.mlir.addressof @{buffer.symbol} : !llvm.ptr")
        elif self.packing is None:
            pointer = self._argument_pointer(buffer)
        elif buffer is self.packing.buffer:
            pointer = self.text.pointer_in("%buffers", DESTINATION)
        else:
            position = PACK_ARGUMENTS + self.packing.arguments.index(buffer.position)
            pointer = self.text.pointer_in("%buffers", position)
        return self._mark(pointer, buffer.bytes, self._label(buffer)) if self.marks else pointer

    def _argument_pointer(self, buffer: Buffer) -> str:
        if buffer.kind != "packed":
            self.arguments.add(buffer.position)
            return self.text.pointer_in("%buffers", buffer.position + ARGUMENTS)
        pointer = self.text.pointer_in("%buffers", PACKED)
        packed = self._mark(pointer, WORD * self._abi.packed, "the packed buffers")
        return self.text.pointer_in(packed, buffer.position)

    # Scalars.

    def value(self, scalar: Scalar) -> str:
        """Return the name of the value of a scalar. Arguments are loaded at their first use."""
        if scalar not in self.values:
            pointer = self.text.pointer_in("%buffers", scalar.argument + ARGUMENTS)
            pointer = self._mark(pointer, WORD, f"scalar {scalar.argument}")
            load = f"llvm.load {pointer} {{alignment = 8 : i64}} : !llvm.ptr -> {scalar.type}"
            self.values[scalar] = self.text.define(load)
        return self.values[scalar]

    def spill(self, scalar: Scalar) -> str:
        """Return the address of a slot that holds a scalar."""
        known = scalar in self._slots
        pointer = self._slot(scalar)
        if not known:
            value = self.to_memory(self.value(scalar), scalar.type)
            self.text.add(f"llvm.store {value}, {pointer} : {storage_type(scalar.type)}, !llvm.ptr")
        return pointer

    def to_memory(self, value: str, kind: str) -> str:
        """Return a value of type ``kind``, converted to its type in memory."""
        if storage_type(kind) == kind:
            return value
        convert = "llvm.zext" if kind == "i1" else "llvm.bitcast"
        return self.text.define(f"{convert} {value} : {kind} to {storage_type(kind)}")

    def status(self) -> str:
        """Return the address that kernels write to if they fail."""
        return self._status or self._slot(None)

    @property
    def has_status(self) -> bool:
        """Return whether the function has a status of its own."""
        return None in self._slots

    @property
    def slots(self) -> int:
        """Return the number of slots: of scalars, and of the status."""
        return len(self._slots)

    def _slot(self, key: Scalar | None) -> str:
        number = self._slots.setdefault(key, len(self._slots))
        return self._mark(self.text.place_in(_SLOTS, number), WORD, f"slot {number}")

    # Checks.

    def prologue(self) -> list[str]:
        """Return the first lines of the function. Call this after all other lines are written.

        The lines load the pointers that the caller always passes, and mark them if accesses are checked.
        """
        if self.marks is None:
            return [*self.text.head, *self._prologue]
        text, count = self.text, ARGUMENTS + self._abi.arguments
        if self.packing:
            count = PACK_ARGUMENTS + len(self.packing.arguments)
        text.add(f"%buffers = {_rename(self._mark('%given', WORD * count, 'the buffers'))}")
        first, end = text.take(), self._layout.end
        size = text.constant(self.workspace_bytes)
        if end.base:
            size = self.sizes.op("addi", end.base, size)
        workspace = self.marks.mark(text.define, text.pointer_in("%buffers", 0), size, "the workspace")
        text.add(f"%workspace = {_rename(workspace)}")
        return [*first, *text.head, *self._prologue, *text.take()]

    def _mark(self, pointer: str, size: int | Size, name: str) -> str:
        """Return a pointer to ``size`` bytes, marked if accesses are checked."""
        return self.marks.mark(self.text.define, pointer, self.number(size), name) if self.marks else pointer

    def _mark_sizes(self, pointer: str) -> str:
        return self._mark(pointer, WORD * self._abi.symbols.count, "the sizes")

    def _label(self, buffer: Buffer) -> str:
        """Return the name of a buffer in messages."""
        number: object = buffer.symbol or buffer.position
        if buffer.kind == "temporary":
            number = list(self._layout.places).index(buffer)
        elif self.packing and buffer is not self.packing.buffer:
            number = self.packing.arguments.index(buffer.position)
        return f"{buffer.kind} {number} {describe_buffer(buffer)}"


def _rename(pointer: str) -> str:
    """Return an op whose result is ``pointer``."""
    return f"llvm.getelementptr {pointer}[0] : (!llvm.ptr) -> !llvm.ptr, i8"


# Layout of the temporaries in the workspace.


@dataclass(frozen=True)
class Place:
    """Byte of the workspace: ``offset`` bytes after its start, or after the value ``base`` if that is not empty."""

    base: str
    offset: int


@dataclass(frozen=True)
class Layout:
    """Places of temporaries, and the end of the last one."""

    places: dict[Buffer, Place]
    end: Place


def lay_out(steps: Sequence[Step], symbols: Symbols, sizes: SizeCode) -> Layout:
    """Return the places of the steps' temporaries.

    They are planned at compile time. In a program with ``symbols``, the function of ``sizes`` computes them.
    """
    if symbols.is_used:
        values, last = sizes.lay_out(lifetimes(steps), symbols.typical)
        return Layout({buffer: Place(value, 0) for buffer, value in values.items()}, Place(last, 0))
    offsets, size = plan_workspace(steps)
    return Layout({buffer: Place("", offset) for buffer, offset in offsets.items()}, Place("", size))


def plan_workspace(steps: Sequence[Step]) -> tuple[dict[Buffer, int], int]:
    """Return the byte offsets of the steps' temporaries in one workspace, and the size of the workspace."""
    used = lifetimes(steps)
    offsets, size = plan(list(used.values()))
    return dict(zip(used, offsets, strict=True)), size


def lifetimes(steps: Sequence[Step]) -> dict[Buffer, Lifetime]:
    """Return the lifetimes of the steps' temporaries."""
    first, last = first_and_last_uses(steps)
    return {b: Lifetime(b.bytes, first[b], last[b]) for b in first if b.kind == "temporary"}


# Lines, and names of values.


class FunctionText:
    """Lines of MLIR text of a function, in sections. All names are unique, even if lines are removed.

    ``arrays`` are available from the start of the function. Each section loads the pointers in them once, before its
    lines. LLVM would load them again after each call, because a call may change an array. :attr:`head` contains the
    loads of the first section.
    """

    def __init__(self, arrays: Collection[str] = ()) -> None:
        self._lines: list[str] = []
        self._arrays = frozenset(arrays)
        # The names of loaded values, by operation: of the first section, and of the current section.
        self._head: dict[str, str] = {}
        self._loaded = self._head
        self._known = set(arrays)
        self._section = 0
        self._constants: dict[str, str] = {}
        self._counter = 0

    def add(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        """Return the lines so far, and start again without lines in the first section."""
        self._end_section(self._head)
        lines, self._lines = self._lines, []
        return lines

    def begin_section(self) -> None:
        """Begin a section, which loads pointers again. It must not begin inside a loop."""
        self._end_section({})
        self._section = len(self._lines)

    def _end_section(self, loaded: dict[str, str]) -> None:
        """Insert the loads of the current section before its lines. The next section starts with ``loaded``."""
        if self._loaded is not self._head:
            self._lines[self._section : self._section] = _definitions(self._loaded)
        self._loaded, self._known = loaded, {*self._arrays, *loaded.values()}

    def fresh(self, prefix: str = "%e") -> str:
        """Return a new name."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def define(self, op: str) -> str:
        """Add ``op`` and return the name of its result."""
        name = self.fresh()
        self.add(f"{name} = {op}")
        return name

    @property
    def head(self) -> list[str]:
        """Return the lines that load the pointers of the first section. All other sections may use them, too."""
        return _definitions(self._head)

    def _define_by(self, array: str, op: str) -> str:
        """Return the name of the result of ``op``, which depends only on ``array``."""
        if array not in self._known:
            return self.define(op)
        if op not in self._loaded:
            self._loaded[op] = self.fresh()
            self._known.add(self._loaded[op])
        return self._loaded[op]

    @property
    def constants(self) -> list[str]:
        """Return the lines that define the constants. They come before all other lines."""
        return _definitions(self._constants)

    def constant(self, number: int, kind: str = "i64") -> str:
        op = f"llvm.mlir.constant({number} : {kind}) : {kind}"
        if op not in self._constants:
            self._constants[op] = self.fresh()
        return self._constants[op]

    def place_in(self, array: str, position: int) -> str:
        """Return the address of the pointer at ``position`` in an array of pointers."""
        return self._define_by(array, f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")

    def pointer_in(self, array: str, position: int) -> str:
        """Return the pointer at ``position`` in an array of pointers."""
        place = self.place_in(array, position)
        return self._define_by(place, f"llvm.load {place} : !llvm.ptr -> !llvm.ptr")

    def offset_pointer(self, pointer: str, distance: int | str, kind: str = "i8") -> str:
        """Return ``pointer``, moved by a number of elements or by the value of this name."""
        if isinstance(distance, int):
            return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr) -> !llvm.ptr, {kind}")
        return self.define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")


def _definitions(names: Mapping[str, str]) -> list[str]:
    """Return lines that define names. ``names`` maps each operation to the name of its result."""
    return [f"{name} = {op}" for op, name in names.items()]
