"""What the steps of a function refer to: addresses of buffers, values of scalars and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.accesses import Buffer, Scalar
from torchmdla.devices.cpu.code.checks import Marks
from torchmdla.devices.cpu.code.entry.abi import ARGUMENTS, DESTINATION, PACK_ARGUMENTS, PACKED, SIZES, WORD, Abi
from torchmdla.devices.cpu.code.entry.text import FunctionText
from torchmdla.devices.cpu.code.entry.workspace import Place, lay_out
from torchmdla.devices.cpu.code.sizes import SizeCode
from torchmdla.devices.cpu.code.tile_loops import described
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, stored
from torchmdla.devices.cpu.loop_program import Packing, Step
from torchmdla.devices.cpu.schedule import Symbols
from torchmdla.devices.cpu.workspace import ALIGNMENT

# Scalars that a kernel takes are passed in slots behind the temporaries.
_SLOT_BYTES = 8

_STATUS = "status"


class Frame:
    """Of the entry, or of a pack (``packing``): the function's text, and what its values are called.

    ``symbols`` points to the values of the symbols, if there are some; ``sizes`` computes with them. ``values`` are
    those of scalars, ``views`` the addresses of the views of a loop, for its current iteration. ``arguments`` are the
    positions of those that are used so far. With ``marks`` the function is given ``%given``, and :meth:`prologue` makes
    ``%buffers`` and ``%workspace`` of it."""

    def __init__(self, steps: Sequence[Step], abi: Abi, marks: Marks | None, packing: Packing | None) -> None:
        self.text = FunctionText(("%buffers", "%operands"))
        self.packing = packing
        self.marks = marks
        self.values: dict[Scalar, str] = {}
        self.views: dict[Buffer, str] = {}
        self.arguments: set[int] = set()
        self._steps = steps
        self._abi = abi
        self._slots: dict[object, int] = {}
        used = Symbols() if packing else abi.symbols
        self.symbols = self._marked_sizes(self.text.pointer_in("%buffers", SIZES)) if used.is_used else ""
        self.sizes = SizeCode.loading(self.text.define, self.symbols, used.count)
        self._layout = lay_out(steps, used, self.sizes)
        self._prologue = self.text.take()

    # The workspace.

    @property
    def workspace_bytes(self) -> int:
        """The size of a workspace that is planned ahead."""
        return self._layout.end.offset + self._slot_bytes

    def workspace_value(self, sizes: str) -> str:
        """The size of a workspace that is not, in a function where ``sizes`` points to the values of the symbols."""
        symbols = self._abi.symbols
        code = SizeCode.loading(self.text.define, self._marked_sizes(sizes), symbols.count)
        end = lay_out(self._steps, symbols, code).end.base
        return code.op("addi", end, code.value(self._slot_bytes))

    @property
    def _slot_bytes(self) -> int:
        return -(-_SLOT_BYTES * len(self._slots) // ALIGNMENT) * ALIGNMENT

    def _in_workspace(self, place: Place, distance: int | Size = 0) -> str:
        """Return the address of the byte at a distance behind a place of the workspace."""
        pointer = "%workspace" if self.marks else self.text.pointer_in("%buffers", 0)
        return self._at(self.text.moved(pointer, place.base) if place.base else pointer, distance + place.offset)

    # Buffers.

    def pointer(self, buffer: Buffer, offset: int | Size = 0) -> str:
        """The address of a buffer's element ``offset``."""
        distance = offset * ELEMENT_BYTES[stored(buffer.element)]
        if buffer.kind == "temporary" and not self.marks:
            return self._in_workspace(self._layout.places[buffer], distance)
        return self._at(self.views[buffer] if buffer.kind == "view" else self._base(buffer), distance)

    def number(self, number: int | Size) -> str:
        """The value of ``number``."""
        return self.sizes.value(number) if isinstance(number, Size) else self.text.constant(number)

    def _at(self, pointer: str, offset: int | Size) -> str:
        if not offset:
            return pointer
        return self.text.moved(pointer, self.sizes.value(offset) if isinstance(offset, Size) else offset)

    def _base(self, buffer: Buffer) -> str:
        """The address of a buffer."""
        if buffer.kind == "temporary":
            pointer = self._in_workspace(self._layout.places[buffer])
        elif buffer.kind == "global":
            pointer = self.text.define(f"llvm.mlir.addressof @{buffer.symbol} : !llvm.ptr")
        elif self.packing is None:
            pointer = self._given_to_entry(buffer)
        else:
            pointer = self.text.pointer_in("%buffers", _place_in_pack(buffer, self.packing))
        return self._marked(pointer, buffer.bytes, self._label(buffer)) if self.marks else pointer

    def _given_to_entry(self, buffer: Buffer) -> str:
        if buffer.kind != "packed":
            self.arguments.add(buffer.position)
            return self.text.pointer_in("%buffers", buffer.position + ARGUMENTS)
        pointer = self.text.pointer_in("%buffers", PACKED)
        packed = self._marked(pointer, WORD * self._abi.packed, "the packed buffers")
        return self.text.pointer_in(packed, buffer.position)

    # Scalars.

    def value(self, scalar: Scalar) -> str:
        """The value of a scalar; arguments are loaded where they are first needed."""
        if scalar not in self.values:
            pointer = self.text.pointer_in("%buffers", scalar.argument + ARGUMENTS)
            pointer = self._marked(pointer, WORD, f"scalar {scalar.argument}")
            load = f"llvm.load {pointer} {{alignment = 8 : i64}} : !llvm.ptr -> {scalar.type}"
            self.values[scalar] = self.text.define(load)
        return self.values[scalar]

    def spilled(self, scalar: Scalar) -> str:
        """The address of a slot that holds a scalar."""
        known = scalar in self._slots
        pointer = self._slot(scalar)
        if not known:
            value = self.to_memory(self.value(scalar), scalar.type)
            self.text.add(f"llvm.store {value}, {pointer} : {stored(scalar.type)}, !llvm.ptr")
        return pointer

    def to_memory(self, value: str, kind: str) -> str:
        """The value of type ``kind`` as memory holds it."""
        if stored(kind) == kind:
            return value
        convert = "llvm.zext" if kind == "i1" else "llvm.bitcast"
        return self.text.define(f"{convert} {value} : {kind} to {stored(kind)}")

    def status(self) -> str:
        """The address of the slot that kernels write to if they fail."""
        return self._slot(_STATUS)

    @property
    def has_status(self) -> bool:
        """Whether a kernel was given it."""
        return _STATUS in self._slots

    def _slot(self, key: object) -> str:
        """The address of a slot in the workspace for one scalar."""
        end, number = self._layout.end, self._slots.setdefault(key, len(self._slots))
        pointer = self._in_workspace(Place(end.base, end.offset + _SLOT_BYTES * number))
        return self._marked(pointer, _SLOT_BYTES, f"slot {number}")

    # Checks.

    def prologue(self) -> list[str]:
        """The first lines, to be asked for when all others are written: what the caller gives in any case, and its
        marks where there are marks."""
        if self.marks is None:
            return [*self.text.head, *self._prologue]
        text, count = self.text, ARGUMENTS + self._abi.arguments
        if self.packing:
            count = PACK_ARGUMENTS + len(self.packing.arguments)
        text.add(f"%buffers = {_renamed(self._marked('%given', WORD * count, 'the buffers'))}")
        first, end = text.take(), self._layout.end
        size = text.constant(self.workspace_bytes)
        if end.base:
            size = self.sizes.op("addi", end.base, size)
        workspace = self.marks.marked(text.define, text.pointer_in("%buffers", 0), size, "the workspace")
        text.add(f"%workspace = {_renamed(workspace)}")
        return [*first, *text.head, *self._prologue, *text.take()]

    def _marked(self, pointer: str, size: int | Size, name: str) -> str:
        """A pointer to ``size`` bytes, marked as such where accesses are checked."""
        return self.marks.marked(self.text.define, pointer, self.number(size), name) if self.marks else pointer

    def _marked_sizes(self, pointer: str) -> str:
        return self._marked(pointer, WORD * self._abi.symbols.count, "the sizes")

    def _label(self, buffer: Buffer) -> str:
        """What messages call a buffer."""
        number: object = buffer.symbol or buffer.position
        if buffer.kind == "temporary":
            number = list(self._layout.places).index(buffer)
        elif self.packing and buffer is not self.packing.buffer:
            number = self.packing.arguments.index(buffer.position)
        return f"{buffer.kind} {number} {described(buffer)}"


def _place_in_pack(buffer: Buffer, packing: Packing) -> int:
    """Where in its array a pack finds a buffer: its own is its destination."""
    if buffer is packing.buffer:
        return DESTINATION
    return PACK_ARGUMENTS + packing.arguments.index(buffer.position)


def _renamed(pointer: str) -> str:
    """An op whose result is ``pointer``."""
    return f"llvm.getelementptr {pointer}[0] : (!llvm.ptr) -> !llvm.ptr, i8"
