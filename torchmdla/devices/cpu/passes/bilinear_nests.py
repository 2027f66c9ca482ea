"""Nests of bilinear algorithms: sums of each factor, products of these, and sums of the products.

A bilinear algorithm splits loops of a contraction into tiles of a few elements. The elements of a tile along all split
loops are at its places. Sums of the elements of both factors are multiplied, and sums of these products are the
elements of the result. All nests have the loops of the contraction, with tiles in the place of elements. Products have
one additional first loop, over the products of a tile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

from torchmdla.compiler.sizes import AnySize
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES
from torchmdla.devices.cpu.ir.expressions import (
    SHORTS,
    Expression,
    accumulator,
    constant,
    load,
    operation,
    reduced,
    substitute,
)
from torchmdla.devices.cpu.ir.loop_program import Epilogue, LoopNest, Step, TileLoop
from torchmdla.devices.cpu.passes.bilinear_maps import KIND, SHORT, WHOLE, Place, Values
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.target.machine import Machine


@dataclass(frozen=True)
class Part:
    """Range of the tiles of a loop.

    Attributes:
        first: The first tile in the contraction.
        place: The first tile in the buffers between nests.
        count: The number of tiles.
        elements: The number of elements of each tile that exist.
    """

    first: int
    place: int
    count: int
    elements: int


# Ranges of tiles, by split loop.
Parts = Mapping[int, Part]


def split_in_tiles(size: int, elements: int) -> list[Part]:
    """Return the tiles of ``size`` elements: the whole ones, and a partial last one."""
    full, rest = divmod(size, elements)
    parts = [Part(0, 0, full, elements)] if full else []
    return parts + ([Part(full, full, 1, rest)] if rest else [])


@dataclass(frozen=True)
class Split:
    """Split of a loop: element ``k`` of tile ``t`` is iteration ``distance * t + stride * k``.

    Each of ``parts`` has separate nests.
    """

    distance: int
    stride: int
    parts: Sequence[Part]


@dataclass(frozen=True)
class Operand:
    """Factor of a contraction, or its result.

    Attributes:
        access: The access of the contraction.
        loops: For each dimension of its places, the split loop whose elements they are. Places of an image have a
            second loop, over taps. They continue to the last tap of the last element.
        sums: A function that returns the sums of the values at the places of a tile.
        widening: The op that converts an integer factor to the type of its sums.
    """

    access: Access
    loops: Sequence[tuple[int, ...]]
    sums: Callable[[Values, Parts], Values]
    widening: str = ""


def _padding(elements: AnySize, element: str) -> int:
    """Return the number of elements to add to a row, so that equal places of all rows are in different cache sets.

    A nest of sums writes or reads an element of each row at a time. Rows of an even number of lines share sets.
    """
    line = Machine.line // ELEMENT_BYTES[element]
    return line if isinstance(elements, int) and elements % (2 * line) == 0 else 0


# The addition of products to sums, by the type of these.
_ADDITIONS = {KIND: "arith.addf", WHOLE: "arith.addi"}

# Nest with the loop of the contraction for each of its loops (-1: not a loop of the contraction).
_Member = tuple[LoopNest, tuple[int, ...]]

# Buffer with the loop of each of its dimensions after the first, which has the products.
_Stored = tuple[Buffer, tuple[int, ...]]


@dataclass(frozen=True)
class BilinearAlgorithm:
    """Bilinear algorithm for a contraction.

    Attributes:
        step: The contraction.
        left: The factor whose sums are computed in each call.
        right: The factor that is known ahead.
        result: The result.
        splits: The split loops.
        sizes: The iterations of the nests' loops: of tiles for split loops.
        products: For each nest of products, the places of its sums, and the loops whose iterations are not ``sizes``.
        word: The loop over the elements of a word, if sums of the factors are integers: two are multiplied at a time.
    """

    step: LoopNest
    left: Operand
    right: Operand
    result: Operand
    splits: Mapping[int, Split]
    sizes: Mapping[int, AnySize]
    products: Sequence[tuple[Sequence[Place], Mapping[int, AnySize]]]
    word: int | None = None

    @property
    def _factor(self) -> str:
        """Return the type of the sums of factors."""
        return KIND if self.word is None else SHORT

    @property
    def _total(self) -> str:
        """Return the type of sums of products."""
        return KIND if self.word is None else WHOLE

    def nests(self, tiles: Mapping[int, int]) -> list[Step]:
        """Return the steps that replace the contraction.

        After the sums of the right factor, they run by ``tiles``: the iterations of some loops to run at a time.
        """
        order = self._order(self.right.access)
        weights = self._buffer("temporary", self._factor, order, self.sizes), order
        steps: list[Step] = [self._sums(self.right, weights[0], phases)[0] for phases in self._parts(reduces=True)]
        results = list(self._parts(reduces=False))
        along = [loop for loop in results[0] if loop in tiles]
        for _, parts in itertools.groupby(results, key=lambda each: [each[loop] for loop in along]):
            steps += self._nests_by_tiles(list(parts), weights, tiles)
        return steps

    def _parts(self, reduces: bool) -> Iterator[Parts]:
        """Return all combinations of the parts of split loops that are reduced, or of those that are not."""
        splits = {loop: split.parts for loop, split in self.splits.items() if self.step.reduction[loop] is reduces}
        for parts in itertools.product(*splits.values()):
            yield dict(zip(splits, parts, strict=True))

    def _nests_by_tiles(self, every: Sequence[Parts], weights: _Stored, tiles: Mapping[int, int]) -> list[Step]:
        """Return the nests over all of ``every``, which have the same parts of the loops in ``tiles``."""
        extents = {loop: every[0][loop].count if loop in every[0] else self.sizes[loop] for loop in tiles}
        tiles = {loop: min(tile, every[0][loop].count) if loop in every[0] else tile for loop, tile in tiles.items()}
        every = [
            {k: replace(part, place=0, count=tiles[k]) if k in tiles else part for k, part in parts.items()}
            for parts in every
        ]
        if tiles == extents:
            return [nest for nest, _ in self._members(every, weights, "temporary")]
        members = replace(self, sizes={**self.sizes, **tiles})._members(every, weights, "local")
        loop = TileLoop(
            members=tuple(nest for nest, _ in members),
            loops=tuple(tuple(loops.index(axis) for axis in tiles) for _, loops in members),
            extents=tuple(extents.values()),
            tile=tuple(tiles.values()),
            locals=tuple(
                dict.fromkeys(buffer for nest, _ in members for buffer in nest.writes if buffer.kind == "local")
            ),
        )
        return [loop]

    def _members(self, every: Sequence[Parts], weights: _Stored, kind: Literal["temporary", "local"]) -> list[_Member]:
        """Return the nests over all of ``every``, with buffers of ``kind`` between them."""
        counts = {loop: max(parts[loop].place + parts[loop].count for parts in every) for loop in every[0]}
        sizes = {**self.sizes, **counts}
        pairs = ((self.left, self._factor), (self.result, self._total))
        orders = ((element, self._order(operand.access)) for operand, element in pairs)
        left, products = ((self._buffer(kind, element, order, sizes), order) for element, order in orders)
        return [
            *(
                self._sums(self.left, left[0], {**parts, **phases})
                for parts in every
                for phases in self._parts(reduces=True)
            ),
            *(
                self._products((left, weights, products), {**sizes, **others}, self._numbers[places[0]], len(places))
                for places, others in self.products
            ),
            *(self._results(products[0], parts) for parts in every),
        ]

    @cached_property
    def _numbers(self) -> Mapping[Place, int]:
        """Return the number of each product."""
        return {place: number for number, place in enumerate(itertools.chain(*(places for places, _ in self.products)))}

    @cached_property
    def _whole(self) -> Parts:
        return {loop: split.parts[0] for loop, split in self.splits.items()}

    def _order(self, access: Access) -> tuple[int, ...]:
        """Return the loops that an access varies with, in the order of its buffer's memory.

        Loops of one iteration are omitted. Loops over tiles of distant elements are outside of loops over tiles of
        neighbours, as channels are. The elements of a word are inside of the loop across vectors of results.
        """
        step, distances = self.step, {loop: split.distance for loop, split in self.splits.items()}
        order = [loop for loop in in_memory_order(step, access) if loop in self.sizes and step.sizes[loop] != 1]
        first = next((k for k, loop in enumerate(order) if distances.get(loop, 1) > 1), len(order))
        last = [] if self.word is None else [in_memory_order(step, step.outputs[0])[-1], self.word]

        def position(loop: int) -> tuple[int, bool]:
            return 1 + last.index(loop) if loop in last else 0, loop in order[first:] and distances.get(loop) != 1

        return tuple(sorted(order, key=position))

    def _buffer(
        self, kind: Literal["temporary", "local"], element: str, order: Collection[int], sizes: Mapping[int, AnySize]
    ) -> Buffer:
        row = tuple(sizes[loop] for loop in order)
        return Buffer(kind, element, (len(self._numbers), *row), padding=_padding(math.prod(row), element))

    def _sums(self, factor: Operand, target: Buffer, parts: Parts) -> _Member:
        """Return the nest of the sums of a factor."""
        parts, order = {**self._whole, **parts}, self._order(factor.access)
        counts = [1 + sum(parts[loop].elements - 1 for loop in loops) for loops in factor.loops]
        elements: dict[Place, Expression] = {}
        for place in itertools.product(*map(range, counts)):
            element = load(self._move(factor.access, order, parts, factor, place))
            elements[place] = operation(factor.widening, [element], self._factor) if factor.widening else element
        sums = factor.sums(elements, parts)
        outputs = tuple(self._product_access(target, place, order, parts) for place in sums)
        return self._member(order, parts, outputs, tuple(sums.values()))

    def _products(
        self, operands: tuple[_Stored, _Stored, _Stored], sizes: Mapping[int, AnySize], first: int, count: int
    ) -> _Member:
        """Return the nest of ``count`` products from number ``first`` on.

        ``operands`` are the left and the right factor, and the result.
        """
        loops = (-1, *operands[2][1], *(k for k in sizes if self.step.reduction[k] and k != self.word))
        number = AffineExpr.of_loop(0, len(loops), first)
        index = partial(self._product_index, loops=loops)
        left, right, target = (Access(buffer, (number, *map(index, order))) for buffer, order in operands)
        if self.word is None:
            product = operation("arith.mulf", [load(left), load(right)], KIND)
        else:
            product = operation("dot", [load(replace(each, word=WHOLE)) for each in (left, right)], WHOLE, SHORTS)
        nest = LoopNest(
            sizes=(count, *(sizes[loop] for loop in loops[1:])),
            reduction=(False, *(self.step.reduction[loop] for loop in loops[1:])),
            outputs=(target,),
            values=(operation(_ADDITIONS[self._total], [accumulator(0, self._total), product], self._total),),
            initial=constant(0, self._total),
            nodes=self.step.nodes,
        )
        return nest, loops

    def _product_index(self, loop: int, loops: Sequence[int]) -> AffineExpr:
        """Return the index along a loop of the contraction in a nest over ``loops``."""
        return AffineExpr((0,) * len(loops)) if loop == self.word else AffineExpr.of_loop(loops.index(loop), len(loops))

    def _results(self, source: Buffer, parts: Parts) -> _Member:
        """Return the nest of the sums of products, with the epilogue of the elements that exist."""
        parts, order = {**self._whole, **parts}, self._order(self.result.access)
        products = {place: load(self._product_access(source, place, order, parts)) for place in self._numbers}
        epilogue = self.step.epilogue or Epilogue(self.step.outputs, (reduced(0, self._total),))
        outputs: list[Access] = []
        values: list[Expression] = []
        for place, total in self.result.sums(products, parts).items():
            if all(k < parts[loop].elements for k, (loop,) in zip(place, self.result.loops, strict=True)):
                move = partial(self._move, order=order, parts=parts, operand=self.result, place=place)
                loads = {load(access): load(move(access)) for access in epilogue.body.loads}
                outputs += map(move, epilogue.outputs)
                values += substitute(epilogue.values, {reduced(0, self._total): total, **loads})
        return self._member(order, parts, tuple(outputs), tuple(values))

    # Nests over the loops ``order``, and their accesses.

    def _member(
        self, order: tuple[int, ...], parts: Parts, outputs: tuple[Access, ...], values: tuple[Expression, ...]
    ) -> _Member:
        sizes = tuple(parts[loop].count if loop in parts else self.sizes[loop] for loop in order)
        return LoopNest(sizes, (False,) * len(sizes), outputs, values, nodes=self.step.nodes), order

    def _product_access(self, buffer: Buffer, place: Place, order: Sequence[int], parts: Parts) -> Access:
        """Return the access to a product, or a factor of it, of each tile."""
        starts = [parts[loop].place if loop in parts else 0 for loop in order]
        walked = (AffineExpr.of_loop(k, len(order), start) for k, start in enumerate(starts))
        return Access(buffer, (AffineExpr((0,) * len(order), self._numbers[place]), *walked))

    def _move(self, access: Access, order: Sequence[int], parts: Parts, operand: Operand, place: Place) -> Access:
        """Return an access of the contraction at a place of each tile."""
        starts = {loop: split.distance * parts[loop].first for loop, split in self.splits.items()}
        for k, (loop, *_) in zip(place, operand.loops, strict=True):
            starts[loop] += self.splits[loop].stride * k
        scales = {loop: self.splits[loop].distance if loop in self.splits else 1 for loop in order}

        def map_index(index: AffineExpr) -> AffineExpr:
            factors = tuple(index.factors[loop] * scale for loop, scale in scales.items())
            return AffineExpr(factors, index.constant + sum(index.factors[loop] * k for loop, k in starts.items()))

        return replace(access, indices=tuple(map(map_index, access.indices)))
