"""Tiles of sums that a matrix unit computes: the loops along their rows and words, their size, and their cost.

A nest qualifies if it sums dot products of words, and its factors are in memory as the unit reads them: the words of a
row of the left factor are adjacent, and so are the columns of the right one. These are the layouts of
``passes/narrow``. All tiles of a kernel have the same size, so that registers are configured once. The last tile of a
loop begins early, at full size; rows and columns that the tile before it has computed are not stored again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, KernelSpec
from torchmdla.devices.cpu.schedule.streams import streams
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.matrix_units import WORD_BYTES, MatrixUnit

# The types of elements in words, by the type of their dot product.
_ELEMENTS = {"f32": "bf16", "i32": "i8"}

# The cycles to begin a block of tiles, and to compute and store a row of sums: with its columns adjacent, with its rows
# adjacent, so that tiles are transposed, or with none.
_BLOCK = 20.0
_ROW, _TURNED_ROW, _SCATTERED_ROW = 2.0, 6.0, 20.0

# The most tiles of sums along a loop.
_MOST_TILES = 4


@dataclass(frozen=True)
class MatrixTile:
    """Tile of sums of a matrix unit.

    Its columns are lanes of the schedule's vector loop.

    Attributes:
        rows: the loop along its rows.
        depth: the loop along the words that are summed.
        height: the number of its rows.
        words: the number of words that a product sums. The last product of a row may sum fewer.
    """

    rows: int
    depth: int
    height: int
    words: int


@dataclass(frozen=True)
class MatrixBlock:
    """Block of tiles of sums, which the registers hold at once.

    Attributes:
        tile: the tile of sums.
        vector: the loop along its columns.
        lanes: the number of its columns.
        points: the iterations of each loop of the nest in the block.
        cycles: the cycles of the whole nest.
    """

    tile: MatrixTile
    vector: int
    lanes: int
    points: tuple[int, ...]
    cycles: float


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
    if not is_sum or len(numbers) != 2 or product.type not in _ELEMENTS:
        return None
    return MatrixProduct(_ELEMENTS[product.type], numbers[0], numbers[1], is_swapped=False)


def product_of_tile(nest: AnyNest, vector: int, tile: MatrixTile) -> MatrixProduct | None:
    """Return the factors of a nest whose tiles are along the loops of ``tile`` and ``vector``, or None."""
    product = matrix_product(nest)
    if product is None or nest.reduction[vector] or nest.reduction[tile.rows] or not nest.reduction[tile.depth]:
        return None
    for left, right in ((product.left, product.right), (product.right, product.left)):
        a, b = nest.operands[left].strides, nest.operands[right].strides
        along_left = a[vector] == 0 and a[tile.rows] != 0 and a[tile.depth] == 1
        along_right = b[vector] == 1 and b[tile.rows] == 0 and b[tile.depth] != 0
        if along_left and along_right and isinstance(b[tile.depth], int) and isinstance(a[tile.rows], int):
            return MatrixProduct(product.element, left, right, is_swapped=left != product.left)
    return None


def choose_matrix_block(nest: KernelSpec, machine: Machine, unknown: frozenset[int]) -> MatrixBlock | None:
    """Return the block of tiles with the least cost for a nest.

    Return None if the machine has no unit for the nest, or if its sizes are not known. A factor that is read from
    memory for a few rows takes as long without the unit.
    """
    blocks = () if streams(nest, machine) else matrix_blocks(nest, machine, unknown)
    return min(blocks, key=lambda block: block.cycles, default=None)


def matrix_blocks(nest: KernelSpec, machine: Machine, unknown: frozenset[int] = frozenset()) -> Iterator[MatrixBlock]:
    """Yield the blocks of tiles that the registers of the machine's unit can hold, for all loops of a nest that fit."""
    unit, product = machine.matrix, matrix_product(nest)
    reduced = {d for d, reduces in enumerate(nest.reduction) if reduces}
    if unit is None or product is None or not unit.multiplies(product.element) or unknown & reduced:
        return
    loops = [d for d in range(len(nest.sizes)) if d not in unknown and d not in reduced]
    for vector, rows, depth in itertools.product(loops, loops, reduced):
        if product_of_tile(nest, vector, MatrixTile(rows, depth, 1, 1)):
            yield from _blocks(nest, machine, unit, vector, rows, depth)


def _blocks(
    nest: KernelSpec, machine: Machine, unit: MatrixUnit, vector: int, rows: int, depth: int
) -> Iterator[MatrixBlock]:
    """Yield the blocks with tiles along the given loops."""
    tile = MatrixTile(
        rows, depth, _even_part(nest.sizes[rows], unit.rows), _whole_part(nest.sizes[depth], unit.columns)
    )
    tall, wide = -(-nest.sizes[rows] // tile.height), -(-nest.sizes[vector] // unit.columns)
    for down, across in itertools.product(range(1, _MOST_TILES + 1), repeat=2):
        registers = Registers.of(down, across, unit, nest.sizes[depth] % tile.words != 0)
        if down > tall or across > wide or registers is None:
            continue
        points = {rows: down * tile.height, vector: across * unit.columns}
        cycles = sum(
            count_down * count_across * _block_cycles(nest, machine, vector, tile, registers, part_down, part_across)
            for count_down, part_down in _parts(tall, down)
            for count_across, part_across in _parts(wide, across)
        )
        sizes = enumerate(nest.sizes)
        cycles *= math.prod(size for d, size in sizes if not nest.reduction[d] and d not in points)
        extents = tuple(points.get(d, 1) for d in range(len(nest.sizes)))
        yield MatrixBlock(tile, vector, unit.columns, extents, cycles + unit.set_up_cycles)


def _block_cycles(
    nest: KernelSpec, machine: Machine, vector: int, tile: MatrixTile, registers: Registers, down: int, across: int
) -> float:
    """Return the cycles of a block of ``down`` by ``across`` tiles of sums."""
    unit = machine.matrix
    assert unit is not None, "the block is of a matrix unit"
    steps = list(registers.steps(down, across))
    lefts, rights = sum(step.loads_left for step in steps), sum(step.loads_right for step in steps)
    loads = (lefts * tile.height + rights * tile.words) * unit.load_cycles
    # A load into a register that the step has used already waits for the product that uses it.
    again = max(0, lefts - registers.left) * tile.height + max(0, rights - registers.right) * tile.words
    products = len(steps) * tile.height * unit.row_cycles + again * unit.load_cycles
    outer = math.prod(n for d, n in enumerate(nest.sizes) if nest.reduction[d] and d != tile.depth)
    count = outer * -(-nest.sizes[tile.depth] // tile.words)
    read = (down * tile.height + across * unit.columns) * tile.words * WORD_BYTES
    fetched = read / unit.fetched_bytes if count * read > machine.first_level else 0.0
    results = len(steps) * tile.height * (unit.load_cycles + _row_cycles(nest, tile, vector))
    return count * max(products, loads, fetched, unit.latency) + unit.latency + results + _BLOCK


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
