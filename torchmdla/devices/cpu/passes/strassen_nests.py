"""The steps of Strassen's algorithm: sums of weights and of the other factor, products, and the results.

All steps have the loops of the product, with halves in the place of split loops. Products have one additional first
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torchmdla.compiler.sizes import AnySize, static
from torchmdla.devices.cpu import strassen
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import Expression, load
from torchmdla.devices.cpu.loop_program import LoopNest, Step
from torchmdla.devices.cpu.passes.fewer_products import (
    NestOverLoops,
    apply_epilogue,
    buffer_of,
    multiply_factors,
    product_access,
    tile_loop,
)
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.strassen import PRODUCTS, QUARTERS, Quarter, Quarters
from torchmdla.devices.cpu.winograd import ZERO


@dataclass(frozen=True)
class Product:
    """Step that sums products of ``left`` and of weights, ``right``, with the loops to split in halves.

    The loop ``row`` is in ``left`` alone, ``column`` in ``right`` alone, and ``term`` is a reduced loop in both.
    ``rows`` are all loops of the first kind, in the order of the result's memory.
    """

    step: LoopNest
    left: Access
    right: Access
    row: int
    column: int
    term: int
    rows: tuple[int, ...]

    def half(self, loop: int) -> AnySize:
        """Return the iterations of a loop, or of its first half if the loop is split."""
        size = self.step.sizes[loop]
        return -(-static(size) // 2) if loop in (self.row, self.column, self.term) else size


@dataclass(frozen=True)
class RowTiles:
    """Tiles of rows, with ``sizes``, the iterations of each loop of the product in a tile.

    ``axes`` are the loops over tiles.
    """

    sizes: dict[int, AnySize]
    axes: tuple[int, ...]


def strassen_steps(product: Product, tiles: RowTiles) -> list[Step]:
    """Return the steps that replace a product."""
    return _NestBuilder(product, tiles).steps()


@dataclass(frozen=True)
class _Part:
    """Part of the rows of a half: ``count`` rows from row ``first`` on, which exist in ``halves`` halves."""

    first: int
    count: int
    halves: int


@dataclass(frozen=True)
class _NestBuilder:
    product: Product
    tiles: RowTiles

    def steps(self) -> list[Step]:
        """Return the steps that replace the product."""
        step, tile = self.product.step, self.tiles.sizes
        order = self._order(step.outputs[0])
        weights, left = self._weights(), self._left()
        local = buffer_of(self._kind, PRODUCTS, (tile[loop] for loop in order))
        left_factor, right_factor = ((member.nest.writes[0], member.loops) for member in (left[0], weights))
        product_nest = multiply_factors(step, (left_factor, right_factor), (local, order), tile, range(PRODUCTS))
        results = [self._results(order, local, part) for part in self._parts()]
        for member in (weights, *left, product_nest, *results):
            member.nest.nodes = step.nodes
        return [weights.nest, *self._tile([*left, product_nest, *results])]

    @property
    def _kind(self) -> Literal["local", "temporary"]:
        """Return the kind of the buffers between the steps of a tile."""
        return "local" if self.tiles.axes else "temporary"

    def _parts(self) -> list[_Part]:
        """Return the parts of a tile's rows; the last one of an odd number of rows is a separate part."""
        rows, count = static(self.product.step.sizes[self.product.row]), static(self.tiles.sizes[self.product.row])
        last = [_Part(count - 1, 1, 1)] if rows % 2 else []
        full = count - len(last)
        return [_Part(0, full, 2), *last] if full else last

    def _order(self, access: Access) -> tuple[int, ...]:
        """Return the loops of several iterations that an access varies with, in the order of its buffer's memory."""
        step = self.product.step
        return tuple(loop for loop in in_memory_order(step, access) if step.sizes[loop] != 1)

    def _weights(self) -> NestOverLoops:
        sizes = {loop: self.product.half(loop) for loop in self.tiles.sizes}
        halved, part = (self.product.term, self.product.column), _Part(0, static(sizes[self.product.term]), 2)
        order = self._order(self.product.right)
        target = buffer_of("temporary", PRODUCTS, (sizes[loop] for loop in order))
        return self._sums(self.product.right, halved, strassen.right_sums, target, part, sizes)

    def _left(self) -> list[NestOverLoops]:
        sizes = self.tiles.sizes
        halved, order = (self.product.row, self.product.term), self._order(self.product.left)
        target = buffer_of(self._kind, PRODUCTS, (sizes[loop] for loop in order))
        return [
            self._sums(self.product.left, halved, strassen.left_sums, target, part, sizes) for part in self._parts()
        ]

    def _sums(
        self,
        access: Access,
        halved: tuple[int, int],
        function: Callable[[Quarters], list[Expression]],
        target: Buffer,
        part: _Part,
        sizes: Mapping[int, AnySize],
    ) -> NestOverLoops:
        """Return the nest of sums of quarters of a factor, whose loops ``halved`` are split.

        The nest walks one part of the first of these loops.
        """
        order = self._order(access)
        quarters = {
            quarter: load(self._at(access, order, halved, quarter, part)) if quarter[0] < part.halves else ZERO
            for quarter in QUARTERS
        }
        starts = [part.first if loop == halved[0] else 0 for loop in order]
        outputs = tuple(product_access(target, number, starts) for number in range(PRODUCTS))
        extents = tuple(part.count if loop == halved[0] else sizes[loop] for loop in order)
        return NestOverLoops(LoopNest(extents, (False,) * len(extents), outputs, tuple(function(quarters))), order)

    def _results(self, order: tuple[int, ...], local: Buffer, part: _Part) -> NestOverLoops:
        """Return the nest that computes the results from the products, with the epilogue."""
        halved = self.product.row, self.product.column
        starts = [part.first if loop == halved[0] else 0 for loop in order]
        quarters = strassen.results([load(product_access(local, k, starts)) for k in range(PRODUCTS)])
        totals = [
            (total, partial(self._at, order=order, halved=halved, quarter=quarter, part=part))
            for quarter, total in quarters.items()
            if quarter[0] < part.halves
        ]
        outputs, values = apply_epilogue(self.product.step, totals)
        sizes = tuple(part.count if loop == halved[0] else self.tiles.sizes[loop] for loop in order)
        return NestOverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, values), order)

    def _at(
        self, access: Access, order: Sequence[int], halved: tuple[int, int], quarter: Quarter, part: _Part
    ) -> Access:
        """Return an access of the product in a quarter, for a nest over the loops ``order``.

        The nest begins at a part of the first split loop.
        """
        starts = {loop: static(self.product.half(loop)) * k for loop, k in zip(halved, quarter, strict=True)}
        starts[halved[0]] += part.first

        def map_index(index: AffineExpr) -> AffineExpr:
            start = sum(index.factors[loop] * start for loop, start in starts.items())
            return AffineExpr(tuple(index.factors[loop] for loop in order), index.constant + start)

        return replace(access, indices=tuple(map(map_index, access.indices)))

    def _tile(self, members: Sequence[NestOverLoops]) -> list[Step]:
        if not self.tiles.axes:
            return [member.nest for member in members]
        axes = {axis: (self.product.half(axis), static(self.tiles.sizes[axis])) for axis in self.tiles.axes}
        return [tile_loop(members, axes)]
