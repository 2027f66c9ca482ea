"""Reductions by a matrix unit: a block of tiles of sums in tile registers, then the epilogue row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.devices.cpu.codegen.kernels.code import Count, Point
from torchmdla.devices.cpu.codegen.kernels.matrix_instructions import Shape, TileInstructionWriter
from torchmdla.devices.cpu.schedule.matrix_tile import MatrixTile, Registers, product_of_tile
from torchmdla.devices.cpu.target.matrix_units import WORD_BYTES


@dataclass(frozen=True)
class _Part:
    """Rows or columns of a tile.

    Attributes:
        start: the first one in the block.
        known: the number that other tiles have computed.
        above: the iteration of the loop along which tiles are stacked, if that is another loop.
    """

    start: int
    known: Count
    above: int = 0


@dataclass(frozen=True)
class _Sums:
    """Tile of sums: its register, and its row and column in the block of tiles."""

    register: int
    row: int
    column: int


def _cover(extent: int, size: int) -> list[_Part]:
    """Return the parts of ``size`` iterations that cover ``extent``. The last one ends with it."""
    starts = range(0, extent, size)
    return [_Part(min(start, extent - size), max(0, start - (extent - size))) for start in starts]


class MatrixWriter(TileInstructionWriter):
    """Writer of a reduction by the matrix unit, if the schedule uses it."""

    # The number of rows left from a tile's on, in code for the remainder of a dynamic extent.
    _rows_left = ""

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
        rest = depth % tile.words
        down, across = tile.down(schedule.tiles), schedule.tiles[schedule.vector] // schedule.lanes
        registers = Registers.of(down, across, unit, rest > 0)
        assert registers is not None, "a schedule's block fits the registers"
        self._registers = registers
        self._height = self._rows_of_tile(tile)
        shapes: dict[int, Shape] = {}
        for words, is_rest in ((tile.words, False), (rest, True)):
            for step in registers.steps(down, across, is_rest=is_rest) if words else ():
                shapes[registers.sums(step.row, step.column)] = Shape(self._height, self._columns)
                shapes[step.left], shapes[step.right] = Shape(self._height, words), Shape(words, self._columns)
        self._width = across * schedule.lanes
        self._sums = self._allocate(down * tile.height * self._width, "i32")
        self._configure_tiles(shapes)

    def _rows_of_tile(self, tile: MatrixTile) -> Count:
        """Return the number of rows of all tiles: as many as a dynamic loop has if a full tile has more."""
        size = self.nest.sizes[tile.rows]
        if isinstance(size, int):
            return tile.height
        rows = self._minimum(tile.height, self._number(size))
        return self._define(f"arith.maxsi {rows}, {self._constant(1)} : i64")

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
        if not self._rows_left:
            self._reduce_block(tile)
            return
        # The last tile of a dynamic loop begins early.
        known = self._define(f"arith.subi {self._number(self._height)}, {self._rows_left} : i64")
        known = self._define(f"arith.maxsi {known}, {self._constant(0)} : i64")
        with self._scope():
            self._advance(tile.rows, self._define(f"arith.subi {self._constant(0)}, {known} : i64"))
            self._reduce_block(tile, known)

    def _reduce_block(self, tile: MatrixTile, known: Count = 0) -> None:
        """Write a block of tiles. If it has only one row of tiles, other tiles have computed ``known`` of its rows."""
        rows = [_Part(0, known)] if known else _cover(self._known_extent(tile.rows), tile.height)
        columns = _cover(self._known_extent(self.schedule.vector), self._columns)
        if tile.stack != tile.rows:
            rows = [replace(part, above=k) for k in range(self._known_extent(tile.stack)) for part in rows]
        sums = [
            _Sums(self._registers.sums(row, column), row, column)
            for row in range(len(rows))
            for column in range(len(columns))
        ]

        def clear() -> None:
            for each in sums:
                self._clear_tile(each.register)

        def move_partial(move: Callable[[int, str, int], None]) -> None:
            for each in sums:
                move(each.register, *self._partial_sums(tile, rows[each.row], columns[each.column]))

        self._choose(self._is_first, clear, partial(move_partial, self._load_tile))
        self._sum_products(tile, 0, rows, columns)
        finish = partial(self._finish, tile, sums, rows, columns)
        self._choose(self._is_last, finish, partial(move_partial, self._store_tile))

    def _known_extent(self, loop: int) -> int:
        extent = self._extents[loop]
        assert isinstance(extent, int), "a matrix unit computes known numbers of sums of known numbers of products"
        return extent

    def _place(self, tile: MatrixTile, rows: _Part | None = None, columns: _Part | None = None) -> Point:
        """Return the first iterations of rows and columns of a tile."""
        starts = {self.schedule.vector: columns.start} if columns else {}
        if rows:
            starts |= {tile.stack: rows.above} | {tile.rows: rows.start}
        return tuple(starts.get(d, 0) for d in range(len(self.nest.sizes)))

    def _partial_sums(self, tile: MatrixTile, rows: _Part, columns: _Part) -> tuple[str, int]:
        """Return the address of the partial sums of a tile, and the distance of its rows."""
        number = len(self.nest.operands)
        pointer, _ = self._address(number, self._place(tile, rows, columns))
        return pointer, self._stride_in_bytes(self._operand(number), tile.rows)

    def _sum_products(self, tile: MatrixTile, depth: int, rows: Sequence[_Part], columns: Sequence[_Part]) -> None:
        """Write the loops that reduce, with the loop along words inside, and its last products of fewer words."""
        loop = self.schedule.reduction[depth]
        extent = self._known_extent(loop)
        if loop != tile.depth:
            with self._loop(self._constant(0), self._constant(extent), self._constant(1)) as index:
                self._advance(loop, index)
                self._sum_products(tile, depth + 1, rows, columns)
            return
        rest = extent % tile.words
        with self._loop(self._constant(0), self._constant(extent - rest), self._constant(tile.words)) as index:
            self._advance(loop, index)
            self._multiply(tile, rows, columns)
        if rest:
            with self._scope():
                self._advance(loop, extent - rest)
                self._multiply(tile, rows, columns, is_rest=True)

    def _multiply(
        self, tile: MatrixTile, rows: Sequence[_Part], columns: Sequence[_Part], *, is_rest: bool = False
    ) -> None:
        """Write the products of the tiles of both factors at the current words."""
        product = self._factors
        for step in self._registers.steps(len(rows), len(columns), is_rest=is_rest):
            if step.loads_left:
                self._load_factor(step.left, product.left, self._place(tile, rows[step.row]), tile.rows)
            if step.loads_right:
                place = self._place(tile, columns=columns[step.column])
                self._load_factor(step.right, product.right, place, tile.depth)
            sums = self._registers.sums(step.row, step.column)
            self._multiply_tiles(product.element, sums, step.left, step.right, is_swapped=product.is_swapped)

    def _load_factor(self, register: int, operand: int, place: Point, along: int) -> None:
        """Load a tile of an operand at ``place``. Its rows are along the loop ``along``."""
        pointer, _ = self._address(operand, place)
        self._load_tile(register, pointer, self._stride_in_bytes(self.nest.operands[operand], along))

    def _finish(self, tile: MatrixTile, sums: Sequence[_Sums], rows: Sequence[_Part], columns: Sequence[_Part]) -> None:
        """Write the epilogue for a block of sums."""
        for each in sums:
            place = each.row * tile.height * self._width + each.column * self.schedule.lanes
            self._store_tile(each.register, self._offset(self._sums, place, "i32"), self._width * WORD_BYTES)
        for number, part in enumerate(rows):
            self._finish_rows(tile, part, columns, number * tile.height * self._width)

    def _finish_rows(self, tile: MatrixTile, part: _Part, columns: Sequence[_Part], place: int) -> None:
        """Write the epilogue for the rows of a tile, whose sums are at ``place``, that other tiles have not computed.

        Rows are computed one by one, or all at once if a result is transposed in registers.
        """
        saved, first = list(self._extents), self._offset(self._sums, place, "i32")
        self._extents[tile.stack] = 1
        with self._scope():
            if tile.stack != tile.rows:
                self._advance(tile.stack, part.above)
            self._advance(tile.rows, part.start)
            if self._transposes(tile) and isinstance(part.known, int):
                self._extents[tile.rows] = tile.height - part.known
                self._advance(tile.rows, part.known)
                self._finish_points(tile, self._offset(first, part.known * self._width, "i32"), columns)
            else:
                self._extents[tile.rows] = 1
                height = tile.height if isinstance(part.known, int) else self._height
                with self._loop(self._number(part.known), self._number(height), self._constant(1)) as row:
                    self._advance(tile.rows, row)
                    offset = self._define(f"arith.muli {row}, {self._constant(self._width)} : i64")
                    self._finish_points(tile, self._offset(first, offset, "i32"), columns)
        self._extents = saved

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
            begin = columns[column].known
            assert isinstance(begin, int), "the columns of tiles are known"
            place = point[tile.rows] * self._width + column * lanes + begin
            pointer = self._offset(first, place, "i32")
            values.append(self._load(pointer, element, lanes, self._active_lanes(point)))
        self._finish_reduction([(0, point) for point in points], values)
