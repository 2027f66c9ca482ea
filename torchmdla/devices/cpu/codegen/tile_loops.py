"""Code of a tile loop: a kernel whose range is a grid of tiles. It calls the kernels of its members for each tile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import AnySize, Size
from torchmdla.devices.cpu.codegen.checks import Marks
from torchmdla.devices.cpu.codegen.sizes import Lifetime, SizeCode, plan
from torchmdla.devices.cpu.ir.accesses import Buffer, Scalar
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.loop_program import LoopNest, TileLoop, first_and_last_uses
from torchmdla.devices.cpu.schedule import Ahead, Blocks, Symbols, count
from torchmdla.devices.cpu.schedule.tile_loops import Extents, TileSchedule, blocks_of

SCRATCH = "mdla_scratch"


@dataclass(frozen=True)
class MemberKernel:
    """Kernel of a member: its symbol, the blocks that it runs, and whether it receives the symbols' values."""

    symbol: str
    blocks: Blocks
    is_dynamic: bool


# Returns the kernel of a nest with these prefetches.
Kernels = Callable[[LoopNest, Ahead], MemberKernel]


@dataclass(frozen=True)
class TileLoopCode:
    """MLIR text of one function, in which ``{symbol}`` stands for its name.

    The function's operands are pointers to the elements ``places`` (buffer, offset), then to ``scalars``. A pointer to
    the status follows if a member may fail. A pointer to the symbols' values follows in a dynamic program.
    """

    text: str
    places: tuple[tuple[Buffer, AnySize], ...]
    scalars: tuple[Scalar, ...]
    may_fail: bool
    externals: dict[str, str]


class TileLoopWriter:
    """Writer of the kernel of a tile loop.

    ``kernel`` returns the kernel of a member, or of a member over a shorter tile. ``marks`` are set if accesses are
    checked.
    """

    def __init__(
        self,
        step: TileLoop,
        schedule: TileSchedule,
        kernel: Kernels,
        attributes: str,
        symbols: Symbols,
        marks: Marks | None,
    ) -> None:
        self._step = step
        self._schedule = schedule
        self._kernel = kernel
        self._attributes = attributes
        self._symbols = symbols
        self._marks = marks
        self._lines: list[str] = []
        self._counter = itertools.count()
        self._externals: dict[str, str] = {}
        self._places: dict[tuple[Buffer, AnySize], int] = {}
        self._scalars: dict[Scalar, int] = {}
        self._blocks = blocks_of(step)

    def write(self) -> TileLoopCode:
        self._number_operands()
        may_fail = any(member.kernel.may_fail for member in self._step.members)
        self._status = len(self._places) + len(self._scalars)
        slots = [self._slot("%operands", k) for k in range(self._status + may_fail + self._symbols.is_used)]
        self._pointers = [self._define(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr") for slot in slots]
        self._sizes = SizeCode.from_pointer(self._define, "".join(self._pointers[-1:]), self._symbols.count)
        self._locals = self._mark_locals()
        most = max(
            len(member.pointer_places) + len(member.all_scalars) + 2 + len(fetched.beside)
            for member, fetched in zip(self._step.members, self._schedule.fetched, strict=True)
        )
        self._array = self._allocate(self._constant(most), "!llvm.ptr", "")
        self._allocate_extents()
        tile = self._fresh()
        self._lines.append(f"scf.for {tile} = %begin to %end step {self._constant(1)} : i64 {{")
        self._call_tile((), self._delinearise(tile))
        self._lines += ["}", "llvm.return"]
        head = "llvm.func internal @{symbol}(%operands: !llvm.ptr, %begin: i64, %end: i64)"
        text = "\n".join([f"{head} {self._attributes} {{", *self._lines, "}"])
        places, scalars = tuple(self._places), tuple(self._scalars)
        return TileLoopCode(text, places, scalars, may_fail, self._externals)

    def _number_operands(self) -> None:
        pointed = [(position, number) for position, m in enumerate(self._step.members) for number in m.pointer_places]
        beside = [place for fetched in self._schedule.fetched for place in fetched.beside]
        for position, number in (*pointed, *beside):
            buffer, offset = self._step.members[position].places[number]
            if buffer.kind != "local":
                self._places.setdefault((buffer, offset), len(self._places))
        for scalar in (s for member in self._step.members for s in member.all_scalars):
            self._scalars.setdefault(scalar, len(self._places) + len(self._scalars))

    # Text.

    def _fresh(self) -> str:
        return f"%c{next(self._counter)}"

    def _define(self, text: str) -> str:
        name = self._fresh()
        self._lines.append(f"{name} = {text}")
        return name

    def _constant(self, number: int | Size) -> str:
        return self._sizes.value(number)

    def _slot(self, array: str, position: int) -> str:
        return self._define(f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")

    def _allocate(self, elements: str, element: str, attributes: str) -> str:
        return self._define(f"llvm.alloca {elements} x {element}{attributes} : (i64) -> !llvm.ptr")

    def _offset(self, pointer: str, distance: int | Size) -> str:
        if isinstance(distance, Size):
            return self._offset_by_value(pointer, self._constant(distance))
        return self._define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr) -> !llvm.ptr, i8")

    def _offset_by_value(self, pointer: str, distance: str) -> str:
        return self._define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")

    # Code before the loop.

    def _mark_locals(self) -> dict[Buffer, str]:
        """Return the addresses of the locals, marked if accesses are checked."""
        places = self._lay_out_locals()
        if self._marks is None:
            return places
        return {
            buffer: self._marks.mark(
                self._define, pointer, self._constant(buffer.bytes), f"local {number} {describe_buffer(buffer)}"
            )
            for number, (buffer, pointer) in enumerate(places.items())
        }

    def _lay_out_locals(self) -> dict[Buffer, str]:
        """Return the addresses of the locals in one block.

        The block is on the stack, or in the runtime's scratch memory if its size depends on symbols.
        """
        first, last = first_and_last_uses(self._step.members)
        used = {b: Lifetime(b.bytes, first[b], last[b]) for b in self._step.locals}
        if not any(isinstance(lifetime.size, Size) for lifetime in used.values()):
            offsets, size = plan(list(used.values()))
            block = self._allocate(self._constant(max(size, 1)), "i8", " {alignment = 64 : i64}")
            return {buffer: self._offset(block, offset) for buffer, offset in zip(used, offsets, strict=True)}
        places, end = self._sizes.lay_out(used, self._symbols.typical)
        self._externals[SCRATCH] = "(i64) -> !llvm.ptr"
        block = self._define(f"llvm.call @{SCRATCH}({end}) : (i64) -> !llvm.ptr")
        moved = {place: self._offset_by_value(block, place) for place in dict.fromkeys(places.values())}
        return {buffer: moved[place] for buffer, place in places.items()}

    def _allocate_extents(self) -> None:
        """Allocate memory for a tile's extents along axes whose last tile has an unknown extent.

        The kernels of members find these extents after the values of the program's symbols.
        """
        self._member_symbols = self._pointers[-1] if self._symbols.is_used else ""
        if self._schedule.cut:
            program = self._sizes.symbols
            self._member_symbols = self._allocate(self._constant(len(program) + len(self._schedule.cut)), "i64", "")
            for k, value in enumerate(program):
                self._store_symbol(k, value)

    def _store_symbol(self, number: int, value: str) -> None:
        place = self._define(f"llvm.getelementptr {self._member_symbols}[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        self._lines.append(f"llvm.store {value}, {place} : i64, !llvm.ptr")

    def _delinearise(self, tile: str) -> list[str]:
        indices = []
        for block in reversed(self._blocks[1:]):
            size = self._sizes.count([block])
            indices.append(self._define(f"arith.remui {tile}, {size} : i64"))
            tile = self._define(f"arith.divui {tile}, {size} : i64")
        return [tile, *reversed(indices)]

    # Calls.

    def _call_tile(self, extents: Extents, indices: Sequence[str]) -> None:
        """Call all members for the tile at ``indices``, of ``extents`` along the first axes."""
        axis = len(extents)
        if axis == len(indices):
            self._call_partial_tile(extents, indices)
            return
        whole, *rest = self._schedule.choices[axis]
        if not rest:
            self._call_tile((*extents, whole), indices)
            return
        full = count([self._blocks[axis]]) - 1
        inside = self._define(f"arith.cmpi slt, {indices[axis]}, {self._constant(full)} : i64")
        self._lines.append(f"scf.if {inside} {{")
        self._call_tile((*extents, whole), indices)
        self._lines.append("} else {")
        self._call_tile((*extents, *rest), indices)
        self._lines.append("}")

    def _call_partial_tile(self, extents: Extents, indices: Sequence[str]) -> None:
        """Call all members for the tile at ``indices``: kernels for a full tile, or kernels for any extents."""
        if not self._schedule.cut:
            self._call_members(extents, indices)
            return
        known, inside, within = self._sizes.symbols, "", []
        for axis in self._schedule.cut:
            extent, tile = self._blocks[axis]
            begin = self._sizes.op("muli", indices[axis], self._constant(tile))
            left = self._sizes.op("subi", self._constant(extent), begin)
            within.append(self._sizes.op("minsi", left, self._constant(tile)))
            full = self._define(f"arith.cmpi sge, {left}, {self._constant(tile)} : i64")
            inside = self._define(f"arith.andi {inside}, {full} : i1") if inside else full
        self._lines.append(f"scf.if {inside} {{")
        self._call_members(self._schedule.full(self._step, extents), indices)
        self._lines.append("} else {")
        for number, value in enumerate(within, self._symbols.count):
            self._store_symbol(number, value)
        self._sizes.symbols = [*known, *within]
        self._call_members(extents, indices)
        self._sizes.symbols = known
        self._lines.append("}")

    def _call_members(self, extents: Extents, indices: Sequence[str]) -> None:
        for position in range(len(self._step.members)):
            self._call(position, extents, indices)

    def _call(self, position: int, extents: Sequence[int | Size], indices: Sequence[str]) -> None:
        """Call the kernel of a member for the tile of ``extents`` at ``indices``."""
        member, fetched = self._step.part(position, extents), self._schedule.fetched[position]
        kernel = self._kernel(member, fetched.ahead)
        operands = [self._operand(position, number, indices) for number in member.pointer_places]
        operands += [self._pointers[self._scalars[s]] for s in member.all_scalars]
        if member.kernel.may_fail:
            operands.append(self._pointers[self._status])
        if kernel.is_dynamic:
            operands.append(self._member_symbols)
        operands += [self._operand(*place, indices) for place in fetched.beside]
        for k, pointer in enumerate(operands):
            self._lines.append(f"llvm.store {pointer}, {self._slot(self._array, k)} : !llvm.ptr, !llvm.ptr")
        begin, end = self._constant(0), self._sizes.count(kernel.blocks)
        self._lines.append(f"llvm.call @{kernel.symbol}({self._array}, {begin}, {end}) : (!llvm.ptr, i64, i64) -> ()")

    def _operand(self, position: int, number: int, indices: Sequence[str]) -> str:
        buffer, offset = self._step.members[position].places[number]
        return self._offset_to_tile(self._base(buffer, offset), position, number, indices)

    def _base(self, buffer: Buffer, offset: AnySize) -> str:
        if buffer.kind != "local":
            return self._pointers[self._places[buffer, offset]]
        return self._offset(self._locals[buffer], offset * ELEMENT_BYTES[storage_type(buffer.element)])

    def _offset_to_tile(self, base: str, position: int, number: int, indices: Sequence[str]) -> str:
        """Return ``base``, the address of operand ``number`` of a member, moved to the tile at ``indices``."""
        for index, stride in zip(indices, self._step.strides(position, number), strict=True):
            if stride:
                base = self._offset_by_value(base, self._define(f"arith.muli {index}, {self._constant(stride)} : i64"))
        return base


def describe_buffer(buffer: Buffer) -> str:
    """Return a buffer's element type and sizes, for messages."""
    sizes = "x".join("?" if isinstance(size, Size) else str(size) for size in buffer.sizes)
    return f"({buffer.element}, {sizes or 'one'})"
