"""Convolutions of three taps by fewer products, in Winograd's way (:mod:`~torchmdla.devices.cpu.winograd`).

A convolution of stride one becomes four steps: weights transformed (of parameters alone, so packed once), tiles of the
image transformed, a product of matrices for each place in a tile, and the results transformed back with the epilogue.
In one dimension, tiles of two results, an image of eight places::

    nest d0:16 d1:6 d2:16+ d3:3+ {                  nest d0:16 d1:16 { transformed weights w[0..3, d0, d1] }
      i0 = input0[d2, d1 + d3]                      nest d0:16 d1:3 { transformed tiles v[0..3, d0, d1] = …
      i1 = parameter1[d0, d2, d3]             →          input0[d0, 2*d1 + 0..3] }
      o0 = from 0.0 : f32                           nest d0:4 d1:16 d2:3 d3:16+ { p[d0, d1, d2] = … v * w }
      o0 + i0 * i1 }                                nest d0:16 d1:3 { result2[d0, 2*d1 + 0..1] = … p[0..3, d0, d1] }

Where tiles do not divide the image, the last ones along a dimension have nests of their own, which take what is outside
as zero and leave out results that there are none of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from torchmdla.compiler.sizes import estimate, static
from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, starts_from_zero
from torchmdla.devices.cpu.machine import Algorithms, Machine
from torchmdla.devices.cpu.passes.precompute import IsKnown, known_accesses
from torchmdla.devices.cpu.passes.tile_fusion import MOST_LOCAL_BYTES, cut
from torchmdla.devices.cpu.passes.winograd_nests import Convolution, winograd_steps
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS
from torchmdla.devices.cpu.winograd import KIND, TAPS, Transforms, transforms

# Along more dimensions than these, tiles have too many places.
_MOST_WINDOWS = 2


def use_winograd(steps: LoopProgram, machine: Machine) -> None:
    """Replaces convolutions that Winograd's way is faster for, in place."""
    is_known = known_accesses(steps)
    for step in steps.nests():
        found = _convolution(steps, step, is_known)
        if found is None:
            continue
        costs = _Costs(found, [1 if steps.varies(size) else static(size) for size in step.sizes], machine)
        if results := costs.best():
            by = transforms(results)
            position = steps.steps.index(step)
            steps.steps[position : position + 1] = winograd_steps(found, by, machine.fused, costs.block(by))


# Which steps are such convolutions.


def _convolution(steps: LoopProgram, step: LoopNest, is_known: IsKnown) -> Convolution | None:
    """The step as a convolution of stride one, over channels, with taps that are known ahead, if it is one."""
    if len(step.outputs) != 1 or step.tables or step.indexed_loops or not starts_from_zero(step):
        return None
    for match in SUM_OF_PRODUCTS.matches(step.values[0]):
        image, weights = match["left"].payload, match["right"].payload
        elements = {image.buffer.element, weights.buffer.element, step.values[0].type}
        if not is_known(weights) or elements != {KIND}:
            continue
        windows = tuple(_windows(steps, step, image, weights))
        summed = math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces)
        slides_elsewhere = sum(len(index.loops) > 1 for index in image.indices) > len(windows)
        if 0 < len(windows) <= _MOST_WINDOWS and estimate(summed) > TAPS ** len(windows) and not slides_elsewhere:
            return Convolution(step, image, weights, windows)
    return None


def _windows(steps: LoopProgram, step: LoopNest, image: Access, weights: Access) -> Iterator[tuple[int, int]]:
    """The loops over results and over taps of each dimension of the image along which three taps slide."""
    for index in image.indices:
        taps = [loop for loop in index.loops if step.reduction[loop]]
        results = [loop for loop in index.loops if not step.reduction[loop]]
        if len(taps) != 1 or len(results) != 1 or step.sizes[taps[0]] != TAPS:
            continue
        (tap,), (result,) = taps, results
        alone = all(other is index or not {tap, result} & set(other.loops) for other in image.indices)
        by_one = index.factors[tap] == index.factors[result] == 1
        fixed = step.sizes[result] != 1 and not steps.varies(step.sizes[result])
        if alone and by_one and fixed and tap in weights.loops and result not in weights.loops:
            yield result, tap


# Which of them become others, and how.

# Results of tiles that are tried, and of those that are asked for.
_TILES = (2, 4)
_FORCED: Mapping[Algorithms, int] = {"direct": 0, "strassen": 0, "winograd2": 2, "winograd4": 4}

# The time of a vector that a transform loads, computes or stores, beside one that a product multiplies and adds.
_TRANSFORM_COST = 0.7

# Plain sums of fewer vectors stay: the nests that they would become take longer to compile.
_LEAST_VECTORS = 100_000

# What last tiles that are not whole cost: nests of their own, which take as long to compile as those of whole ones.
_PARTIAL_COST = 1.25

# Tiles of a block, without which its products read their weights too often.
_FEWEST_TILES = 8

_BYTES = 4


class _Costs:
    """Of a convolution whose loops have ``sizes``, one iteration where that varies between calls."""

    def __init__(self, found: Convolution, sizes: Sequence[int], machine: Machine) -> None:
        self._found = found
        self._sizes = sizes
        self._machine = machine
        self._lanes = machine.vector_bytes // _BYTES

    def best(self) -> int:
        """Results of a tile along each dimension; 0 if the plain sum takes no longer."""
        if self._machine.algorithms in _FORCED:
            return _FORCED[self._machine.algorithms]
        if math.prod(self._sizes) < _LEAST_VECTORS * self._lanes:
            return 0
        costs = {0: self._plain(), **{results: self._of(transforms(results)) for results in _TILES}}
        return min(costs, key=lambda results: costs[results])

    def block(self, by: Transforms) -> tuple[int, ...]:
        """The tiles along each dimension to work on at a time; none where the second cache holds all of them, or cannot
        hold the weights beside."""
        images = math.prod(self._sizes[loop] for loop in self._found.images)
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
        weights = self._product(self._found.weights.loops)
        return math.prod(self._sizes) / self._lanes + self._machine.far(weights * _BYTES)

    def _of(self, by: Transforms) -> float:
        """As :meth:`_plain`, by Winograd's way."""
        tiles = math.prod(self._counts(by))
        every = self._product(frozenset(range(len(self._sizes))) - self._found.slid.keys() - self._found.taps.keys())
        transformed = 2 * _TRANSFORM_COST * tiles * self._moved(by)
        products = tiles * self._places(by) * every
        operations = (products + transformed) / self._lanes + self._machine.far(self._weights(by) * _BYTES)
        return operations if self._divides(by) else operations * _PARTIAL_COST

    def _divides(self, by: Transforms) -> bool:
        return all(self._sizes[result] % by.results == 0 for result in self._found.slid)

    def _places(self, by: Transforms) -> int:
        return math.prod([by.products] * len(self._found.windows))

    def _counts(self, by: Transforms) -> list[int]:
        return [-(-self._sizes[result] // by.results) for result in self._found.slid]

    def _moved(self, by: Transforms) -> int:
        """Elements of a tile of all images, and of its products."""
        accesses = (self._found.image, self._found.step.outputs[0])
        still = self._found.slid.keys() | self._found.taps.keys()
        return self._places(by) * sum(self._product(access.loops - still) for access in accesses)

    def _weights(self, by: Transforms) -> int:
        return self._places(by) * self._product(self._found.weights.loops - self._found.taps.keys())

    def _product(self, loops: frozenset[int]) -> int:
        return math.prod(self._sizes[loop] for loop in loops)
