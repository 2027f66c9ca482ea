"""The steps of a product in Strassen's way: sums of weights and of the other factor, products, and the results.

The loops of all of them are those of the product, halves in the place of what is cut; products have one more, first.
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
    OverLoops,
    buffer_of,
    of_product,
    products,
    stored,
    tile_loop,
)
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.strassen import PRODUCTS, QUARTERS, Quarter, Quarters
from torchmdla.devices.cpu.winograd import ZERO


@dataclass(frozen=True)
class Product:
    """A ``step`` that sums products of ``left`` and of weights, ``right``, with the loops that are cut in halves:
    ``row`` is in ``left`` alone, ``column`` in ``right`` alone, ``term`` in both and summed. ``rows``: all loops of
    the first kind, as the result lies in memory."""

    step: LoopNest
    left: Access
    right: Access
    row: int
    column: int
    term: int
    rows: tuple[int, ...]

    def half(self, loop: int) -> AnySize:
        """The iterations of a loop, of one that is cut in halves those of the first."""
        size = self.step.sizes[loop]
        return -(-static(size) // 2) if loop in (self.row, self.column, self.term) else size


@dataclass(frozen=True)
class Tiles:
    """``sizes``: the iterations of each loop of the product in a tile; ``axes``: the loops over tiles, of rows."""

    sizes: dict[int, AnySize]
    axes: tuple[int, ...]


def strassen_steps(found: Product, tiles: Tiles) -> list[Step]:
    """What a product becomes."""
    return _Writer(found, tiles).steps()


@dataclass(frozen=True)
class _Part:
    """``count`` rows of the halves from row ``first`` on, which there are in so many ``halves``."""

    first: int
    count: int
    halves: int


@dataclass(frozen=True)
class _Writer:
    found: Product
    tiles: Tiles

    def steps(self) -> list[Step]:
        """What the product becomes."""
        step, tile = self.found.step, self.tiles.sizes
        order = self._order(step.outputs[0])
        weights, left = self._weights(), self._left()
        local = buffer_of(self._kind, PRODUCTS, (tile[loop] for loop in order))
        left_factor, right_factor = ((own.nest.writes[0], own.loops) for own in (left[0], weights))
        made = products(step, (left_factor, right_factor), (local, order), tile, range(PRODUCTS))
        results = [self._results(order, local, part) for part in self._parts()]
        for own in (weights, *left, made, *results):
            own.nest.nodes = step.nodes
        return [weights.nest, *self._by_tiles([*left, made, *results])]

    @property
    def _kind(self) -> Literal["local", "temporary"]:
        """Of what passes within a tile."""
        return "local" if self.tiles.axes else "temporary"

    def _parts(self) -> list[_Part]:
        """The rows of the halves in a tile; the last of an odd number is a part of its own."""
        rows, count = static(self.found.step.sizes[self.found.row]), static(self.tiles.sizes[self.found.row])
        last = [_Part(count - 1, 1, 1)] if rows % 2 else []
        full = count - len(last)
        return [_Part(0, full, 2), *last] if full else last

    def _order(self, access: Access) -> tuple[int, ...]:
        """The loops of several iterations that an access varies with, as its buffer lies in memory."""
        step = self.found.step
        return tuple(loop for loop in in_memory_order(step, access) if step.sizes[loop] != 1)

    def _weights(self) -> OverLoops:
        sizes = {loop: self.found.half(loop) for loop in self.tiles.sizes}
        halved, part = (self.found.term, self.found.column), _Part(0, static(sizes[self.found.term]), 2)
        order = self._order(self.found.right)
        target = buffer_of("temporary", PRODUCTS, (sizes[loop] for loop in order))
        return self._sums(self.found.right, halved, strassen.right_sums, target, part, sizes)

    def _left(self) -> list[OverLoops]:
        sizes = self.tiles.sizes
        halved, order = (self.found.row, self.found.term), self._order(self.found.left)
        target = buffer_of(self._kind, PRODUCTS, (sizes[loop] for loop in order))
        return [self._sums(self.found.left, halved, strassen.left_sums, target, part, sizes) for part in self._parts()]

    def _sums(
        self,
        access: Access,
        halved: tuple[int, int],
        function: Callable[[Quarters], list[Expression]],
        target: Buffer,
        part: _Part,
        sizes: Mapping[int, AnySize],
    ) -> OverLoops:
        """Sums of quarters of a factor, of which the loops ``halved`` are cut, over a part of the first of these."""
        order = self._order(access)
        quarters = {
            quarter: load(self._at(access, order, halved, quarter, part)) if quarter[0] < part.halves else ZERO
            for quarter in QUARTERS
        }
        starts = [part.first if loop == halved[0] else 0 for loop in order]
        outputs = tuple(of_product(target, number, starts) for number in range(PRODUCTS))
        own = tuple(part.count if loop == halved[0] else sizes[loop] for loop in order)
        return OverLoops(LoopNest(own, (False,) * len(own), outputs, tuple(function(quarters))), order)

    def _results(self, order: tuple[int, ...], local: Buffer, part: _Part) -> OverLoops:
        """The results of products, with the epilogue."""
        halved = self.found.row, self.found.column
        starts = [part.first if loop == halved[0] else 0 for loop in order]
        found = strassen.results([load(of_product(local, k, starts)) for k in range(PRODUCTS)])
        totals = [
            (total, partial(self._at, order=order, halved=halved, quarter=quarter, part=part))
            for quarter, total in found.items()
            if quarter[0] < part.halves
        ]
        outputs, values = stored(self.found.step, totals)
        sizes = tuple(part.count if loop == halved[0] else self.tiles.sizes[loop] for loop in order)
        return OverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, values), order)

    def _at(
        self, access: Access, order: Sequence[int], halved: tuple[int, int], quarter: Quarter, part: _Part
    ) -> Access:
        """An access of the product in a quarter, by a nest over the loops ``order`` that starts at a part of the first
        loop that is cut."""
        starts = {loop: static(self.found.half(loop)) * k for loop, k in zip(halved, quarter, strict=True)}
        starts[halved[0]] += part.first

        def moved(index: AffineExpr) -> AffineExpr:
            start = sum(index.factors[loop] * start for loop, start in starts.items())
            return AffineExpr(tuple(index.factors[loop] for loop in order), index.constant + start)

        return replace(access, indices=tuple(map(moved, access.indices)))

    def _by_tiles(self, members: Sequence[OverLoops]) -> list[Step]:
        if not self.tiles.axes:
            return [own.nest for own in members]
        axes = {axis: (self.found.half(axis), static(self.tiles.sizes[axis])) for axis in self.tiles.axes}
        return [tile_loop(members, axes)]
