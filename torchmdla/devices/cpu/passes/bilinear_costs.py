"""Choice of the algorithm of a contraction.

It is the algorithm that the machine's settings require, or the one that was measured to be the fastest. Otherwise costs
are compared. They are in operations on whole vectors.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.loop_program import Contraction, LoopNest, LoopProgram
from torchmdla.devices.cpu.ir.printer import nest_text
from torchmdla.devices.cpu.ir.work import work_of
from torchmdla.devices.cpu.passes.bilinear_algorithms import Convolution, Product
from torchmdla.devices.cpu.passes.bilinear_maps import PRODUCTS, Transforms, are_sums_exact
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.passes.tile_fusion import (
    FEWEST_ROWS,
    MOST_LOCAL_BYTES,
    balance_tile,
    busiest_time,
    choose_extent,
)
from torchmdla.devices.cpu.schedule.partition import join_cycles
from torchmdla.devices.cpu.target.machine import Machine

# Measurements count only if the machine's setting of algorithms is this one.
COST_MODEL = "fast"

# The first is the share of the time to fetch weights by which products take longer: most fetches overlap with products.
# The second is for shared memory: two threads fetch all weights in this multiple of the time that one needs for half.
_WAITING = 0.15
_SHARING = 1.7

# The number of threads that read memory as fast as if each were alone: servers have about this part of the bandwidth of
# their cores.
_FULL_SPEED = 8

# Plain sums of fewer vectors are not replaced, as the nests of other algorithms take longer to compile.
_LEAST_VECTORS = 100_000

_BYTES = 4


@dataclass(frozen=True)
class Elements:
    """Costs of the elements of a contraction, relative to a product of floats.

    Attributes:
        direct_bytes: The bytes of a weight.
        direct_part: The time of a product.
        bytes: The bytes of a sum of factors in another algorithm.
        part: The time of a product of such sums.
    """

    direct_bytes: int = _BYTES
    direct_part: float = 1.0
    bytes: int = _BYTES
    part: float = 1.0


class Choice:
    """Choice of the algorithm of ``step``, which multiplies by ``weights``.

    In costs, a size that varies between calls counts as one.
    """

    def __init__(
        self, steps: LoopProgram, step: LoopNest, weights: Access, machine: Machine, elements: Elements = Elements()
    ) -> None:
        self.steps = steps
        self.step = step
        self.machine = machine
        self._sizes = [1 if steps.is_varying(size) else static(size) for size in step.sizes]
        self._lanes = machine.vector_bytes // _BYTES
        self._elements = elements
        self._vectors = math.prod(self._sizes) / self._lanes * elements.direct_part
        fetching = machine.memory_time(self._count(weights.loops) * elements.direct_bytes)
        self._direct_time = self._products_time(self._vectors, fetching)

    def select(self) -> str:
        """Return one of :data:`~torchmdla.devices.cpu.target.machine.Algorithms`; ``fast`` lets costs decide."""
        if self.machine.algorithms == COST_MODEL and self.steps.measured:
            return self.steps.measured.get(self._name, COST_MODEL)
        return self.machine.algorithms

    def record(self, algorithm: str, is_exact: bool = True) -> None:
        """List the contraction with the algorithm that was chosen for it.

        Equal contractions share one entry, which counts them.
        """
        equal = self.steps.contractions.get(self._name)
        nodes, count = (self.step.nodes | equal.nodes, equal.count + 1) if equal else (self.step.nodes, 1)
        self.steps.contractions[self._name] = Contraction(work_of(self.step).loops, nodes, algorithm, count, is_exact)

    @cached_property
    def _name(self) -> str:
        """Return a hash of the computation of the contraction.

        No kernel has the same name, not even that of the plain sum.
        """
        return hashlib.sha256(f"algorithm of {nest_text(self.step.kernel)}".encode()).hexdigest()[:16]

    def _count(self, loops: Iterable[int]) -> int:
        return math.prod(self._sizes[loop] for loop in loops)

    def _memory_time(self, elements: float) -> float:
        return self.machine.memory_time(elements * _BYTES)

    def _products_time(self, computing: float, fetching: float) -> float:
        """Return the time of products that take ``computing``, and whose weights take ``fetching``."""
        return max(computing + _WAITING * fetching, max(_SHARING, self.machine.threads / _FULL_SPEED) * fetching)

    def _exchange_time(self, elements: float) -> float:
        """Return the time to store elements and to load them after all other steps, through memory.

        Of more than two threads, each reads elements that others have stored.
        """
        if self.machine.threads == 1:
            return 2 * self._memory_time(elements)
        return 2 * elements * _BYTES / self.machine.memory_bytes / self.machine.operation

    def _join_time(self, kernels: int) -> float:
        """Return the time of all threads to start and to join for more ``kernels``."""
        threads = self.machine.threads
        return kernels * threads * join_cycles(threads) / self.machine.operation if threads > 1 else 0.0

    def _balance(self, sizes: Sequence[int], tile: Sequence[int]) -> list[int]:
        """Return tiles of at most ``tile`` that threads share evenly."""
        return balance_tile(sizes, tile, [1] * len(sizes), self.machine.threads, FEWEST_ROWS)

    def _imbalance(self, sizes: Sequence[int], tile: Sequence[int]) -> float:
        """Return the time of the busiest thread for its tiles, relative to the mean of all threads without tiles."""
        threads = self.machine.threads
        return busiest_time(sizes, tile, threads, FEWEST_ROWS) * threads / math.prod(sizes) if threads > 1 else 1.0


# Tile sizes, as results along a dimension: those that are tried, and those that a setting requires.
_TILES = (2, 4, 6)
_FORCED = {"direct": (), "strassen": (), **{f"winograd{results}": (results,) for results in _TILES}}

# The time to store a vector before products or to load it after them, for each place that a transform combines. The
# unit is the time of a vector that a product multiplies and adds.
_TRANSFORM_COST = 1.15

# The most places of a tile: with more (49 in the stem of ResNet-18), a network's error is more than twice that of plain
# sums.
_MOST_PLACES = 36

# Plain sums, and smaller tiles, are preferred up to this loss of time, as their errors are smaller.
_LEAST_WINOGRAD_GAIN = 0.02

# The cost of partial last tiles: their separate nests take as long to compile as those of whole tiles.
_PARTIAL_COST = 1.1

# The fewest tiles of a block; with fewer, its products would read their weights too often.
_FEWEST_TILES = 8

# The transforms of each window of a convolution; an empty tiling is a plain sum.
_Tiling = tuple[Transforms, ...]


class WinogradChoice(Choice):
    """Choice of the tiles of a convolution by Winograd's algorithm, which computes ``replaced``.

    Weights that are not packed ahead are transformed in each call.
    """

    def __init__(
        self, steps: LoopProgram, replaced: LoopNest, convolution: Convolution, machine: Machine, is_packed: bool
    ) -> None:
        has_integers = convolution.word is not None
        elements = Elements(1, machine.part_of_products("i8"), 2, 1 / 2) if has_integers else Elements()
        super().__init__(steps, convolution.step, convolution.weights, machine, elements)
        self.replaced = replaced
        self.convolution = convolution
        self._is_packed = is_packed
        self._windows = convolution.windows
        results = [window.results for window in self._windows]
        self._extents = [window.extent for window in self._windows]
        self._moving = {*results, *(window.taps for window in self._windows)}
        # Loops over images are those of results that neither weights nor windows have.
        others = convolution.weights.loops.union(results)
        self._images = [k for k, reduces in enumerate(self.step.reduction) if not reduces and k not in others]

    def best(self, algorithm: str, part: float = 1.0) -> _Tiling:
        """Return the transforms of each window, those of ``algorithm`` if it specifies a tile size.

        Return an empty tiling if the plain sum takes no longer, where ``part`` scales the time of the plain sum.
        """
        sizes = _FORCED.get(algorithm, _TILES)
        along = [itertools.chain.from_iterable(map(window.transforms, sizes)) for window in self._windows]
        tried = [tiling for tiling in itertools.product(*along) if self._has_exact_sums(tiling)]
        if algorithm in _FORCED:
            return tried[0] if tried else ()
        if self._vectors < _LEAST_VECTORS:
            return ()
        exact = [tiling for tiling in tried if is_exact(tiling)]
        costs = {(): self._direct_time * part, **{t: self._time(t, self._best_block(t)) for t in exact}}
        most = (1 + _LEAST_WINOGRAD_GAIN) * min(costs.values())
        return next(tiling for tiling, cost in costs.items() if cost <= most)

    def _has_exact_sums(self, tiling: _Tiling) -> bool:
        """Return whether integers are summed without errors; sums of floats may have some."""
        if self.convolution.word is None:
            return True
        return are_sums_exact(tiling, self._count(k for k, reduces in enumerate(self.step.reduction) if reduces))

    def tiles(self, tiling: _Tiling) -> dict[int, int]:
        """Return the number of images and of tiles along each dimension to work on at a time, by loop.

        Return nothing if all tiles are faster at once, or if the second-level cache cannot hold the weights beside a
        block.
        """
        block = self._best_block(tiling)
        if not block:
            return {}
        order = in_memory_order(self.step, self.step.outputs[0])
        images = [loop for loop in order if loop in self._images and self.step.sizes[loop] != 1]
        return dict.fromkeys(images, 1) | dict(zip((window.results for window in self._windows), block, strict=True))

    def _best_block(self, tiling: _Tiling) -> list[int]:
        """Return :meth:`_block`, or nothing if more than two threads take less time for all tiles at once."""
        block = self._block(tiling)
        is_faster = self.machine.threads > 1 and self._time(tiling, []) < self._time(tiling, block)
        return [] if is_faster else block

    def _block(self, tiling: _Tiling) -> list[int]:
        """Return the tiles along each dimension of a block of one image; nothing where blocks do not pay."""
        tile = self._transformed_bytes(tiling) // self._count(self._images)
        counts = self._tile_counts(tiling)
        most = MOST_LOCAL_BYTES // tile
        fits = tile * math.prod(counts) * self._count(self._images) <= self.machine.second_level
        if (fits and self.machine.threads == 1) or most < _FEWEST_TILES:
            return []
        if self._weights(tiling) * self._elements.bytes > self.machine.second_level:
            return []
        block: list[int] = []
        for count in reversed(counts):
            block.insert(0, choose_extent(count, min(count, most // math.prod(block)), 1))
        # A block has one image.
        sizes = [self._count(self._images), *counts]
        return self._balance(sizes, [1, *block])[1:]

    def _time(self, tiling: _Tiling, block: Sequence[int]) -> float:
        """Return the time of Winograd's algorithm by blocks of tiles, or for all tiles at once without ``block``.

        Stores of results do not overlap with products.
        """
        counts = self._tile_counts(tiling)
        tiles = math.prod(counts)
        still = self._count(loop for loop in range(len(self._sizes)) if loop not in self._moving)
        moved = tiles * sum(self._transformed_elements(tiling))
        products = tiles * self._terms(tiling) * still * self._elements.part
        fetching = self.machine.memory_time(self._weights(tiling) * self._elements.bytes)
        time = self._products_time(products / self._lanes, fetching)
        weights = 0 if self._is_packed else self._weights(tiling)
        time += _TRANSFORM_COST * max(transform.products for transform in tiling) * (moved + weights) / self._lanes
        time += 2 * self._memory_time(weights)
        time += self._memory_time(self._count(self.step.outputs[0].loops))
        if block:
            time *= self._imbalance([self._count(self._images), *counts], [1, *block])
        elif self.machine.threads > 1 or self.machine.is_streamed(tiles * self._transformed_bytes(tiling)):
            time += self._exchange_time(tiles * self._transformed_bytes(tiling) / _BYTES) + self._join_time(2)
        is_whole = all(size % each.results == 0 for size, each in zip(self._extents, tiling, strict=True))
        return time if is_whole or self.convolution.word is not None else time * _PARTIAL_COST

    def _tile_counts(self, tiling: _Tiling) -> list[int]:
        return [-(-size // each.results) for size, each in zip(self._extents, tiling, strict=True)]

    def _terms(self, tiling: _Tiling) -> int:
        """Return the number of products of a tile for one channel and filter: those of each phase at each place."""
        pairs = zip(self._windows, tiling, strict=True)
        return math.prod(sum(len(places) * phases for places, phases in w.products(each)) for w, each in pairs)

    def _transformed_elements(self, tiling: _Tiling) -> tuple[int, int]:
        """Return the number of elements of a tile of all images, and of its products."""
        places = math.prod(transform.products for transform in tiling)
        results = places * self._count(self.step.outputs[0].loops - self._moving)
        return self._terms(tiling) * self._count(self.convolution.image.loops - self._moving), results

    def _transformed_bytes(self, tiling: _Tiling) -> int:
        image, results = self._transformed_elements(tiling)
        return image * self._elements.bytes + results * _BYTES

    def _weights(self, tiling: _Tiling) -> int:
        return self._terms(tiling) * self._count(self.convolution.weights.loops - self._moving)


def is_exact(tiling: _Tiling) -> bool:
    """Return whether the errors of a tiling are small enough for it to be chosen by costs."""
    return math.prod(transform.products for transform in tiling) <= _MOST_PLACES


# Operations for each element of the left factor and of the result: loads, additions and stores. For the result, each
# product's accumulator is initialised, stored, loaded and added. An operation takes the time of a multiply-add of a
# product, and a store that of two.
_LEFT_COST = 1 + 1 + 2 * PRODUCTS / 4
_RESULT_COST = (1 + 2 + 1 + 1) * PRODUCTS / 4 + 2

# Strassen's algorithm must gain at least this part of a plain sum's time.
_LEAST_STRASSEN_GAIN = 0.03

# Limits where all rows are one tile. The first is the part of the second-level cache that a product's left factor may
# fill, as every panel of weights reads it again. The second is the bytes of all products, which have to fit in the
# third-level cache beside other data.
_FILLED = 0.75
_MOST_BYTES = 8 << 20


class StrassenChoice(Choice):
    """Choice of Strassen's algorithm for a product, with ``tiles``, the rows of each loop to work on at a time."""

    def __init__(self, steps: LoopProgram, product: Product, machine: Machine) -> None:
        super().__init__(steps, product.step, product.right, machine)
        self.product = product
        self._weights = self._count(product.right.loops)
        self._left, self._result = (self._count(each.loops) for each in (product.left, self.step.outputs[0]))

    def is_profitable(self) -> bool:
        """Return whether Strassen's algorithm takes less time than a plain sum."""
        row = self.product.row
        halves = 2 * static(self.product.half(row)) / static(self.step.sizes[row])
        sums = (_LEFT_COST * self._left + _RESULT_COST * self._result) / self._lanes
        left, result = self._left * PRODUCTS / 4, self._result * PRODUCTS / 4
        through_memory = self._memory_time(self._weights * PRODUCTS / 4)
        fits, tiles, exchange = True, self.tiles(), 0.0
        if not tiles:
            exchange = self._exchange_time(left) + self._exchange_time(result)
            fits = self._left / 4 * _BYTES <= _FILLED * self.machine.second_level and result * _BYTES <= _MOST_BYTES
        if self.machine.threads == 1:
            time = sums + self._products_time(self._vectors * halves * PRODUCTS / 8, through_memory + exchange)
        else:
            # Many threads exchange data before and after products, which does not overlap with them.
            time = sums + self._products_time(self._vectors * halves * PRODUCTS / 8, through_memory) + exchange
            rows = [half if isinstance(half := self.product.half(loop), int) else 1 for loop in tiles]
            time = time * self._imbalance(rows, list(tiles.values())) if tiles else time + self._join_time(2)
        return fits and self._vectors >= _LEAST_VECTORS and time < (1 - _LEAST_STRASSEN_GAIN) * self._direct_time

    def tiles(self) -> dict[int, int]:
        """Return tiles of rows whose sums and products fit in a cache beside the sums of weights, by loop.

        If the cache cannot hold the sums of weights, all rows are one tile, and nothing is returned.
        """
        product, step = self.product, self.step
        if self._weights * PRODUCTS // 4 * _BYTES > self.machine.second_level // 2:
            return {}
        rows = self._count(product.rows)
        row_elements = self._result // rows // 2 + self._left // rows // 2
        room = min(MOST_LOCAL_BYTES, self.machine.second_level // 4) // (PRODUCTS * row_elements * _BYTES)
        tiles: dict[int, int] = {}
        for loop in reversed(product.rows):
            size = product.half(loop)
            tiles[loop] = choose_extent(size, max(1, min(size, room)), 1) if isinstance(size, int) else 1
            room //= tiles[loop]
        halves = [half if isinstance(half := product.half(loop), int) else 1 for loop in tiles]
        tiles = dict(zip(tiles, self._balance(halves, list(tiles.values())), strict=True))
        # The last of an odd number of rows does not have its other half in the same tile.
        is_odd = static(step.sizes[product.row]) % 2 == 1
        if is_odd and tiles[product.row] != product.half(product.row):
            return {}
        return {loop: tiles[loop] for loop in product.rows if tiles[loop] != product.half(loop)}
