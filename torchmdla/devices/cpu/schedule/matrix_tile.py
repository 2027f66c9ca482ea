"""Tiles of sums that a matrix unit computes: the loops along their rows and words, their size, and their cost.

A nest qualifies if it sums dot products of words, and its factors are in memory as the unit reads them: the words of a
row of the left factor are adjacent, and so are the columns of the right one. These are the layouts of
``passes/narrow``. All tiles of a kernel have the same size, so that registers are configured once. The last tile of a
loop begins early, at full size; rows and columns that the tile before it has computed are not stored again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.expressions import HALVES
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelSpec
from torchmdla.devices.cpu.schedule.blocking import Level
from torchmdla.devices.cpu.schedule.register_tile import reduction_order
from torchmdla.devices.cpu.schedule.streams import streams
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.matrix_units import WORD_BYTES, MatrixUnit

# The types of elements in words, by the type and the attributes of their dot product.
_ELEMENTS = {("f32", ""): "bf16", ("f32", HALVES): "f16", ("i32", ""): "i8"}

# The cycles to begin a block of tiles, and to compute and store a row of sums: with its columns adjacent, with its rows
# adjacent, so that tiles are transposed, or with none.
_BLOCK = 20.0
_ROW, _TURNED_ROW, _SCATTERED_ROW = 2.0, 6.0, 20.0

# The most tiles of sums along a loop, the most partial sums between parts of a reduction, the numbers of chunks of a
# loop, and the share of the first-level cache that a panel may fill.
_MOST_TILES = 4
_PARTIAL_SUMS = 1 << 14
_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_FILLED = 0.5


@dataclass(frozen=True)
class MatrixTile:
    """Tile of sums of a matrix unit.

    Its columns are lanes of the schedule's vector loop.

    Attributes:
        rows: the loop along its rows.
        stack: the loop along which the tiles of a block that share columns follow each other: ``rows``, or another loop
            if that one is short, as in small images.
        depth: the loop along the words that are summed.
        height: the number of its rows. If the size of ``rows`` is dynamic, it may have fewer.
        words: the number of words that a product sums. The last product of a row may sum fewer.
    """

    rows: int
    stack: int
    depth: int
    height: int
    words: int

    def down(self, points: Sequence[int]) -> int:
        """Return the number of tiles that share columns in a block of ``points`` iterations of each loop."""
        return points[self.stack] // (self.height if self.stack == self.rows else 1)


@dataclass(frozen=True)
class MatrixBlock:
    """Block of tiles of sums, which the registers hold at once.

    Attributes:
        tile: the tile of sums.
        vector: the loop along its columns.
        lanes: the number of its columns.
        points: the iterations of each loop of the nest in the block.
        cycles: the cycles of the whole nest.
        part: the part of the outermost loop that reduces, between which partial sums are stored, if there are several.
            The panel of one factor for that part stays in the first-level cache.
    """

    tile: MatrixTile
    vector: int
    lanes: int
    points: tuple[int, ...]
    cycles: float
    part: Level | None = None

    def orders(self, nest: KernelSpec, order: tuple[Level, ...]) -> Iterator[tuple[Level, ...]]:
        """Yield the possible levels around the block. ``order`` has those without parts of the reduction.

        Chunks of a loop are outermost, so that the second-level cache holds the data of a chunk. Inside parts of the
        reduction are the loops that the panel in the first-level cache does not vary with.
        """
        product = product_of_tile(nest, self.vector, self.tile)
        if self.part is None or product is None:
            for level in order:
                others = [other for other in order if other is not level]
                yield from ((*chunk, *others, level) for chunk in _chunks(nest, level, nest.sizes[level.loop]))
            return
        is_right = self.points[self.vector] >= self.tile.height * self.tile.down(self.points)
        stays, moves = (product.right, product.left) if is_right else (product.left, product.right)
        outer = [level for level in order if nest.operands[stays].strides[level.loop]]
        left = [level for level in order if not nest.operands[stays].strides[level.loop]]
        left.sort(key=lambda level: -nest.operands[moves].strides[level.loop])
        inner = [left.pop()]
        sums = math.prod(self.points[level.loop] for level in outer)
        while left and sums * nest.sizes[inner[0].loop] * left[-1].step <= _PARTIAL_SUMS:
            sums *= nest.sizes[inner[0].loop]
            inner.insert(0, left.pop())
        for chunk in _chunks(nest, inner[0], _PARTIAL_SUMS // sums):
            yield (*outer, *left, *chunk, self.part, *inner)
            yield (*left, *chunk, *outer, self.part, *inner)


def _chunks(nest: KernelSpec, level: Level, most: int) -> Iterator[tuple[Level, ...]]:
    """Yield chunks of a level of at most ``most`` iterations, or nothing around it if these are all."""
    blocks = -(-nest.sizes[level.loop] // level.step)
    for step in dict.fromkeys(-(-blocks // count) * level.step for count in _CHUNKS if count <= blocks):
        if step <= max(most, level.step):
            yield (Level(level.loop, step),) if step < nest.sizes[level.loop] else ()


@dataclass(frozen=True)
class MatrixProduct:
    """Factors of a nest that a matrix unit can multiply.

    Attributes:
        element: the type of the elements in words.
        left: the number of the operand whose rows are those of the sums.
        right: the number of the operand whose columns are those of the sums.
        is_swapped: whether ``right`` is the first operand of the dot product, which has unsigned integers.
    """

    element: str
    left: int
    right: int
    is_swapped: bool


@dataclass(frozen=True)
class TileStep:
    """Product of two tiles in a step of the sums.

    Attributes:
        row, column: the place of the tile of sums in the block.
        left, right: the registers of the factors.
        loads_left, loads_right: whether the registers are loaded before the product.
    """

    row: int
    column: int
    left: int
    right: int
    loads_left: bool
    loads_right: bool


@dataclass(frozen=True)
class Registers:
    """Tile registers of a block of ``rows`` by ``columns`` tiles of sums.

    The registers of sums come first, then ``left`` and ``right`` registers for tiles of the factors. The last two of
    all are for the last products of rows, which sum fewer words.
    """

    rows: int
    columns: int
    left: int
    right: int
    total: int

    @classmethod
    def of(cls, rows: int, columns: int, unit: MatrixUnit, has_rest: bool) -> Registers | None:
        """Return the registers of a block, or None if the unit has too few."""
        free = unit.registers - rows * columns - 2 * has_rest
        if free < 2:
            return None
        right = min(columns, free - 1)
        return cls(rows, columns, min(rows, free - right), right, unit.registers)

    def sums(self, row: int, column: int) -> int:
        """Return the register of a tile of sums."""
        return row * self.columns + column

    def steps(self, rows: int, columns: int, *, is_rest: bool = False) -> Iterator[TileStep]:
        """Yield the products of a step for ``rows`` by ``columns`` tiles of sums.

        Rows are walked to and fro, so that few tiles are loaded again. ``is_rest`` is for the last products of rows.
        """
        first = self.total - 2 if is_rest else self.rows * self.columns
        lefts, rights = (1, 1) if is_rest else (self.left, self.right)
        held: dict[int, int] = {}
        for row in range(rows):
            for column in reversed(range(columns)) if row % 2 else range(columns):
                left, right = first + row % lefts, first + lefts + column % rights
                yield TileStep(row, column, left, right, held.get(left) != row, held.get(right) != column)
                held[left], held[right] = row, column


def matrix_product(nest: AnyNest) -> MatrixProduct | None:
    """Return the factors of a nest that only sums dot products of words from zero on, in their order in the dot."""
    if len(nest.values) != 1 or nest.tables or nest.checks or nest.place or nest.initial is None:
        return None
    value = nest.values[0]
    products = [operand for operand in value.operands if operand.op == "dot"]
    if value.op not in ("arith.addf", "arith.addi") or len(products) != 1 or nest.initial.payload != 0:
        return None
    (product,) = products
    is_sum = len(value.operands) == 2 and any(operand.op == "accumulator" for operand in value.operands)
    numbers = [operand.payload for operand in product.operands if operand.op == "operand"]
    element = _ELEMENTS.get((product.type, product.attributes))
    if not is_sum or len(numbers) != 2 or element is None:
        return None
    return MatrixProduct(element, numbers[0], numbers[1], is_swapped=False)


def product_of_tile(nest: AnyNest, vector: int, tile: MatrixTile) -> MatrixProduct | None:
    """Return the factors of a nest whose tiles are along the loops of ``tile`` and ``vector``, or None."""
    product = matrix_product(nest)
    reduces = [nest.reduction[d] for d in (vector, tile.rows, tile.stack, tile.depth)]
    if product is None or reduces != [False, False, False, True]:
        return None
    for left, right in ((product.left, product.right), (product.right, product.left)):
        a, b = nest.operands[left].strides, nest.operands[right].strides
        along_left = a[vector] == 0 and a[tile.rows] != 0 and a[tile.stack] != 0 and a[tile.depth] == 1
        along_right = b[vector] == 1 and b[tile.rows] == b[tile.stack] == 0 and b[tile.depth] != 0
        if along_left and along_right and isinstance(b[tile.depth], int) and isinstance(a[tile.rows], int):
            return MatrixProduct(product.element, left, right, is_swapped=left != product.left)
    return None


def best_matrix_blocks(nest: KernelSpec, machine: Machine, unknown: frozenset[int]) -> list[MatrixBlock]:
    """Return the blocks of tiles with the least cost for a nest, without and with parts of the reduction.

    If possible, rows are adjacent. The result is empty if the machine has no unit for the nest, or if its sizes are not
    known. A factor that is read from memory for a few rows takes as long without the unit.
    """
    blocks = () if streams(nest, machine) else matrix_blocks(nest, machine, unknown)
    best: dict[bool, MatrixBlock] = {}

    def rank(block: MatrixBlock) -> tuple[float, int]:
        return block.cycles, max(operand.strides[block.tile.rows] for operand in nest.inputs)

    for block in blocks:
        best[block.part is not None] = min(best.get(block.part is not None, block), block, key=rank)
    return list(best.values())


def matrix_blocks(nest: KernelSpec, machine: Machine, unknown: frozenset[int] = frozenset()) -> Iterator[MatrixBlock]:
    """Yield the blocks of tiles that the registers of the machine's unit can hold, for all loops of a nest that fit."""
    unit, product = machine.matrix, matrix_product(nest)
    reduced = {d for d, reduces in enumerate(nest.reduction) if reduces}
    if unit is None or product is None or not unit.multiplies(product.element) or unknown & reduced:
        return
    loops = [d for d in range(len(nest.sizes)) if d not in reduced]
    known = [d for d in loops if d not in unknown]
    for vector, rows, stack, depth in itertools.product(known, loops, loops, reduced):
        height = unit.rows if rows in unknown else _even_part(nest.sizes[rows], unit.rows)
        tile = MatrixTile(rows, stack, depth, height, _whole_part(nest.sizes[depth], unit.columns))
        is_stacked = stack != rows
        may_stack = not is_stacked or (not unknown & {rows, stack} and nest.sizes[stack] > 1)
        if may_stack and product_of_tile(nest, vector, tile):
            yield from _blocks(nest, unit, vector, tile, has_parts=not unknown)


def _blocks(
    nest: KernelSpec, unit: MatrixUnit, vector: int, tile: MatrixTile, *, has_parts: bool
) -> Iterator[MatrixBlock]:
    """Yield the blocks of a tile. ``has_parts``: also those with parts of the reduction."""
    rows, stack, depth = tile.rows, tile.stack, tile.depth
    wide, tall = -(-nest.sizes[vector] // unit.columns), -(-nest.sizes[rows] // tile.height)
    high = tall if stack == rows else nest.sizes[stack]
    for down, across in itertools.product(range(1, _MOST_TILES + 1), repeat=2):
        registers = Registers.of(down, across, unit, nest.sizes[depth] % tile.words != 0)
        if down > high or across > wide or registers is None or (stack != rows and down == 1):
            continue
        points = {rows: tile.height, vector: across * unit.columns}
        points[stack] = down * points.get(stack, 1)
        others = math.prod(n for d, n in enumerate(nest.sizes) if not nest.reduction[d] and d not in points)
        extents = tuple(points.get(d, 1) for d in range(len(nest.sizes)))
        parts = _parts_of_reduction(nest, unit, vector, tile, extents) if has_parts else ()
        for part in (None, *parts):
            costs = _BlockCosts(nest, unit, vector, tile, registers, part)
            cycles = sum(
                count_down * count_across * costs.cycles(part_down, part_across)
                for count_down, part_down in _parts(high, down)
                for count_across, part_across in _parts(wide, across)
            )
            cycles = cycles * others * (tall if stack != rows else 1) + unit.set_up_cycles
            yield MatrixBlock(tile, vector, unit.columns, extents, cycles, part)


def _parts_of_reduction(
    nest: KernelSpec, unit: MatrixUnit, vector: int, tile: MatrixTile, points: Sequence[int]
) -> Iterator[Level]:
    """Yield the largest part of the reduction for which the first-level cache holds the larger panel.

    Partial sums of rows or columns that two tiles compute would be wrong.
    """
    if nest.sizes[tile.rows] % tile.height or nest.sizes[vector] % unit.columns:
        return
    outermost = matrix_reduction(nest, vector, tile)[0]
    size, step = nest.sizes[outermost], tile.words if outermost == tile.depth else 1
    words = math.prod(n for d, n in enumerate(nest.sizes) if nest.reduction[d]) // size
    panel = max(tile.height * tile.down(points), points[vector]) * words * WORD_BYTES
    steps = int(_FILLED * unit.first_level / panel) // step
    if 0 < steps * step < size:
        yield Level(outermost, _even_part(-(-size // step), steps) * step)


def matrix_reduction(nest: KernelSpec, vector: int, tile: MatrixTile) -> tuple[int, ...]:
    """Return the loops that reduce, outermost first, with the loop along words inside."""
    return tuple(sorted(reduction_order(nest, vector), key=lambda d: d == tile.depth))


@dataclass(frozen=True)
class _BlockCosts:
    """Costs of blocks of tiles of a nest. ``part`` is that of :class:`MatrixBlock`."""

    nest: KernelSpec
    unit: MatrixUnit
    vector: int
    tile: MatrixTile
    registers: Registers
    part: Level | None

    def cycles(self, down: int, across: int) -> float:
        """Return the cycles of a block of ``down`` by ``across`` tiles of sums."""
        nest, unit, tile = self.nest, self.unit, self.tile
        outer = math.prod(n for d, n in enumerate(nest.sizes) if nest.reduction[d] and d != tile.depth)
        steps = outer * -(-nest.sizes[tile.depth] // tile.words)
        rows = down * across * tile.height
        results = rows * (unit.load_cycles + _row_cycles(nest, tile, self.vector))
        parts = -(-nest.sizes[self.part.loop] // self.part.step) if self.part else 1
        partial_sums = (parts - 1) * 2 * rows * unit.load_cycles
        return steps * self._step(down, across, steps) + results + partial_sums + parts * (unit.latency + _BLOCK)

    def _step(self, down: int, across: int, count: int) -> float:
        """Return the cycles of one of ``count`` steps of the sums."""
        unit, tile = self.unit, self.tile
        steps = list(self.registers.steps(down, across))
        lefts, rights = sum(step.loads_left for step in steps), sum(step.loads_right for step in steps)
        loads = (lefts * tile.height + rights * tile.words) * unit.load_cycles
        # A load into a register that the step has used already waits for the product that uses it.
        again = max(0, lefts - self.registers.left) * tile.height + max(0, rights - self.registers.right) * tile.words
        products = len(steps) * tile.height * unit.row_cycles + again * unit.load_cycles
        sizes = down * tile.height, across * unit.columns
        panels = [size * tile.words * WORD_BYTES for size in sizes]
        fetched = float(sum(panels) if count * sum(panels) > unit.first_level else 0)
        if self.part:  # The larger panel is fetched once for all blocks whose partial sums are stored.
            blocks = self._sums_beside(sizes) / min(sizes)
            fetched = min(panels) + max(panels) / max(1.0, blocks)
        return max(products, loads, fetched / unit.fetched_bytes, unit.latency)

    def _sums_beside(self, sizes: tuple[int, int]) -> float:
        """Return the rows or columns of which partial sums are stored, for each column or row of a block."""
        product = product_of_tile(self.nest, self.vector, self.tile)
        assert product is not None, "the block is of a product"
        strides = self.nest.operands[product.right if sizes[1] >= sizes[0] else product.left].strides
        loops = enumerate(self.nest.sizes)
        beside = math.prod(n for d, n in loops if not self.nest.reduction[d] and not strides[d])
        return min(beside, _PARTIAL_SUMS / max(sizes))


def _row_cycles(nest: KernelSpec, tile: MatrixTile, vector: int) -> float:
    """Return the cycles to store the results of a row of a tile."""
    cycles = 0.0
    for output in (nest.epilogue or nest).outputs:
        is_turned = output.strides[tile.rows] == 1 and ELEMENT_BYTES[storage_type(output.element)] >= WORD_BYTES
        cycles += _ROW if output.strides[vector] == 1 else _TURNED_ROW if is_turned else _SCATTERED_ROW
    return cycles


def _parts(size: int, step: int) -> list[tuple[int, int]]:
    """Return the numbers of blocks of ``step`` tiles, and of the rest, among ``size`` tiles."""
    full, rest = divmod(size, step)
    return [(count, part) for count, part in ((full, step), (1, rest)) if count and part]


def _even_part(size: int, most: int) -> int:
    """Return the least size of the fewest parts of at most ``most``, which cover ``size``."""
    return -(-size // -(-size // most))


def _whole_part(size: int, most: int) -> int:
    """Return the size of the fewest parts of at most ``most`` if they are equal, else ``most``."""
    part = _even_part(size, most)
    return part if size % part == 0 else most
