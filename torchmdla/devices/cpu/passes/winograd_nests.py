"""The steps of Winograd's algorithm: transforms of weights and image, products, and the results.

All steps have the loops of the convolution, with tiles in the place of results, and phases in the place of taps.
Products have one additional first loop, over the places in a tile.

A convolution of stride ``s`` is the sum of ``s`` convolutions of stride one along each dimension, its phases. Phase
``p`` has taps ``p``, ``p + s``, …, and every ``s``-th element of the image from ``p`` on. All phases have the same
transforms. Thus their products are summed before the transform back, as those of channels are. If ``s`` does not divide
the taps, the last phases have one tap less. Their product at the last place, infinity, is then zero and is omitted.
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
    NestOverLoops,
    apply_epilogue,
    buffer_of,
    multiply_factors,
    product_access,
    tile_loop,
)
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.winograd import ZERO, Matrix, Transforms, apply_matrices


@dataclass(frozen=True)
class Window:
    """Dimension that is split into tiles, with the loop over ``results`` and the loop over ``taps``.

    There are ``count`` taps. From result to result, they move by ``stride`` elements of the image.
    """

    results: int
    taps: int
    count: int
    stride: int

    @property
    def most_taps(self) -> int:
        """Return the largest number of taps of a phase."""
        return -(-self.count // self.stride)

    @property
    def full_phases(self) -> int:
        """Return the number of phases with ``most_taps`` taps; the later phases have one tap less."""
        return self.count - self.stride * (self.most_taps - 1)


@dataclass(frozen=True)
class Convolution:
    """Step with its ``image``, ``weights`` and ``windows``, outermost first."""

    step: LoopNest
    image: Access
    weights: Access
    windows: tuple[Window, ...]

    @property
    def slid(self) -> Mapping[int, int]:
        """Return the number of the window of each loop over results."""
        return {window.results: k for k, window in enumerate(self.windows)}

    @property
    def taps(self) -> Mapping[int, int]:
        """Return the number of the window of each loop over taps."""
        return {window.taps: k for k, window in enumerate(self.windows)}

    @property
    def phases(self) -> dict[int, AnySize]:
        """Return the number of phases of each loop over taps that has several."""
        return {window.taps: window.stride for window in self.windows if window.stride > 1}

    @property
    def images(self) -> tuple[int, ...]:
        """Return the loops over images: those of results that neither weights nor windows have."""
        step = self.step
        loops = range(len(step.sizes))
        return tuple(k for k in loops if not step.reduction[k] and k not in self.weights.loops and k not in self.slid)


@dataclass(frozen=True)
class Span:
    """Range of ``phases`` along a dimension, whose products are at ``places`` of a tile."""

    places: range
    phases: range


def spans_by_places(window: Window, transforms: Transforms) -> list[Span]:
    """Return all phases at all places, split between places of all phases and other places, for products."""
    last = transforms.products - 1
    if window.full_phases == window.stride:
        return [Span(range(transforms.products), range(window.stride))]
    return [Span(range(last), range(window.stride)), Span(range(last, transforms.products), range(window.full_phases))]


def _spans_by_phases(window: Window, transforms: Transforms) -> list[Span]:
    """Return all phases at all places, split between phases, for transforms."""
    full = Span(range(transforms.products), range(window.full_phases))
    rest = Span(range(transforms.products - 1), range(window.full_phases, window.stride))
    return [full, rest] if rest.phases else [full]


def winograd_steps(
    convolution: Convolution, tiling: Sequence[Transforms], fused: bool, block: Sequence[int]
) -> list[Step]:
    """Return the steps that replace a convolution.

    Args:
        convolution: The convolution.
        tiling: The transforms of each window.
        fused: Whether multiply-add is one instruction.
        block: The number of tiles along each dimension that are transformed, multiplied and transformed back at a time.
            If it is empty, all tiles are one block.
    """
    sizes = {
        loop: size for loop, size in enumerate(convolution.step.sizes) if loop not in convolution.taps
    } | convolution.phases
    writer = _NestBuilder(convolution, tuple(tiling), fused, sizes)
    weights = writer.weights()
    nests: list[Step] = [member.nest for member in weights]
    along = [_parts(static(convolution.step.sizes[loop]), tiling[k].results) for loop, k in convolution.slid.items()]
    every = [dict(zip(convolution.slid, parts, strict=True)) for parts in itertools.product(*along)]
    if not block:
        return nests + [member.nest for member in writer.steps(every, weights[0], "temporary")]
    for parts in every:
        nests += writer.tile_blocks({loop: replace(part, place=0) for loop, part in parts.items()}, weights[0], block)
    return nests


@dataclass(frozen=True)
class _Part:
    """Range of tiles along a dimension.

    Attributes:
        first: The first tile in the image.
        place: The first tile in the buffers between steps.
        count: The number of tiles.
        results: The number of results of each tile that exist.
    """

    first: int
    place: int
    count: int
    results: int


# Ranges of tiles along each dimension, by the loop over results, and of phases, by the loop over taps.
_Parts = Mapping[int, _Part]
_Spans = Mapping[int, Span]


def _parts(size: int, results: int) -> list[_Part]:
    """Return the tiles along a dimension: the whole ones, and a partial last one."""
    full, rest = divmod(size, results)
    parts = [_Part(0, 0, full, results)] if full else []
    return parts + ([_Part(full, full, 1, rest)] if rest else [])


@dataclass(frozen=True)
class _NestBuilder:
    """Writer of the steps of a convolution.

    ``sizes`` has the iterations of the steps' loops, except for those over tiles.
    """

    convolution: Convolution
    tiling: tuple[Transforms, ...]
    fused: bool
    sizes: Mapping[int, AnySize]

    def tile_blocks(self, parts: _Parts, weights: NestOverLoops, block: Sequence[int]) -> list[Step]:
        """Return the steps over ``parts``, with ``block`` tiles of one image at a time."""
        images = [loop for loop in self._order(self.convolution.step.outputs[0]) if loop in self.convolution.images]
        tile = {loop: min(block[k], parts[loop].count) for loop, k in self.convolution.slid.items()}
        axes = {loop: (self.sizes[loop], 1) for loop in images}
        axes |= {loop: (part.count, tile[loop]) for loop, part in parts.items()}
        if all(extent == most for extent, most in axes.values()):
            return [member.nest for member in self.steps([parts], weights, "temporary")]
        of_one = replace(self, sizes={loop: 1 if loop in images else size for loop, size in self.sizes.items()})
        cut = {loop: replace(part, count=tile[loop]) for loop, part in parts.items()}
        return [tile_loop(of_one.steps([cut], weights, "local"), axes)]

    def steps(
        self, parts: Sequence[_Parts], weights: NestOverLoops, kind: Literal["temporary", "local"]
    ) -> list[NestOverLoops]:
        """Return the steps over all of ``parts``, with buffers of ``kind`` between them."""
        counts = {loop: max(each[loop].place + each[loop].count for each in parts) for loop in self.convolution.slid}
        sizes = {**self.sizes, **counts}
        image, result = self._order(self.convolution.image), self._order(self.convolution.step.outputs[0])
        tiles, sums = (self._buffer(kind, order, sizes) for order in (image, result))
        factors = (tiles, image), (weights.nest.writes[0], weights.loops)
        members = [
            *(self._image(image, tiles, each, spans) for each in parts for spans in self._spans(_spans_by_phases)),
            *(self._products(factors, (sums, result), sizes, spans) for spans in self._spans(spans_by_places)),
            *(self._results(result, sums, each) for each in parts),
        ]
        for member in members:
            member.nest.nodes = self.convolution.step.nodes
        return members

    def _spans(self, cut: Callable[[Window, Transforms], list[Span]]) -> Iterator[_Spans]:
        for spans in itertools.product(*map(cut, self.convolution.windows, self.tiling)):
            yield dict(zip(self.convolution.taps, spans, strict=True))

    @cached_property
    def _numbers(self) -> Mapping[tuple[int, ...], int]:
        """Return the number of each place in a tile; places with the same phases are consecutive."""
        cut = self._spans(spans_by_places)
        places = itertools.chain.from_iterable(itertools.product(*(s.places for s in spans.values())) for spans in cut)
        return {place: number for number, place in enumerate(places)}

    def _order(self, access: Access) -> tuple[int, ...]:
        """Return the loops that an access varies with, in the order of its buffer's memory.

        Loops over taps of one phase and loops of one iteration are omitted. Phases are outside of tiles, as channels
        are.
        """
        step, phases = self.convolution.step, self.convolution.phases
        still = {
            *(loop for loop, size in enumerate(step.sizes) if size == 1),
            *(self.convolution.taps.keys() - phases.keys()),
        }
        order = [loop for loop in in_memory_order(step, access) if loop not in still]
        if (first := next((k for k, loop in enumerate(order) if loop in self.convolution.slid), None)) is None:
            return tuple(order)
        outside = [*order[:first], *(loop for loop in order[first:] if loop in phases)]
        return (*outside, *(loop for loop in order if loop not in outside))

    def _buffer(
        self, kind: Literal["temporary", "local"], order: Sequence[int], sizes: Mapping[int, AnySize]
    ) -> Buffer:
        """Return a buffer with a dimension for the places in a tile, then one for each loop."""
        return buffer_of(
            kind, math.prod(transforms.products for transforms in self.tiling), (sizes[loop] for loop in order)
        )

    def weights(self) -> list[NestOverLoops]:
        """Return the nests that transform the weights."""
        order = self._order(self.convolution.weights)
        target = self._buffer("temporary", order, self.sizes)
        members = [self._weights(order, target, spans) for spans in self._spans(_spans_by_phases)]
        for member in members:
            member.nest.nodes = self.convolution.step.nodes
        return members

    def _weights(self, order: tuple[int, ...], target: Buffer, spans: _Spans) -> NestOverLoops:
        windows = self.convolution.windows

        def at(places: tuple[int, ...]) -> Expression:
            pairs = zip(windows, places, strict=True)
            starts = {window.taps: window.stride * place + spans[window.taps].phases.start for window, place in pairs}
            return load(self._restrict_access(self.convolution.weights, order, {}, starts))

        return self._transform(
            order, target, [transforms.taps for transforms in self._transforms(spans)], at, {}, spans
        )

    def _transforms(self, spans: _Spans) -> list[Transforms]:
        """Return the transforms of the phases of ``spans``, for each window."""
        pairs = zip(self.tiling, spans.values(), strict=True)
        return [
            transforms if len(span.places) == transforms.products else transforms.drop_tap()
            for transforms, span in pairs
        ]

    def _image(self, order: tuple[int, ...], target: Buffer, parts: _Parts, spans: _Spans) -> NestOverLoops:
        """Return the nest that transforms tiles of the image, with zeros outside of it."""
        chosen = self._transforms(spans)
        inputs = [
            part.results + len(transforms.taps[0]) - 1 for part, transforms in zip(parts.values(), chosen, strict=True)
        ]

        def at(places: tuple[int, ...]) -> Expression:
            if any(place >= count for place, count in zip(places, inputs, strict=True)):
                return ZERO
            return load(self._access_at_places(self.convolution.image, order, parts, places, spans))

        return self._transform(order, target, [transforms.inputs for transforms in chosen], at, parts, spans)

    def _transform(
        self,
        order: tuple[int, ...],
        target: Buffer,
        matrices: Sequence[Matrix],
        at: Callable[[tuple[int, ...]], Expression],
        parts: _Parts,
        spans: _Spans,
    ) -> NestOverLoops:
        """Return a nest over ``order`` that stores the transform of ``at`` by ``matrices`` at each place in a tile.

        ``at`` returns the value at a place.
        """
        places = itertools.product(*(range(len(matrix[0])) for matrix in matrices))
        values = apply_matrices(matrices, {each: at(each) for each in places}, self.fused)
        outputs = tuple(self._tile_access(target, place, order, parts, spans) for place in values)
        sizes = self._sizes(order, parts, spans)
        return NestOverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, tuple(values.values())), order)

    def _products(
        self,
        factors: tuple[tuple[Buffer, Sequence[int]], tuple[Buffer, Sequence[int]]],
        result: tuple[Buffer, Sequence[int]],
        sizes: Mapping[int, AnySize],
        spans: _Spans,
    ) -> NestOverLoops:
        """Return the nest of the products at the places of ``spans``."""
        first = self._numbers[tuple(span.places.start for span in spans.values())]
        numbers = range(first, first + math.prod(len(span.places) for span in spans.values()))
        phases = {loop: len(spans[loop].phases) for loop in self.convolution.phases}
        return multiply_factors(self.convolution.step, factors, result, {**sizes, **phases}, numbers)

    def _results(self, order: tuple[int, ...], source: Buffer, parts: _Parts) -> NestOverLoops:
        """Return the nest that transforms products back, and computes the epilogue of the results that exist."""
        places = itertools.product(*(range(transforms.products) for transforms in self.tiling))
        sums = {each: load(self._tile_access(source, each, order, parts, {})) for each in places}
        totals = [
            (total, partial(self._access_at_places, order=order, parts=parts, places=place, spans={}))
            for place, total in apply_matrices(
                [transforms.outputs for transforms in self.tiling], sums, self.fused
            ).items()
            if all(k < part.results for k, part in zip(place, parts.values(), strict=True))
        ]
        outputs, values = apply_epilogue(self.convolution.step, totals)
        sizes = self._sizes(order, parts, {})
        return NestOverLoops(LoopNest(sizes, (False,) * len(sizes), outputs, values), order)

    # Accesses in tiles of parts and phases of spans, for nests over the loops ``order``.

    def _sizes(self, order: Sequence[int], parts: _Parts, spans: _Spans) -> tuple[AnySize, ...]:
        iterations = {loop: part.count for loop, part in parts.items()}
        iterations |= {loop: len(span.phases) for loop, span in spans.items()}
        return tuple(iterations.get(loop, self.sizes[loop]) for loop in order)

    def _tile_access(
        self, buffer: Buffer, place: tuple[int, ...], order: Sequence[int], parts: _Parts, spans: _Spans
    ) -> Access:
        """Return the access to one place of each tile."""
        starts = {loop: part.place for loop, part in parts.items()}
        starts |= {loop: span.phases.start for loop, span in spans.items()}
        return product_access(buffer, self._numbers[place], [starts.get(loop, 0) for loop in order])

    def _access_at_places(
        self, access: Access, order: Sequence[int], parts: _Parts, places: Sequence[int], spans: _Spans
    ) -> Access:
        """Return an access of the convolution at ``places`` of each tile."""
        slid = self.convolution.slid
        scales = {loop: self.tiling[k].results for loop, k in slid.items()}
        starts = {loop: scales[loop] * parts[loop].first + places[k] for loop, k in slid.items()}
        starts |= {loop: span.phases.start for loop, span in spans.items()}
        return self._restrict_access(access, order, scales, starts)

    def _restrict_access(
        self, access: Access, order: Sequence[int], scales: Mapping[int, int], starts: Mapping[int, int]
    ) -> Access:
        """Return an access of the convolution whose loops start at ``starts`` with steps of ``scales``, if given."""

        def map_index(index: AffineExpr) -> AffineExpr:
            factors = tuple(index.factors[loop] * scales.get(loop, 1) for loop in order)
            return AffineExpr(factors, index.constant + sum(index.factors[loop] * k for loop, k in starts.items()))

        return replace(access, indices=tuple(map(map_index, access.indices)))
