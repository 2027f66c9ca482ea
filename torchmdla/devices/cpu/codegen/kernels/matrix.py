"""Reductions by a matrix unit: a block of tiles of sums in tile registers, then the epilogue row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu.codegen.kernels.matrix_instructions import Shape, TileInstructionWriter
from torchmdla.devices.cpu.schedule.matrix_tile import MatrixTile, Registers, product_of_tile
from torchmdla.devices.cpu.target.matrix_units import WORD_BYTES


@dataclass(frozen=True)
class _Part:
    """Rows or columns of a tile: the first one in the block, and the number that other tiles have computed."""

    start: int
    known: int


def _cover(extent: int, size: int) -> list[_Part]:
    """Return the parts of ``size`` iterations that cover ``extent``. The last one ends with it."""
    starts = range(0, extent, size)
    return [_Part(min(start, extent - size), max(0, start - (extent - size))) for start in starts]


class MatrixWriter(TileInstructionWriter):
    """Writer of a reduction by the matrix unit, if the schedule uses it."""

    def _load_operands(self) -> None:
        super()._load_operands()
        if self.schedule.matrix is not None:
            self._configure(self.schedule.matrix)

    def _configure(self, tile: MatrixTile) -> None:
        """Configure the tile registers, and allocate memory for a block of sums."""
        nest, schedule, unit = self.nest, self.schedule, self.machine.matrix
        product, depth = product_of_tile(nest, schedule.vector, tile), nest.sizes[tile.depth]
        assert unit is not None and product is not None and isinstance(depth, int), "the schedule is for this nest"
        self._factors = product
        self._columns = min(schedule.lanes, self._static_size(schedule.vector))
        self._rest = depth % tile.words
        down, across = schedule.tiles[tile.rows] // tile.height, schedule.tiles[schedule.vector] // schedule.lanes
        registers = Registers.of(down, across, unit, self._rest > 0)
        assert registers is not None, "a schedule's block fits the registers"
        self._registers = registers
        shapes: dict[int, Shape] = {}
        for words, is_rest in ((tile.words, False), (self._rest, True)):
            for step in registers.steps(down, across, is_rest=is_rest) if words else ():
                shapes[registers.sums(step.row, step.column)] = Shape(tile.height, self._columns)
                shapes[step.left], shapes[step.right] = Shape(tile.height, words), Shape(words, self._columns)
        self._width = across * schedule.lanes
        self._sums = self._allocate(down * tile.height * self._width, "i32")
        self._configure_tiles(shapes)

    def _static_size(self, loop: int) -> int:
        size = self.nest.sizes[loop]
        assert isinstance(size, int), "the loops of a tile have known sizes"
        return size

    def _release(self) -> None:
        """Release the tile registers at the end of the kernel."""
        if self.schedule.matrix is not None:
            self._release_tiles()

    def _reduce(self) -> None:
        tile = self.schedule.matrix
        if tile is None:
            super()._reduce()
            return
        down, across = self._extents[tile.rows], self._extents[self.schedule.vector]
        assert isinstance(down, int) and isinstance(across, int), "the extents of a block of tiles are known"
        rows, columns = _cover(down, tile.height), _cover(across, self._columns)
        sums = {
            self._registers.sums(row, column): row * tile.height * self._width + column * self.schedule.lanes
            for row in range(len(rows))
            for column in range(len(columns))
        }
        for register in sums:
            self._clear_tile(register)
        self._sum_products(tile, 0, rows, columns)
        for register, place in sums.items():
            self._store_tile(register, self._offset(self._sums, place, "i32"), self._width * WORD_BYTES)
        for number, part in enumerate(rows):
            self._finish_rows(tile, part, columns, number * tile.height * self._width)

    def _sum_products(self, tile: MatrixTile, depth: int, rows: Sequence[_Part], columns: Sequence[_Part]) -> None:
        """Write the loops that reduce, with the loop along words inside, and its last products of fewer words."""
        loop = self.schedule.reduction[depth]
        if loop != tile.depth:
            with self._loop(self._constant(0), self._number(self.nest.sizes[loop]), self._constant(1)) as index:
                self._advance(loop, index)
                self._sum_products(tile, depth + 1, rows, columns)
            return
        whole = self._static_size(loop) - self._rest
        with self._loop(self._constant(0), self._constant(whole), self._constant(tile.words)) as index:
            self._advance(loop, index)
            self._multiply(tile, rows, columns)
        if self._rest:
            with self._scope():
                self._advance(loop, whole)
                self._multiply(tile, rows, columns, is_rest=True)

    def _multiply(
        self, tile: MatrixTile, rows: Sequence[_Part], columns: Sequence[_Part], *, is_rest: bool = False
    ) -> None:
        """Write the products of the tiles of both factors at the current words."""
        vector, product = self.schedule.vector, self._factors
        for step in self._registers.steps(len(rows), len(columns), is_rest=is_rest):
            if step.loads_left:
                self._load_factor(step.left, product.left, tile.rows, rows[step.row].start, tile.rows)
            if step.loads_right:
                self._load_factor(step.right, product.right, vector, columns[step.column].start, tile.depth)
            sums = self._registers.sums(step.row, step.column)
            self._multiply_tiles(product.element, sums, step.left, step.right, is_swapped=product.is_swapped)

    def _load_factor(self, register: int, operand: int, loop: int, iteration: int, along: int) -> None:
        """Load a tile of an operand from an iteration of ``loop`` on. The tile's rows are along the loop ``along``."""
        point = tuple(iteration if d == loop else 0 for d in range(len(self.nest.sizes)))
        pointer, _ = self._address(operand, point)
        self._load_tile(register, pointer, self._stride_in_bytes(self.nest.operands[operand], along))

    def _finish_rows(self, tile: MatrixTile, part: _Part, columns: Sequence[_Part], place: int) -> None:
        """Write the epilogue for the rows of a tile, whose sums are at ``place``, that other tiles have not computed.

        Rows are computed one by one, or all at once if a result is transposed in registers.
        """
        extents, height = self._extents[tile.rows], tile.height - part.known
        first = self._offset(self._sums, place + part.known * self._width, "i32")
        if self._transposes(tile):
            with self._scope():
                self._extents[tile.rows] = height
                self._advance(tile.rows, part.start + part.known)
                self._finish_points(tile, first, columns)
        else:
            with self._loop(self._constant(0), self._constant(height), self._constant(1)) as row:
                self._extents[tile.rows] = 1
                index = self._define(f"arith.addi {row}, {self._constant(part.start + part.known)} : i64")
                self._advance(tile.rows, index)
                offset = self._define(f"arith.muli {row}, {self._constant(self._width)} : i64")
                self._finish_points(tile, self._offset(first, offset, "i32"), columns)
        self._extents[tile.rows] = extents

    def _transposes(self, tile: MatrixTile) -> bool:
        """Return whether a result is contiguous along the rows of tiles."""
        outputs = (self.nest.epilogue or self.nest).outputs
        return any(o.strides[tile.rows] == 1 and o.strides[self.schedule.vector] != 1 for o in outputs)

    def _finish_points(self, tile: MatrixTile, first: str, columns: Sequence[_Part]) -> None:
        """Write the epilogue for the points of some rows, whose sums are at ``first``."""
        element, lanes, points = self.nest.outputs[0].element, self.schedule.lanes, self._points()
        values = []
        for point in points:
            column = point[self.schedule.vector] // lanes
            place = point[tile.rows] * self._width + column * lanes + columns[column].known
            pointer = self._offset(first, place, "i32")
            values.append(self._load(pointer, element, lanes, self._active_lanes(point)))
        self._finish_reduction([(0, point) for point in points], values)
