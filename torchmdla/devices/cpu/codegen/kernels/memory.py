"""Memory accesses of a kernel: operands at points of the register tile, masks at the end of the vector loop.

Blocks of some operands are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.codegen.kernels.code import Count, Point, Value, vector_type
from torchmdla.devices.cpu.codegen.kernels.instructions import InstructionWriter
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.expressions import numbered_value
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, AnyOperand, Operand
from torchmdla.devices.cpu.schedule import Fetch, Schedule, scratch_elements, scratch_extents
from torchmdla.devices.cpu.target.machine import Machine

# The least element size in bytes. Smaller elements have so many lanes that reading a row for each does not pay off.
_LEAST_BYTES = 4


class MemoryWriter(InstructionWriter):
    """Writer of loads and stores of one nest's operands, for the current pointers and extents."""

    def __init__(self, nest: AnyNest, schedule: Schedule, machine: Machine) -> None:
        super().__init__(nest, machine)
        self.schedule = schedule
        # The iterations of each loop in the open blocks; for reduction loops also those in the register tile.
        self._extents: list[Count] = []
        self._tile = list(schedule.tiles)
        # The number of iterations left in the vector loop, in code for the remainder of a dynamic extent.
        self._lanes_left = ""
        # The buffers of partial results, if the reduction has blocks.
        self._scratch = _scratch(nest, schedule)
        # The distance in bytes from an operand to the buffer that is prefetched beside it.
        self._prefetch_distances: dict[Fetch, str] = {}

    def _load_operands(self) -> None:
        nest = self.nest
        for position, number in enumerate(nest.pointer_operands):
            self._pointers[number] = self._operand_pointer(position)
        start = len(nest.pointer_operands) + len(nest.tables)
        self._tables = [self._operand_pointer(position) for position in range(len(nest.pointer_operands), start)]
        for number, element in enumerate(nest.all_scalars):
            pointer = self._operand_pointer(start + number)
            self._values[numbered_value("scalar", element, number), ()] = self._load(pointer, element)
        start += len(nest.all_scalars)
        if nest.may_fail:
            self._status = self._operand_pointer(start)
        if nest.is_dynamic:
            self._symbols = self._operand_pointer(start + nest.may_fail)
        start += nest.may_fail + nest.is_dynamic
        for fetch in self.schedule.ahead:
            if fetch.beside is not None:
                self._prefetch_distances[fetch] = self._bytes_between(
                    fetch.operand, self._operand_pointer(start + fetch.beside)
                )
        for position, operand in self._scratch.items():
            count = self._constant(scratch_elements(nest, self.schedule))
            self._pointers[position] = self._define(
                f"llvm.alloca {count} x {storage_type(operand.element)} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr"
            )
        self._loaded = len(self._lines)

    def _operand_pointer(self, position: int) -> str:
        slot = self._define(f"llvm.getelementptr %operands[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return self._define(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def _bytes_between(self, operand: int, pointer: str) -> str:
        pointers = (pointer, self._operand_at(operand, 0))
        ends = [self._define(f"llvm.ptrtoint {p} : !llvm.ptr to i64") for p in pointers]
        return self._define(f"arith.subi {ends[0]}, {ends[1]} : i64")

    def _advance(self, loop: int, index: Count, scratch: bool = False) -> None:
        """Move the induction variable of ``loop`` and every pointer by ``index`` iterations."""
        outer = self._induction.get(loop)
        if outer is None:
            self._induction[loop] = self._number(index)
        elif index != 0:
            self._induction[loop] = self._define(f"arith.addi {outer}, {self._number(index)} : i64")
        for number in (*self.nest.pointer_operands, *(self._scratch if scratch else ())):
            operand = self._operand(number)
            distance = self._distance(index, operand.strides[loop])
            self._pointers[number] = self._offset(self._pointers[number], distance, operand.element)

    def _distance(self, steps: Count, stride: int | Size) -> Count | Size:
        """Return the number of elements by which ``steps`` iterations move an operand of ``stride``."""
        if isinstance(steps, int):
            return stride * steps
        if stride == 0:
            return 0
        if stride == 1:
            return steps
        return self._define(f"arith.muli {steps}, {self._number(stride)} : i64")

    def _offset(self, pointer: str, elements: Count | Size, element: str) -> str:
        if elements == 0:
            return pointer
        elements = self._count(elements) if isinstance(elements, Size) else elements
        kind = "(!llvm.ptr) -> !llvm.ptr" if isinstance(elements, int) else "(!llvm.ptr, i64) -> !llvm.ptr"
        return self._define(f"llvm.getelementptr {pointer}[{elements}] : {kind}, {storage_type(element)}")

    def _prefetch(self, pointer: str, cache: int, is_written: bool = False) -> None:
        """Prefetch a cache line. ``cache`` is LLVM's hint for the cache level."""
        self._line(
            f'"llvm.intr.prefetch"({pointer}) <{{rw = {int(is_written)} : i32, hint = {cache} : i32, cache = 1 : i32}}>'
            " : (!llvm.ptr) -> ()"
        )

    # Points of the register tile.

    def _tile_extent(self, loop: int) -> Count:
        return self._tile[loop] if self.nest.reduction[loop] else self._extents[loop]

    def _active_lanes(self, point: Point) -> Count:
        """Return the number of lanes inside the vector loop at a point."""
        loop, lanes = self.schedule.vector, self.schedule.lanes
        if loop < 0:
            return 1
        if self._lanes_left:
            return self._lanes_left_at(point[loop])
        extent = self._tile_extent(loop)
        # Outside the register tile, values do not vary with the vector loop.
        return lanes if isinstance(extent, str) else min(lanes, extent - point[loop])

    def _lanes_left_at(self, offset: int) -> str:
        """Return the number of lanes left from ``offset`` iterations on.

        It may be more than a vector has. If it is negative, all lanes are outside the loop.
        """
        if not offset:
            return self._lanes_left
        key = f"{self._lanes_left} - {offset}"
        if key not in self._constants:
            self._constants[key] = self._subtract(self._lanes_left, offset)
        return self._constants[key]

    def _mask(self, active: Count, lanes: int) -> str:
        if isinstance(active, int):
            flags = ", ".join("true" if k < active else "false" for k in range(lanes))
            return self._literal(f"dense<[{flags}]> : vector<{lanes}xi1>")
        key = f"mask {active}"
        if key not in self._constants:
            narrow = self._define(f"arith.trunci {active} : i64 to i32")
            limit = self._broadcast(Value(narrow, "i32"), lanes)
            numbers = self._literal(f"dense<{list(range(lanes))}> : {limit.type}")
            self._constants[key] = self._define(f"arith.cmpi slt, {numbers}, {limit.name} : {limit.type}")
        return self._constants[key]

    def _operand(self, number: int) -> AnyOperand:
        """Return operand ``number`` of the kernel. The numbers of scratch buffers follow those of operands."""
        return self._scratch[number] if number in self._scratch else self.nest.operands[number]

    def _address(self, number: int, point: Point) -> tuple[str, int | Size]:
        """Return the pointer of operand ``number`` at a point, and its stride from lane to lane."""
        operand = self._operand(number)
        offset: int | Size = 0
        for stride, step in zip(operand.strides, point, strict=True):
            offset = offset + stride * step
        lane = operand.strides[self.schedule.vector] if self.schedule.vector >= 0 else 0
        return self._operand_at(number, offset), lane

    def _operand_at(self, number: int, offset: int | Size) -> str:
        """Return the pointer to the operand's element that is ``offset`` elements after that of the loops' indices."""
        operand = self._operand(number)
        pointer = self._pointers[number if operand.base is None else operand.base]
        return self._offset(pointer, offset + operand.offset, operand.element)

    def _load_at(self, number: int, point: Point) -> Value:
        pointer, stride = self._address(number, point)
        element = self._operand(number).element
        if stride == 0 or self.schedule.lanes == 1:
            return self._load(pointer, element)
        active = self._active_lanes(point)
        if stride == 1:
            return self._load(pointer, element, self.schedule.lanes, active)
        if stride == -1 and active == self.schedule.lanes:
            return self._load_reversed(pointer, element)
        if stride == 2 and isinstance(active, int):
            return self._load_every_second(pointer, element, active)
        indices = self._lane_offsets(stride)
        return self._gather(pointer, indices, element, active)

    def _load(self, pointer: str, element: str, lanes: int = 1, active: Count | None = None) -> Value:
        return self._from_memory(self._load_memory(pointer, element, lanes, active), element, lanes)

    def _load_memory(self, pointer: str, element: str, lanes: int, active: Count | None = None) -> str:
        memory = vector_type(storage_type(element), lanes)
        align = ELEMENT_BYTES[storage_type(element)]
        if active is None or active == lanes:
            return self._define(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {memory}")
        mask, rest = self._mask(active, lanes), self._zero(storage_type(element), lanes)
        return self._define(
            f"llvm.intr.masked.load {pointer}, {mask}, {rest} {{alignment = {align} : i32}} : "
            f"(!llvm.ptr, vector<{lanes}xi1>, {memory}) -> {memory}"
        )

    def _from_memory(self, name: str, element: str, lanes: int) -> Value:
        memory = vector_type(storage_type(element), lanes)
        if element == "i1":
            name = self._define(f"arith.cmpi ne, {name}, {self._zero('i8', lanes)} : {memory}")
        elif storage_type(element) != element:
            name = self._define(f"arith.bitcast {name} : {memory} to {vector_type(element, lanes)}")
        return Value(name, element, lanes)

    def _to_memory(self, value: Value) -> str:
        if storage_type(value.element) == value.element:
            return value.name
        convert = "arith.extui" if value.element == "i1" else "arith.bitcast"
        memory = vector_type(storage_type(value.element), value.lanes)
        return self._define(f"{convert} {value.name} : {value.type} to {memory}")

    def _load_reversed(self, pointer: str, element: str) -> Value:
        """Load the element at ``pointer``, then the elements before it."""
        lanes = self.schedule.lanes
        rising = self._load_memory(self._offset(pointer, 1 - lanes, element), element, lanes)
        return self._from_memory(self._reverse(rising, vector_type(storage_type(element), lanes)), element, lanes)

    def _reverse(self, name: str, memory: str) -> str:
        picks = list(reversed(range(self.schedule.lanes)))
        return self._define(f"vector.shuffle {name}, {name} {picks} : {memory}, {memory}")

    def _load_every_second(self, pointer: str, element: str, active: int) -> Value:
        """Load elements 0, 2, 4, … by two loads that do not access memory after the last ``active`` element."""
        lanes, used = self.schedule.lanes, 2 * active - 1
        starts = (0, lanes - 1) if used > lanes else (0, 0)
        halves = [
            self._load_memory(self._offset(pointer, start, element), element, lanes, min(lanes, used - start))
            for start in starts
        ]
        picks = [2 * k if 2 * k < lanes else lanes + 2 * k - (lanes - 1) for k in range(lanes)]
        kind = vector_type(storage_type(element), lanes)
        name = self._define(f"vector.shuffle {halves[0]}, {halves[1]} {picks} : {kind}, {kind}")
        return self._from_memory(name, element, lanes)

    def _lane_offsets(self, stride: int | Size) -> str:
        if isinstance(stride, Size):
            wide = self._broadcast(Value(self._number(stride), "i64"), self.schedule.lanes)
            return self._define(f"arith.muli {wide.name}, {self._lane_offsets(1)} : {wide.type}")
        numbers = ", ".join(str(stride * k) for k in range(self.schedule.lanes))
        return self._literal(f"dense<[{numbers}]> : vector<{self.schedule.lanes}xi64>")

    def _lane_pointers(self, pointer: str, indices: str, element: str) -> str:
        lanes = self.schedule.lanes
        kind = f"(!llvm.ptr, vector<{lanes}xi64>) -> vector<{lanes}x!llvm.ptr>"
        return self._define(f"llvm.getelementptr {pointer}[{indices}] : {kind}, {storage_type(element)}")

    def _gather(self, pointer: str, indices: str, element: str, active: Count) -> Value:
        lanes = self.schedule.lanes
        memory = vector_type(storage_type(element), lanes)
        pointers = self._lane_pointers(pointer, indices, element)
        mask, rest = self._mask(active, lanes), self._zero(storage_type(element), lanes)
        align = ELEMENT_BYTES[storage_type(element)]
        name = self._define(
            f"llvm.intr.masked.gather {pointers}, {mask}, {rest} {{alignment = {align} : i32}}"
            f" : (vector<{lanes}x!llvm.ptr>, vector<{lanes}xi1>, {memory}) -> {memory}"
        )
        return self._from_memory(name, element, lanes)

    def _store(self, number: int, point: Point, value: Value) -> None:
        pointer, stride = self._address(number, point)
        element = self._operand(number).element
        across_reduction = self.schedule.vector in self.schedule.reduction
        if self.schedule.lanes == 1 or across_reduction:
            self._store_memory(self._to_memory(value), pointer, element, 1)
            return
        value = self._broadcast(value, self.schedule.lanes)
        data, memory = self._to_memory(value), vector_type(storage_type(element), value.lanes)
        active, lanes = self._active_lanes(point), value.lanes
        if stride == 1:
            self._store_memory(data, pointer, element, lanes, active)
        elif stride == -1 and active == lanes:
            start = self._offset(pointer, 1 - lanes, element)
            self._store_memory(self._reverse(data, memory), start, element, lanes)
        else:
            pointers = self._lane_pointers(pointer, self._lane_offsets(stride), element)
            align = ELEMENT_BYTES[storage_type(element)]
            self._line(
                f"llvm.intr.masked.scatter {data}, {pointers}, {self._mask(active, lanes)} "
                f"{{alignment = {align} : i32}} : {memory}, vector<{lanes}xi1> into vector<{lanes}x!llvm.ptr>"
            )

    def _store_memory(self, data: str, pointer: str, element: str, lanes: int, active: Count | None = None) -> None:
        memory = vector_type(storage_type(element), lanes)
        align = ELEMENT_BYTES[storage_type(element)]
        if active is None or active == lanes:
            self._line(f"llvm.store {data}, {pointer} {{alignment = {align} : i64}} : {memory}, !llvm.ptr")
            return
        self._line(
            f"llvm.intr.masked.store {data}, {pointer}, {self._mask(active, lanes)} {{alignment = {align} : i32}} "
            f": {memory}, vector<{lanes}xi1> into !llvm.ptr"
        )


class TransposingWriter(MemoryWriter):
    """Writer of loads and stores of operands that are contiguous along another loop than the vector loop.

    The other loop is a loop of the register tile. A gather reads its lanes one by one. Instead, the block is read row
    by row, and transposed by exchanges of halves. This takes log2(n) steps for n by n elements (Eklundh, A fast
    computer method for matrix transposing, 1972).
    """

    def _find_transposed_loop(self, number: int) -> int:
        """Return the loop of the register tile along which operand ``number`` is contiguous, or -1.

        The result is also -1 if that loop is the vector loop, or if the tile's block cannot be transposed.
        """
        operand, vector = self._operand(number), self.schedule.vector
        element, lanes = operand.element, self.schedule.lanes
        if lanes == 1 or self._lanes_left or storage_type(element) != element or ELEMENT_BYTES[element] < _LEAST_BYTES:
            return -1
        if operand.strides[vector] in (0, 1) or self.nest.reduction[vector]:
            return -1
        for loop, stride in enumerate(operand.strides):
            extent = self._extents[loop]
            if stride == 1 and not self.nest.reduction[loop] and isinstance(extent, int) and 1 < extent <= lanes:
                return loop
        return -1

    def _load_transposed(self, number: int, first: Point, loop: int) -> list[Value]:
        """Load the vectors at ``first`` and at all points that follow it along ``loop``."""
        extent, lanes = self._block_of(loop)
        width = _next_power_of_two(extent)
        element = self._operand(number).element
        rows = [self._load_memory(row, element, width, extent) for row in self._rows(number, first)]
        rows += [self._zero(element, width)] * (lanes - len(rows))
        columns = [self._concatenate(rows[k::width], element, width) for k in range(width)]
        return [Value(name, element, lanes) for name in self._transpose_blocks(columns, element)[:extent]]

    def _store_transposed(self, number: int, first: Point, loop: int, values: Sequence[Value]) -> None:
        """Store ``values``: the vectors at ``first`` and at all points that follow it along ``loop``."""
        extent, lanes = self._block_of(loop)
        width = _next_power_of_two(extent)
        element = self._operand(number).element
        columns = [self._broadcast(value, lanes).name for value in values]
        columns += columns[-1:] * (width - extent)
        turned = self._transpose_blocks(columns, element)
        for lane, row in enumerate(self._rows(number, first)):
            start = lane - lane % width
            self._store_memory(self._slice(turned[lane % width], element, start, width), row, element, width, extent)

    def _block_of(self, loop: int) -> tuple[int, int]:
        extent = self._extents[loop]
        assert isinstance(extent, int), "blocks of a dynamic extent are not turned"
        return extent, self.schedule.lanes

    def _rows(self, number: int, first: Point) -> list[str]:
        """Return the addresses that the active lanes access at a point."""
        pointer, stride = self._address(number, first)
        active = self._active_lanes(first)
        assert isinstance(active, int), "vectors of a dynamic extent are not turned"
        return [self._offset(pointer, stride * lane, self._operand(number).element) for lane in range(active)]

    # Shuffles.

    def _concatenate(self, rows: Sequence[str], element: str, width: int) -> str:
        while len(rows) > 1:
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [self._shuffle(a, b, element, width, range(2 * width)) for a, b in pairs]
            width *= 2
        return rows[0]

    def _slice(self, name: str, element: str, start: int, width: int) -> str:
        lanes = self.schedule.lanes
        return name if width == lanes else self._shuffle(name, name, element, lanes, range(start, start + width))

    def _transpose_blocks(self, vectors: Sequence[str], element: str) -> list[str]:
        """Return as many vectors, in which each square block of lanes is transposed."""
        lanes, results = self.schedule.lanes, list(vectors)
        step = len(results) // 2
        while step:
            for k in (k for k in range(len(results)) if not k & step):
                a, b = results[k], results[k + step]
                low = [j if not j & step else lanes + j - step for j in range(lanes)]
                high = [j + step if not j & step else lanes + j for j in range(lanes)]
                results[k] = self._shuffle(a, b, element, lanes, low)
                results[k + step] = self._shuffle(a, b, element, lanes, high)
            step //= 2
        return results

    def _shuffle(self, a: str, b: str, element: str, width: int, picks: Sequence[int]) -> str:
        kind = vector_type(element, width)
        return self._define(f"vector.shuffle {a}, {b} {list(picks)} : {kind}, {kind}")


def _next_power_of_two(extent: int) -> int:
    return 1 << (extent - 1).bit_length()


def _scratch(nest: AnyNest, schedule: Schedule) -> dict[int, Operand]:
    """Return the buffers of partial results that blocks of a reduction need, by operand number.

    The buffers are dense over one block of the parallel loops. The vector loop is innermost.
    """
    extents = scratch_extents(nest, schedule)
    if not extents:
        return {}
    strides, step = [0] * len(nest.sizes), 1
    for loop in sorted(extents, key=lambda d: d != schedule.vector):
        strides[loop] = step
        step *= extents[loop]
    first = len(nest.operands)
    return {first + k: Operand(output.element, tuple(strides)) for k, output in enumerate(nest.outputs)}
