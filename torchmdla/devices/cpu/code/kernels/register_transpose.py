"""Transposition in registers of operands that are contiguous along another loop than the vector loop.

The other loop is a loop of the register tile. A gather reads its lanes one by one. Instead, the block is read row by
row, and transposed by exchanges of halves. This takes log2(n) steps for n by n elements (Eklundh, A fast computer
method for matrix transposing, 1972).
"""

from __future__ import annotations

from collections.abc import Sequence

from torchmdla.devices.cpu.code.kernels.code import Point, Value, vector_type
from torchmdla.devices.cpu.code.kernels.memory import MemoryWriter
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, storage_type

# The least element size in bytes. Smaller elements have so many lanes that reading a row for each does not pay off.
_LEAST_BYTES = 4


class TransposingWriter(MemoryWriter):
    """Writer of loads and stores of transposed blocks."""

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
        rows = [self._load_row(row, element, width, extent) for row in self._rows(number, first)]
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
            self._store_row(self._slice(turned[lane % width], element, start, width), row, element, width, extent)

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

    # Rows of a block. A row of less than ``width`` elements is masked.

    def _load_row(self, pointer: str, element: str, width: int, extent: int) -> str:
        kind, align = vector_type(element, width), ELEMENT_BYTES[element]
        if extent == width:
            return self._define(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")
        mask = self._row_mask(width, extent)
        return self._define(
            f"llvm.intr.masked.load {pointer}, {mask}, {self._zero(element, width)} {{alignment = {align} : i32}} : "
            f"(!llvm.ptr, vector<{width}xi1>, {kind}) -> {kind}"
        )

    def _store_row(self, row: str, pointer: str, element: str, width: int, extent: int) -> None:
        kind, align = vector_type(element, width), ELEMENT_BYTES[element]
        if extent == width:
            self._line(f"llvm.store {row}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")
            return
        self._line(
            f"llvm.intr.masked.store {row}, {pointer}, {self._row_mask(width, extent)} {{alignment = {align} : i32}} : "
            f"{kind}, vector<{width}xi1> into !llvm.ptr"
        )

    def _row_mask(self, width: int, extent: int) -> str:
        flags = ", ".join("true" if k < extent else "false" for k in range(width))
        return self._literal(f"dense<[{flags}]> : vector<{width}xi1>")

    # Shuffles.

    def _concatenate(self, rows: Sequence[str], element: str, width: int) -> str:
        """Return the concatenated rows as one vector."""
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
    """Return the least power of two that is at least ``extent``."""
    return 1 << (extent - 1).bit_length()
