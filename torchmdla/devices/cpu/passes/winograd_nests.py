"""The steps of a convolution in Winograd's way: transforms of weights and image, products, and the results.

The loops of all of them are those of the convolution, tiles in the place of results, without those over taps; products
have one more, over the places in a tile, first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torchmdla.compiler.sizes import AnySize, static
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
from torchmdla.devices.cpu.winograd import TAPS, ZERO, Matrix, Transforms, transformed


@dataclass(frozen=True)
class Convolution:
    """A step with its ``image`` and ``weights``; ``windows``: the loop over results and the loop over taps of each
    dimension that tiles are cut of, outermost first."""

    step: LoopNest
    image: Access
    weights: Access
    windows: tuple[tuple[int, int], ...]

    @property
    def slid(self) -> Mapping[int, int]:
        """The number of the window of each loop over results."""
        return {result: k for k, (result, _) in enumerate(self.windows)}

    @property
    def taps(self) -> Mapping[int, int]:
        """The number of the window of each loop over taps."""
        return {tap: k for k, (_, tap) in enumerate(self.windows)}

    @property
    def images(self) -> tuple[int, ...]:
        """The loops over images: those of results that neither weights nor windows have."""
        step = self.step
        loops = range(len(step.sizes))
        return tuple(k for k in loops if not step.reduction[k] and k not in self.weights.loops and k not in self.slid)


def winograd_steps(found: Convolution, by: Transforms, fused: bool, block: Sequence[int]) -> list[Step]:
    """What a convolution becomes. ``fused``: multiply-add is one instruction; ``block``: the tiles along each dimension
    that are transformed, multiplied and transformed back at a time; none: all."""
    sizes = {loop: size for loop, size in enumerate(found.step.sizes) if loop not in found.taps}
    writer = _Writer(found, by, fused, sizes)
    weights = writer.weights()
    made: list[Step] = [weights.nest]
    along = [_parts(static(found.step.sizes[result]), by) for result, _ in found.windows]
    if not block:
        return made + [own.nest for own in writer.steps(list(itertools.product(*along)), weights, "temporary")]
    for parts in itertools.product(*along):
        made += writer.in_blocks(tuple(replace(part, place=0) for part in parts), weights, block)
    return made


@dataclass(frozen=True)
class _Part:
    """Tiles along a dimension: ``count`` from tile ``first`` of the image and from tile ``place`` of what is stored
    between steps on, of whose inputs and results the first ``inputs`` and ``results`` there are."""

    first: int
    place: int
    count: int
    inputs: int
    results: int


# For each dimension that tiles are cut of, some of the tiles along it.
_Parts = tuple[_Part, ...]


def _parts(size: int, by: Transforms) -> list[_Part]:
    """The tiles along a dimension: the whole ones, and the last if it is not."""
    full, rest = divmod(size, by.results)
    parts = [_Part(0, 0, full, by.products, by.results)] if full else []
    return parts + ([_Part(full, full, 1, rest + TAPS - 1, rest)] if rest else [])


@dataclass(frozen=True)
class _Writer:
    """``sizes``: the iterations of the convolution's loops, but for those that are over tiles."""

    found: Convolution
    by: Transforms
    fused: bool
    sizes: Mapping[int, AnySize]

    def in_blocks(self, parts: _Parts, weights: OverLoops, block: Sequence[int]) -> list[Step]:
        """The steps over ``parts``, ``block`` tiles of one image at a time."""
        slid = self.found.slid
        images = [loop for loop in self._order(self.found.step.outputs[0]) if loop in self.found.images]
        tile = [min(most, part.count) for most, part in zip(block, parts, strict=True)]
        axes = {loop: (self.sizes[loop], 1) for loop in images}
        axes |= {loop: (part.count, most) for loop, part, most in zip(slid, parts, tile, strict=True)}
        if all(extent == most for extent, most in axes.values()):
            return [own.nest for own in self.steps([parts], weights, "temporary")]
        of_one = replace(self, sizes={loop: 1 if loop in images else size for loop, size in self.sizes.items()})
        cut = tuple(replace(part, count=count) for part, count in zip(parts, tile, strict=True))
        return [tile_loop(of_one.steps([cut], weights, "local"), axes)]

    def steps(
        self, parts: Sequence[_Parts], weights: OverLoops, kind: Literal["temporary", "local"]
    ) -> list[OverLoops]:
        """The steps over all of ``parts``; what passes between them is of ``kind``."""
        counts = [max(each[k].place + each[k].count for each in parts) for k in range(len(self.found.windows))]
        sizes = {**self.sizes, **{loop: counts[k] for loop, k in self.found.slid.items()}}
        step = self.found.step
        image, result = self._order(self.found.image), self._order(step.outputs[0])
        tiles, sums = (self._buffer(kind, order, sizes) for order in (image, result))
        made = [
            *(self._image(image, tiles, each) for each in parts),
            products(step, ((tiles, image), (weights.nest.writes[0], weights.loops)), (sums, result), sizes),
            *(self._results(result, sums, each) for each in parts),
        ]
        for own in made:
            own.nest.nodes = step.nodes
        return made

    def _order(self, access: Access) -> tuple[int, ...]:
        """The loops that an access varies with, as its buffer lies in memory, but for those over taps."""
        return tuple(loop for loop in in_memory_order(self.found.step, access) if loop not in self.found.taps)

    def _buffer(
        self, kind: Literal["temporary", "local"], order: Sequence[int], sizes: Mapping[int, AnySize]
    ) -> Buffer:
        """Of a dimension for the places in a tile, then one for each loop."""
        return buffer_of(kind, self.by.products ** len(self.found.windows), (sizes[loop] for loop in order))

    def weights(self) -> OverLoops:
        """Transforms the weights."""
        order, taps = self._order(self.found.weights), self.found.taps

        def at(places: tuple[int, ...]) -> Expression:
            def index(own: AffineExpr) -> AffineExpr:
                start = sum(own.factors[tap] * places[k] for tap, k in taps.items())
                return AffineExpr(tuple(own.factors[loop] for loop in order), own.constant + start)

            return load(Access(self.found.weights.buffer, tuple(map(index, self.found.weights.indices))))

        made = self._transform(order, self._buffer("temporary", order, self.sizes), self.by.taps, at, ())
        made.nest.nodes = self.found.step.nodes
        return made

    def _image(self, order: tuple[int, ...], target: Buffer, parts: _Parts) -> OverLoops:
        """Transforms tiles of the image; what is outside of it is zero."""

        def at(places: tuple[int, ...]) -> Expression:
            if any(place >= part.inputs for place, part in zip(places, parts, strict=True)):
                return ZERO
            return load(self._in_tiles(self.found.image, order, parts, places))

        return self._transform(order, target, self.by.inputs, at, parts)

    def _transform(
        self,
        order: tuple[int, ...],
        target: Buffer,
        matrix: Matrix,
        at: Callable[[tuple[int, ...]], Expression],
        parts: _Parts,
    ) -> OverLoops:
        """A nest over ``order`` that stores to each place in a tile what ``matrix`` makes of ``at``, a value of
        places."""
        places = itertools.product(range(len(matrix[0])), repeat=len(self.found.windows))
        values = transformed(matrix, {each: at(each) for each in places}, self.fused)
        outputs = tuple(self._of_tile(target, number, order, parts) for number in range(len(values)))
        sizes = self._sizes(order, parts)
        return OverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, tuple(values.values())), order)

    def _results(self, order: tuple[int, ...], source: Buffer, parts: _Parts) -> OverLoops:
        """Transforms products back, and computes the convolution's epilogue of the results that there are."""
        places = itertools.product(range(self.by.products), repeat=len(parts))
        sums = {each: load(self._of_tile(source, k, order, parts)) for k, each in enumerate(places)}
        totals = [
            (total, partial(self._in_tiles, order=order, parts=parts, places=place))
            for place, total in transformed(self.by.outputs, sums, self.fused).items()
            if all(k < part.results for k, part in zip(place, parts, strict=True))
        ]
        outputs, values = stored(self.found.step, totals)
        sizes = self._sizes(order, parts)
        return OverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, values), order)

    def _sizes(self, order: Sequence[int], parts: _Parts) -> tuple[AnySize, ...]:
        slid = self.found.slid
        return tuple(parts[slid[loop]].count if loop in slid else self.sizes[loop] for loop in order)

    def _of_tile(self, buffer: Buffer, number: int, order: Sequence[int], parts: _Parts) -> Access:
        """Place ``number`` of each tile of ``parts``, over the loops ``order``."""
        slid = self.found.slid
        return of_product(buffer, number, [parts[slid[loop]].place if loop in slid else 0 for loop in order])

    def _in_tiles(self, access: Access, order: Sequence[int], parts: _Parts, places: Sequence[int]) -> Access:
        """An access of the convolution at ``places`` of each tile of ``parts``, over the loops ``order``."""
        slid, by = self.found.slid, self.by.results

        def moved(index: AffineExpr) -> AffineExpr:
            factors = tuple(index.factors[loop] * (by if loop in slid else 1) for loop in order)
            starts = (index.factors[loop] * (by * parts[k].first + places[k]) for loop, k in slid.items())
            return AffineExpr(factors, index.constant + sum(starts))

        return replace(access, indices=tuple(map(moved, access.indices)))
