"""Convolutions by fewer products, in Winograd's way (:mod:`~torchmdla.devices.cpu.winograd`).

A convolution whose taps overlap becomes four steps: weights transformed (of parameters alone, so packed once), tiles of
the image transformed, a product of matrices for each place in a tile, and results transformed back with the epilogue.
In one dimension, three taps by stride one, tiles of two results, an image of eight places::

    nest d0:16 d1:6 d2:16+ d3:3+ {                  nest d0:16 d1:16 { transformed weights w[0..3, d0, d1] }
      i0 = input0[d2, d1 + d3]                      nest d0:16 d1:3 { transformed tiles v[0..3, d0, d1] = …
      i1 = parameter1[d0, d2, d3]             →          input0[d0, 2*d1 + 0..3] }
      o0 = from 0.0 : f32                           nest d0:4 d1:16 d2:3 d3:16+ { p[d0, d1, d2] = … v * w }
      o0 + i0 * i1 }                                nest d0:16 d1:3 { result2[d0, 2*d1 + 0..1] = … p[0..3, d0, d1] }

Where tiles do not divide the image, the last ones along a dimension have nests of their own, which take what is outside
as zero and leave out results that there are none of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torchmdla.compiler.sizes import estimate, static
from torchmdla.devices.cpu.accesses import AffineExpr
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.algorithms import algorithm_for, note
from torchmdla.devices.cpu.passes.fewer_products import CAN_TAKE_FEWER_PRODUCTS, time_of_products
from torchmdla.devices.cpu.passes.precompute import IsKnown, known_accesses
from torchmdla.devices.cpu.passes.tile_fusion import MOST_LOCAL_BYTES, cut
from torchmdla.devices.cpu.passes.winograd_nests import Convolution, Window, spans_by_places, winograd_steps
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule
from torchmdla.devices.cpu.winograd import Transforms, has_transforms, transforms

# Along more dimensions than these, tiles have too many places.
_MOST_WINDOWS = 2


def takes_less(steps: LoopProgram, step: LoopNest, is_known: IsKnown, machine: Machine, part: float) -> bool:
    """Whether a step becomes less than ``part`` of its time in Winograd's way."""
    case = USE_WINOGRAD.case(partial(_candidate, steps, machine, is_known), step)
    return case is not None and bool(case.costs.best(machine.algorithms, part))


@dataclass(frozen=True)
class _Candidate:
    steps: LoopProgram
    machine: Machine
    found: Convolution

    @property
    def step(self) -> LoopNest:
        return self.found.step

    @property
    def costs(self) -> _Costs:
        sizes = [1 if self.steps.varies(size) else static(size) for size in self.step.sizes]
        return _Costs(self.found, sizes, self.machine)


def _candidate(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, step: LoopNest, match: Captured
) -> _Candidate | None:
    """Return the step as a convolution over channels, with taps that are known ahead, if it is one."""
    image, weights = match["left"].payload, match["right"].payload
    windows = [_window(steps, step, index) for index in image.indices if len(_moving(step, index)) > 1]
    if not is_known(weights) or not 0 < len(windows) <= _MOST_WINDOWS:
        return None
    overlapping = tuple(window for window in windows if window is not None)
    summed = math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces)
    has_channels = estimate(summed) > math.prod(window.count for window in overlapping)
    if len(overlapping) < len(windows) or not has_channels:
        return None
    return _Candidate(steps, machine, Convolution(step, image, weights, overlapping))


def _moving(step: LoopNest, index: AffineExpr) -> list[int]:
    return [loop for loop in index.loops if step.sizes[loop] != 1]


def _window(steps: LoopProgram, step: LoopNest, index: AffineExpr) -> Window | None:
    """Return a dimension of the image along which taps slide that overlap."""
    loops = _moving(step, index)
    taps, results = ([loop for loop in loops if step.reduction[loop] is reduces] for reduces in (True, False))
    if len(taps) != 1 or len(results) != 1 or steps.varies(step.sizes[results[0]]):
        return None
    count, stride = step.sizes[taps[0]], index.factors[results[0]]
    if not isinstance(count, int) or not isinstance(stride, int) or not 0 < stride < count:
        return None
    return Window(results[0], taps[0], count, stride)


def _moves_by_one(found: Convolution) -> bool:
    return all(index.factors[window.taps] in (0, 1) for index in found.image.indices for window in found.windows)


def _has_taps_of_its_own(found: Convolution) -> bool:
    return all(w.taps in found.weights.loops and w.results not in found.weights.loops for w in found.windows)


def _slides_along_one_dimension(found: Convolution) -> bool:
    return all(
        sum(not {window.taps, window.results}.isdisjoint(index.loops) for index in found.image.indices) == 1
        for window in found.windows
    )


def _use(case: _Candidate) -> None:
    """Take Winograd's way where it is faster, or where all convolutions that can do so are told to."""
    steps, step, costs = case.steps, case.step, case.costs
    by = costs.best(algorithm_for(steps, step, case.machine))
    note(steps, step, _name(by) if by else "direct", _is_exact(by))
    if by:
        steps.replace_step(step, winograd_steps(case.found, by, case.machine.fused, costs.block(by)))


USE_WINOGRAD = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_candidate, steps, machine, known_accesses(steps)),
    _use,
    {
        **CAN_TAKE_FEWER_PRODUCTS,
        "a tap is the next element of the image": lambda case: _moves_by_one(case.found),
        "each tap has a weight, the same for all results": lambda case: _has_taps_of_its_own(case.found),
        "a window slides along one dimension": lambda case: _slides_along_one_dimension(case.found),
    },
)


# Which of them become others, and how.

# Results of tiles along a dimension that are tried, and of those that are asked for.
_TILES = (2, 4, 6)
_FORCED: Mapping[str, Sequence[int]] = {
    "direct": (),
    "strassen": (),
    "winograd2": (2,),
    "winograd4": (4,),
    "winograd6": (6,),
}

# The time of a vector that is stored before products or loaded behind them, for each place that a transform computes it
# of; beside one that a product multiplies and adds.
_TRANSFORM_COST = 1.15

# Places of a tile: with more (49 in the stem of ResNet-18), a network's error is more than twice that of plain sums.
_MOST_PLACES = 36

# Plain sums of fewer vectors stay: the nests that they would become take longer to compile. So do those, and smaller
# tiles, that take longer by no more than this part: their errors are less, too.
_LEAST_VECTORS = 100_000
_LEAST_GAIN = 0.02

# What last tiles that are not whole cost: nests of their own, which take as long to compile as those of whole ones.
_PARTIAL_COST = 1.1

# Tiles of a block, without which its products read their weights too often.
_FEWEST_TILES = 8

_BYTES = 4


# The transforms of each window of a convolution; none: plain sums.
_Tiling = tuple[Transforms, ...]


def _name(by: _Tiling) -> str:
    """As one of ``_FORCED``, where tiles are as large along all dimensions."""
    return "winograd" + "x".join(dict.fromkeys(str(own.results) for own in by))


def _is_exact(by: _Tiling) -> bool:
    return math.prod(own.products for own in by) <= _MOST_PLACES


class _Costs:
    """Of a convolution whose loops have ``sizes``, one iteration where that varies between calls."""

    def __init__(self, found: Convolution, sizes: Sequence[int], machine: Machine) -> None:
        self.found = found
        self._sizes = sizes
        self._machine = machine
        self._lanes = machine.vector_bytes // _BYTES

    def best(self, algorithm: str, part: float = 1.0) -> _Tiling:
        """The transforms of each window, those that ``algorithm`` has if it says so; none if ``part`` of the time of
        the plain sum is no longer."""
        tried = [*self._tried(_FORCED.get(algorithm, _TILES))]
        if algorithm in _FORCED:
            return tried[0] if tried else ()
        if math.prod(self._sizes) < _LEAST_VECTORS * self._lanes:
            return ()
        costs = {(): self._plain() * part, **{by: self._of(by) for by in tried if _is_exact(by)}}
        return next(by for by, cost in costs.items() if cost <= (1 + _LEAST_GAIN) * min(costs.values()))

    def _tried(self, tiles: Sequence[int]) -> Iterator[_Tiling]:
        taps = [window.most_taps for window in self.found.windows]
        along = [[transforms(results, count) for results in tiles if has_transforms(results, count)] for count in taps]
        return itertools.product(*along)

    def block(self, by: _Tiling) -> tuple[int, ...]:
        """The tiles along each dimension to work on at a time; none where the second cache holds all of them, or cannot
        hold the weights beside."""
        images = math.prod(self._sizes[loop] for loop in self.found.images)
        tile = self._moved(by) // images * _BYTES
        counts = self._counts(by)
        most = MOST_LOCAL_BYTES // tile
        fits = tile * math.prod(counts) * images <= self._machine.second_level
        if fits or self._weights(by) * _BYTES > self._machine.second_level or most < _FEWEST_TILES:
            return ()
        block: list[int] = []
        for count in reversed(counts):
            block.insert(0, cut(count, min(count, most // math.prod(block)), 1))
        return tuple(block)

    def _plain(self) -> float:
        """The time of so many operations on whole vectors."""
        return self._products(math.prod(self._sizes), self._product(self.found.weights.loops))

    def _of(self, by: _Tiling) -> float:
        """As :meth:`_plain`, by Winograd's way. Results are stored while nothing is multiplied."""
        tiles = math.prod(self._counts(by))
        every = self._product(frozenset(range(len(self._sizes))) - self.found.slid.keys() - self.found.taps.keys())
        moved = tiles * self._moved(by)
        time = self._products(tiles * self._terms(by) * every, self._weights(by))
        time += _TRANSFORM_COST * max(own.products for own in by) * moved / self._lanes
        time += self._far(self._product(self.found.step.outputs[0].loops))
        if not self.block(by) and self._machine.streams(moved * _BYTES):
            time += 2 * self._far(moved)
        return time if self._divides(by) else time * _PARTIAL_COST

    def _products(self, count: int, weights: int) -> float:
        return time_of_products(count / self._lanes, self._far(weights))

    def _divides(self, by: _Tiling) -> bool:
        return all(self._sizes[loop] % by[k].results == 0 for loop, k in self.found.slid.items())

    def _counts(self, by: _Tiling) -> list[int]:
        return [-(-self._sizes[loop] // by[k].results) for loop, k in self.found.slid.items()]

    def _terms(self, by: _Tiling) -> int:
        """Products of a tile for one channel and filter: those of each phase at each place."""
        spans = [spans_by_places(*pair) for pair in zip(self.found.windows, by, strict=True)]
        return math.prod(sum(len(own.places) * len(own.phases) for own in each) for each in spans)

    def _moved(self, by: _Tiling) -> int:
        """Elements of a tile of all images, and of its products."""
        found = self.found
        still = found.slid.keys() | found.taps.keys()
        results = math.prod(own.products for own in by) * self._product(found.step.outputs[0].loops - still)
        return self._terms(by) * self._product(found.image.loops - still) + results

    def _weights(self, by: _Tiling) -> int:
        return self._terms(by) * self._product(self.found.weights.loops - self.found.taps.keys())

    def _product(self, loops: frozenset[int]) -> int:
        return math.prod(self._sizes[loop] for loop in loops)

    def _far(self, elements: int) -> float:
        return self._machine.far(elements * _BYTES)
