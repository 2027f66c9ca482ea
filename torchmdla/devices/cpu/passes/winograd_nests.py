"""The steps of a convolution in Winograd's way: transforms of weights and image, products, and the results.

The loops of all of them are those of the convolution, tiles in the place of results, phases in the place of taps;
products have one more, over the places in a tile, first.

A convolution of stride ``s`` is the sum of ``s`` of stride one along each dimension, its phases: phase ``p`` has taps
``p``, ``p + s``, …, and every ``s``-th element of the image from ``p`` on. All are transformed alike, so their products
are summed before they are transformed back, as those of channels are. Where ``s`` does not divide the taps, the last
phases have one less, which makes their product at the last place, infinity, zero: that is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from torchmdla.devices.cpu.winograd import ZERO, Matrix, Transforms, transformed


@dataclass(frozen=True)
class Window:
    """A dimension that tiles are cut of: the loop over ``results`` and the loop over ``taps``, of which there are
    ``count``; from result to result they move ``stride`` elements of the image."""

    results: int
    taps: int
    count: int
    stride: int

    @property
    def most_taps(self) -> int:
        """Of a phase."""
        return -(-self.count // self.stride)

    @property
    def full_phases(self) -> int:
        """The phases with so many taps; others, behind them, have one less."""
        return self.count - self.stride * (self.most_taps - 1)


@dataclass(frozen=True)
class Convolution:
    """A step with its ``image``, ``weights`` and ``windows``, outermost first."""

    step: LoopNest
    image: Access
    weights: Access
    windows: tuple[Window, ...]

    @property
    def slid(self) -> Mapping[int, int]:
        """The number of the window of each loop over results."""
        return {window.results: k for k, window in enumerate(self.windows)}

    @property
    def taps(self) -> Mapping[int, int]:
        """The number of the window of each loop over taps."""
        return {window.taps: k for k, window in enumerate(self.windows)}

    @property
    def phases(self) -> dict[int, AnySize]:
        """The phases of each loop over taps that has several."""
        return {window.taps: window.stride for window in self.windows if window.stride > 1}

    @property
    def images(self) -> tuple[int, ...]:
        """The loops over images: those of results that neither weights nor windows have."""
        step = self.step
        loops = range(len(step.sizes))
        return tuple(k for k in loops if not step.reduction[k] and k not in self.weights.loops and k not in self.slid)


@dataclass(frozen=True)
class Span:
    """Along a dimension, ``phases`` whose products are at ``places`` of a tile."""

    places: range
    phases: range


def spans_by_places(window: Window, by: Transforms) -> list[Span]:
    """All phases at all places, cut between places of all phases and others: what products are made of."""
    last = by.products - 1
    if window.full_phases == window.stride:
        return [Span(range(by.products), range(window.stride))]
    return [Span(range(last), range(window.stride)), Span(range(last, by.products), range(window.full_phases))]


def _spans_by_phases(window: Window, by: Transforms) -> list[Span]:
    """The same, cut between phases: what is transformed."""
    full = Span(range(by.products), range(window.full_phases))
    rest = Span(range(by.products - 1), range(window.full_phases, window.stride))
    return [full, rest] if rest.phases else [full]


def winograd_steps(found: Convolution, by: Sequence[Transforms], fused: bool, block: Sequence[int]) -> list[Step]:
    """What a convolution becomes. ``by``: for each window; ``fused``: multiply-add is one instruction; ``block``: the
    tiles along each dimension that are transformed, multiplied and transformed back at a time; none: all."""
    sizes = {loop: size for loop, size in enumerate(found.step.sizes) if loop not in found.taps} | found.phases
    writer = _Writer(found, tuple(by), fused, sizes)
    weights = writer.weights()
    made: list[Step] = [own.nest for own in weights]
    along = [_parts(static(found.step.sizes[loop]), by[k].results) for loop, k in found.slid.items()]
    every = [dict(zip(found.slid, parts, strict=True)) for parts in itertools.product(*along)]
    if not block:
        return made + [own.nest for own in writer.steps(every, weights[0], "temporary")]
    for parts in every:
        made += writer.in_blocks({loop: replace(part, place=0) for loop, part in parts.items()}, weights[0], block)
    return made


@dataclass(frozen=True)
class _Part:
    """Tiles along a dimension: ``count`` from tile ``first`` of the image and from tile ``place`` of what is stored
    between steps on, of whose results the first ``results`` there are."""

    first: int
    place: int
    count: int
    results: int


# Some of the tiles along each dimension, by the loop over results, and some of the phases, by the loop over taps.
_Parts = Mapping[int, _Part]
_Spans = Mapping[int, Span]


def _parts(size: int, results: int) -> list[_Part]:
    """The tiles along a dimension: the whole ones, and the last if it is not."""
    full, rest = divmod(size, results)
    parts = [_Part(0, 0, full, results)] if full else []
    return parts + ([_Part(full, full, 1, rest)] if rest else [])


@dataclass(frozen=True)
class _Writer:
    """``sizes``: the iterations of the loops of what is made, but for those that are over tiles."""

    found: Convolution
    by: tuple[Transforms, ...]
    fused: bool
    sizes: Mapping[int, AnySize]

    def in_blocks(self, parts: _Parts, weights: OverLoops, block: Sequence[int]) -> list[Step]:
        """The steps over ``parts``, ``block`` tiles of one image at a time."""
        images = [loop for loop in self._order(self.found.step.outputs[0]) if loop in self.found.images]
        tile = {loop: min(block[k], parts[loop].count) for loop, k in self.found.slid.items()}
        axes = {loop: (self.sizes[loop], 1) for loop in images}
        axes |= {loop: (part.count, tile[loop]) for loop, part in parts.items()}
        if all(extent == most for extent, most in axes.values()):
            return [own.nest for own in self.steps([parts], weights, "temporary")]
        of_one = replace(self, sizes={loop: 1 if loop in images else size for loop, size in self.sizes.items()})
        cut = {loop: replace(part, count=tile[loop]) for loop, part in parts.items()}
        return [tile_loop(of_one.steps([cut], weights, "local"), axes)]

    def steps(
        self, parts: Sequence[_Parts], weights: OverLoops, kind: Literal["temporary", "local"]
    ) -> list[OverLoops]:
        """The steps over all of ``parts``; what passes between them is of ``kind``."""
        counts = {loop: max(each[loop].place + each[loop].count for each in parts) for loop in self.found.slid}
        sizes = {**self.sizes, **counts}
        image, result = self._order(self.found.image), self._order(self.found.step.outputs[0])
        tiles, sums = (self._buffer(kind, order, sizes) for order in (image, result))
        factors = (tiles, image), (weights.nest.writes[0], weights.loops)
        made = [
            *(self._image(image, tiles, each, spans) for each in parts for spans in self._spans(_spans_by_phases)),
            *(self._products(factors, (sums, result), sizes, spans) for spans in self._spans(spans_by_places)),
            *(self._results(result, sums, each) for each in parts),
        ]
        for own in made:
            own.nest.nodes = self.found.step.nodes
        return made

    def _spans(self, cut: Callable[[Window, Transforms], list[Span]]) -> Iterator[_Spans]:
        for spans in itertools.product(*map(cut, self.found.windows, self.by)):
            yield dict(zip(self.found.taps, spans, strict=True))

    @cached_property
    def _numbers(self) -> Mapping[tuple[int, ...], int]:
        """The number of each place in a tile: those of the same phases follow one another."""
        cut = self._spans(spans_by_places)
        places = itertools.chain.from_iterable(itertools.product(*(s.places for s in spans.values())) for spans in cut)
        return {place: number for number, place in enumerate(places)}

    def _order(self, access: Access) -> tuple[int, ...]:
        """The loops that an access varies with, as its buffer lies in memory, but for those over taps of one phase and
        those that are there once; phases are outside of tiles, as channels are."""
        step, phases = self.found.step, self.found.phases
        still = {
            *(loop for loop, size in enumerate(step.sizes) if size == 1),
            *(self.found.taps.keys() - phases.keys()),
        }
        order = [loop for loop in in_memory_order(step, access) if loop not in still]
        if (first := next((k for k, loop in enumerate(order) if loop in self.found.slid), None)) is None:
            return tuple(order)
        outside = [*order[:first], *(loop for loop in order[first:] if loop in phases)]
        return (*outside, *(loop for loop in order if loop not in outside))

    def _buffer(
        self, kind: Literal["temporary", "local"], order: Sequence[int], sizes: Mapping[int, AnySize]
    ) -> Buffer:
        """Of a dimension for the places in a tile, then one for each loop."""
        return buffer_of(kind, math.prod(by.products for by in self.by), (sizes[loop] for loop in order))

    def weights(self) -> list[OverLoops]:
        """Transforms the weights."""
        order = self._order(self.found.weights)
        target = self._buffer("temporary", order, self.sizes)
        made = [self._weights(order, target, spans) for spans in self._spans(_spans_by_phases)]
        for own in made:
            own.nest.nodes = self.found.step.nodes
        return made

    def _weights(self, order: tuple[int, ...], target: Buffer, spans: _Spans) -> OverLoops:
        windows = self.found.windows

        def at(places: tuple[int, ...]) -> Expression:
            pairs = zip(windows, places, strict=True)
            starts = {own.taps: own.stride * place + spans[own.taps].phases.start for own, place in pairs}
            return load(self._moved(self.found.weights, order, {}, starts))

        return self._transform(order, target, [by.taps for by in self._transforms(spans)], at, {}, spans)

    def _transforms(self, spans: _Spans) -> list[Transforms]:
        """Those of the phases of ``spans``, for each window."""
        pairs = zip(self.by, spans.values(), strict=True)
        return [by if len(span.places) == by.products else by.of_fewer_taps() for by, span in pairs]

    def _image(self, order: tuple[int, ...], target: Buffer, parts: _Parts, spans: _Spans) -> OverLoops:
        """Transforms tiles of the image; what is outside of it is zero."""
        chosen = self._transforms(spans)
        inputs = [part.results + len(by.taps[0]) - 1 for part, by in zip(parts.values(), chosen, strict=True)]

        def at(places: tuple[int, ...]) -> Expression:
            if any(place >= count for place, count in zip(places, inputs, strict=True)):
                return ZERO
            return load(self._in_tiles(self.found.image, order, parts, places, spans))

        return self._transform(order, target, [by.inputs for by in chosen], at, parts, spans)

    def _transform(
        self,
        order: tuple[int, ...],
        target: Buffer,
        matrices: Sequence[Matrix],
        at: Callable[[tuple[int, ...]], Expression],
        parts: _Parts,
        spans: _Spans,
    ) -> OverLoops:
        """A nest over ``order`` that stores to each place in a tile what ``matrices`` make of ``at``, a value of
        places."""
        places = itertools.product(*(range(len(matrix[0])) for matrix in matrices))
        values = transformed(matrices, {each: at(each) for each in places}, self.fused)
        outputs = tuple(self._of_tile(target, place, order, parts, spans) for place in values)
        sizes = self._sizes(order, parts, spans)
        return OverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, tuple(values.values())), order)

    def _products(
        self,
        factors: tuple[tuple[Buffer, Sequence[int]], tuple[Buffer, Sequence[int]]],
        result: tuple[Buffer, Sequence[int]],
        sizes: Mapping[int, AnySize],
        spans: _Spans,
    ) -> OverLoops:
        """The products at the places of ``spans``."""
        first = self._numbers[tuple(span.places.start for span in spans.values())]
        numbers = range(first, first + math.prod(len(span.places) for span in spans.values()))
        phases = {loop: len(spans[loop].phases) for loop in self.found.phases}
        return products(self.found.step, factors, result, {**sizes, **phases}, numbers)

    def _results(self, order: tuple[int, ...], source: Buffer, parts: _Parts) -> OverLoops:
        """Transforms products back, and computes the convolution's epilogue of the results that there are."""
        places = itertools.product(*(range(by.products) for by in self.by))
        sums = {each: load(self._of_tile(source, each, order, parts, {})) for each in places}
        totals = [
            (total, partial(self._in_tiles, order=order, parts=parts, places=place, spans={}))
            for place, total in transformed([by.outputs for by in self.by], sums, self.fused).items()
            if all(k < part.results for k, part in zip(place, parts.values(), strict=True))
        ]
        outputs, values = stored(self.found.step, totals)
        sizes = self._sizes(order, parts, {})
        return OverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, values), order)

    # Places of tiles of parts, and of phases of spans, by nests over the loops ``order``.

    def _sizes(self, order: Sequence[int], parts: _Parts, spans: _Spans) -> tuple[AnySize, ...]:
        own = {loop: part.count for loop, part in parts.items()}
        own |= {loop: len(span.phases) for loop, span in spans.items()}
        return tuple(own.get(loop, self.sizes[loop]) for loop in order)

    def _of_tile(
        self, buffer: Buffer, place: tuple[int, ...], order: Sequence[int], parts: _Parts, spans: _Spans
    ) -> Access:
        """A place of each tile."""
        starts = {loop: part.place for loop, part in parts.items()}
        starts |= {loop: span.phases.start for loop, span in spans.items()}
        return of_product(buffer, self._numbers[place], [starts.get(loop, 0) for loop in order])

    def _in_tiles(
        self, access: Access, order: Sequence[int], parts: _Parts, places: Sequence[int], spans: _Spans
    ) -> Access:
        """An access of the convolution at ``places`` of each tile."""
        slid = self.found.slid
        scales = {loop: self.by[k].results for loop, k in slid.items()}
        starts = {loop: scales[loop] * parts[loop].first + places[k] for loop, k in slid.items()}
        starts |= {loop: span.phases.start for loop, span in spans.items()}
        return self._moved(access, order, scales, starts)

    def _moved(
        self, access: Access, order: Sequence[int], scales: Mapping[int, int], starts: Mapping[int, int]
    ) -> Access:
        """An access of the convolution whose loops start at ``starts`` and move by ``scales``, where these say so."""

        def moved(index: AffineExpr) -> AffineExpr:
            factors = tuple(index.factors[loop] * scales.get(loop, 1) for loop in order)
            return AffineExpr(factors, index.constant + sum(index.factors[loop] * k for loop, k in starts.items()))

        return replace(access, indices=tuple(map(moved, access.indices)))
