"""Convolutions by Winograd's algorithm (:mod:`~torchmdla.devices.cpu.winograd`), which needs fewer products.

A convolution with overlapping taps becomes four steps. The weights are transformed (they depend on parameters alone, so
they are packed once). Tiles of the image are transformed. There is a product of matrices for each place in a tile.
Results are transformed back with the epilogue. In one dimension, with three taps, stride one, tiles of two results, and
an image of eight places::

    nest d0:16 d1:6 d2:16+ d3:3+ {                  nest d0:16 d1:16 { transformed weights w[0..3, d0, d1] }
      i0 = input0[d2, d1 + d3]                      nest d0:16 d1:3 { transformed tiles v[0..3, d0, d1] = …
      i1 = parameter1[d0, d2, d3]             →          input0[d0, 2*d1 + 0..3] }
      o0 = from 0.0 : f32                           nest d0:4 d1:16 d2:3 d3:16+ { p[d0, d1, d2] = … v * w }
      o0 + i0 * i1 }                                nest d0:16 d1:3 { result2[d0, 2*d1 + 0..1] = … p[0..3, d0, d1] }

If tiles do not divide the image, the last ones along a dimension have separate nests. These read zeros outside of the
image, and omit results that do not exist.
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
from torchmdla.devices.cpu.passes.algorithms import record_algorithm, select_algorithm
from torchmdla.devices.cpu.passes.fewer_products import BILINEAR_REQUIREMENTS, time_of_products
from torchmdla.devices.cpu.passes.precompute import IsKnown, parameter_predicate
from torchmdla.devices.cpu.passes.tile_fusion import MOST_LOCAL_BYTES, choose_extent
from torchmdla.devices.cpu.passes.winograd_nests import Convolution, Window, spans_by_places, winograd_steps
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS, Captured, Rule
from torchmdla.devices.cpu.winograd import Transforms, has_transforms, transforms

# With more windows than this, tiles have too many places.
_MOST_WINDOWS = 2


def is_faster_by_winograd(steps: LoopProgram, step: LoopNest, is_known: IsKnown, machine: Machine, part: float) -> bool:
    """Return whether Winograd's algorithm computes a step in less than ``part`` of its time."""
    case = USE_WINOGRAD.case(partial(_match_convolution, steps, machine, is_known), step)
    return case is not None and bool(case.costs.best(machine.algorithms, part))


@dataclass(frozen=True)
class _Candidate:
    steps: LoopProgram
    machine: Machine
    convolution: Convolution

    @property
    def step(self) -> LoopNest:
        return self.convolution.step

    @property
    def costs(self) -> _Costs:
        sizes = [1 if self.steps.is_varying(size) else static(size) for size in self.step.sizes]
        return _Costs(self.convolution, sizes, self.machine)


def _match_convolution(
    steps: LoopProgram, machine: Machine, is_known: IsKnown, step: LoopNest, match: Captured
) -> _Candidate | None:
    """Return the step as a convolution over channels, with taps that are known ahead, if it is one."""
    image, weights = match["left"].payload, match["right"].payload
    windows = [_window(steps, step, index) for index in image.indices if len(_iterating_loops(step, index)) > 1]
    if not is_known(weights) or not 0 < len(windows) <= _MOST_WINDOWS:
        return None
    overlapping = tuple(window for window in windows if window is not None)
    summed = math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces)
    has_channels = estimate(summed) > math.prod(window.count for window in overlapping)
    if len(overlapping) < len(windows) or not has_channels:
        return None
    return _Candidate(steps, machine, Convolution(step, image, weights, overlapping))


def _iterating_loops(step: LoopNest, index: AffineExpr) -> list[int]:
    return [loop for loop in index.loops if step.sizes[loop] != 1]


def _window(steps: LoopProgram, step: LoopNest, index: AffineExpr) -> Window | None:
    """Return the window of an image dimension along which overlapping taps slide, else None."""
    loops = _iterating_loops(step, index)
    taps, results = ([loop for loop in loops if step.reduction[loop] is reduces] for reduces in (True, False))
    if len(taps) != 1 or len(results) != 1 or steps.is_varying(step.sizes[results[0]]):
        return None
    count, stride = step.sizes[taps[0]], index.factors[results[0]]
    if not isinstance(count, int) or not isinstance(stride, int) or not 0 < stride < count:
        return None
    return Window(results[0], taps[0], count, stride)


def _has_unit_steps(convolution: Convolution) -> bool:
    return all(
        index.factors[window.taps] in (0, 1) for index in convolution.image.indices for window in convolution.windows
    )


def _has_separate_taps(convolution: Convolution) -> bool:
    return all(
        w.taps in convolution.weights.loops and w.results not in convolution.weights.loops for w in convolution.windows
    )


def _slides_along_one_dimension(convolution: Convolution) -> bool:
    return all(
        sum(not {window.taps, window.results}.isdisjoint(index.loops) for index in convolution.image.indices) == 1
        for window in convolution.windows
    )


def _use_winograd(case: _Candidate) -> None:
    """Use Winograd's algorithm if it is faster, or if the setting requires it for all possible convolutions."""
    steps, step, costs = case.steps, case.step, case.costs
    tiling = costs.best(select_algorithm(steps, step, case.machine))
    record_algorithm(steps, step, _name(tiling) if tiling else "direct", _is_exact(tiling))
    if tiling:
        steps.replace_step(step, winograd_steps(case.convolution, tiling, case.machine.fused, costs.block(tiling)))


USE_WINOGRAD = Rule(
    SUM_OF_PRODUCTS,
    lambda steps, machine: partial(_match_convolution, steps, machine, parameter_predicate(steps)),
    _use_winograd,
    {
        **BILINEAR_REQUIREMENTS,
        "a tap is the next element of the image": lambda case: _has_unit_steps(case.convolution),
        "each tap has a weight, the same for all results": lambda case: _has_separate_taps(case.convolution),
        "a window slides along one dimension": lambda case: _slides_along_one_dimension(case.convolution),
    },
)


# Costs and tiles.

# Tile sizes, as results along a dimension: those that are tried, and those that a setting requires.
_TILES = (2, 4, 6)
_FORCED: Mapping[str, Sequence[int]] = {
    "direct": (),
    "strassen": (),
    "winograd2": (2,),
    "winograd4": (4,),
    "winograd6": (6,),
}

# The time to store a vector before products or to load it after them, for each place that a transform combines. The
# unit is the time of a vector that a product multiplies and adds.
_TRANSFORM_COST = 1.15

# The most places of a tile: with more (49 in the stem of ResNet-18), a network's error is more than twice that of plain
# sums.
_MOST_PLACES = 36

# Plain sums of fewer vectors are not replaced, as their nests take longer to compile. Plain sums, and smaller tiles,
# are preferred up to this loss of time, as their errors are smaller.
_LEAST_VECTORS = 100_000
_LEAST_GAIN = 0.02

# The cost of partial last tiles: their separate nests take as long to compile as those of whole tiles.
_PARTIAL_COST = 1.1

# The fewest tiles of a block; with fewer, its products would read their weights too often.
_FEWEST_TILES = 8

_BYTES = 4


# The transforms of each window of a convolution; an empty tiling is a plain sum.
_Tiling = tuple[Transforms, ...]


def _name(tiling: _Tiling) -> str:
    """Return the name of a tiling, which is one of ``_FORCED`` if tiles have the same size along all dimensions."""
    return "winograd" + "x".join(dict.fromkeys(str(transform.results) for transform in tiling))


def _is_exact(tiling: _Tiling) -> bool:
    return math.prod(transform.products for transform in tiling) <= _MOST_PLACES


class _Costs:
    """Cost model of a convolution whose loops have ``sizes``; a size that varies between calls counts as one."""

    def __init__(self, convolution: Convolution, sizes: Sequence[int], machine: Machine) -> None:
        self.convolution = convolution
        self._sizes = sizes
        self._machine = machine
        self._lanes = machine.vector_bytes // _BYTES

    def best(self, algorithm: str, part: float = 1.0) -> _Tiling:
        """Return the transforms of each window, those of ``algorithm`` if it specifies a tile size.

        Return an empty tiling if the plain sum takes no longer, where ``part`` scales the time of the plain sum.
        """
        tried = [*self._candidate_tilings(_FORCED.get(algorithm, _TILES))]
        if algorithm in _FORCED:
            return tried[0] if tried else ()
        if math.prod(self._sizes) < _LEAST_VECTORS * self._lanes:
            return ()
        costs = {
            (): self._direct_time() * part,
            **{tiling: self._winograd_time(tiling) for tiling in tried if _is_exact(tiling)},
        }
        return next(tiling for tiling, cost in costs.items() if cost <= (1 + _LEAST_GAIN) * min(costs.values()))

    def _candidate_tilings(self, tiles: Sequence[int]) -> Iterator[_Tiling]:
        taps = [window.most_taps for window in self.convolution.windows]
        along = [[transforms(results, count) for results in tiles if has_transforms(results, count)] for count in taps]
        return itertools.product(*along)

    def block(self, tiling: _Tiling) -> tuple[int, ...]:
        """Return the number of tiles along each dimension to work on at a time.

        Return an empty tuple if the second-level cache holds all tiles, or cannot hold the weights beside a block.
        """
        images = math.prod(self._sizes[loop] for loop in self.convolution.images)
        tile = self._transformed_elements(tiling) // images * _BYTES
        counts = self._counts(tiling)
        most = MOST_LOCAL_BYTES // tile
        fits = tile * math.prod(counts) * images <= self._machine.second_level
        if fits or self._weights(tiling) * _BYTES > self._machine.second_level or most < _FEWEST_TILES:
            return ()
        block: list[int] = []
        for count in reversed(counts):
            block.insert(0, choose_extent(count, min(count, most // math.prod(block)), 1))
        return tuple(block)

    def _direct_time(self) -> float:
        """Return the time of the plain sum, in operations on whole vectors."""
        return self._products(math.prod(self._sizes), self._product(self.convolution.weights.loops))

    def _winograd_time(self, tiling: _Tiling) -> float:
        """Return the time of Winograd's algorithm, in the unit of :meth:`_direct_time`.

        Stores of results do not overlap with products.
        """
        tiles = math.prod(self._counts(tiling))
        every = self._product(
            frozenset(range(len(self._sizes))) - self.convolution.slid.keys() - self.convolution.taps.keys()
        )
        moved = tiles * self._transformed_elements(tiling)
        time = self._products(tiles * self._terms(tiling) * every, self._weights(tiling))
        time += _TRANSFORM_COST * max(transform.products for transform in tiling) * moved / self._lanes
        time += self._memory_time(self._product(self.convolution.step.outputs[0].loops))
        if not self.block(tiling) and self._machine.is_streamed(moved * _BYTES):
            time += 2 * self._memory_time(moved)
        return time if self._divides(tiling) else time * _PARTIAL_COST

    def _products(self, count: int, weights: int) -> float:
        return time_of_products(count / self._lanes, self._memory_time(weights))

    def _divides(self, tiling: _Tiling) -> bool:
        return all(self._sizes[loop] % tiling[k].results == 0 for loop, k in self.convolution.slid.items())

    def _counts(self, tiling: _Tiling) -> list[int]:
        return [-(-self._sizes[loop] // tiling[k].results) for loop, k in self.convolution.slid.items()]

    def _terms(self, tiling: _Tiling) -> int:
        """Return the number of products of a tile for one channel and filter: those of each phase at each place."""
        spans = [spans_by_places(*pair) for pair in zip(self.convolution.windows, tiling, strict=True)]
        return math.prod(sum(len(span.places) * len(span.phases) for span in each) for each in spans)

    def _transformed_elements(self, tiling: _Tiling) -> int:
        """Return the number of elements of a tile of all images, and of its products."""
        convolution = self.convolution
        still = convolution.slid.keys() | convolution.taps.keys()
        results = math.prod(transform.products for transform in tiling) * self._product(
            convolution.step.outputs[0].loops - still
        )
        return self._terms(tiling) * self._product(convolution.image.loops - still) + results

    def _weights(self, tiling: _Tiling) -> int:
        return self._terms(tiling) * self._product(self.convolution.weights.loops - self.convolution.taps.keys())

    def _product(self, loops: frozenset[int]) -> int:
        return math.prod(self._sizes[loop] for loop in loops)

    def _memory_time(self, elements: int) -> float:
        return self._machine.memory_time(elements * _BYTES)
