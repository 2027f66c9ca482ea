"""Order of the loops around the register tile, and blocks of reductions, chosen by bytes that miss in caches.

Take the outermost level whose operands fit a cache together. The data inside it is fetched into that cache once, and
again for each iteration of an outer loop that indexes it. Rows at a distance that is a multiple of a power of two share
few of a cache's sets. So operands may need more cache than their size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.kernel_spec import AnyNest, AnyOperand, KernelSpec, Operand
from torchmdla.devices.cpu.schedule.partition import largest_share
from torchmdla.devices.cpu.schedule.streams import streams
from torchmdla.devices.cpu.target.machine import Machine

# The cycles to fetch a byte from beyond the first-level cache, mostly hidden by arithmetic, and the part of a cache
# that operands may fill.
_SECOND_LEVEL_BYTE = 1 / 400
_FILLED = 0.75

# Misses below this part of the arithmetic's time are hidden by it.
_HIDDEN = 0.1

# The most loops that are permuted, the tasks that must remain outside of a reduction's blocks, and the fewest steps in
# such a block.
_MOST_PERMUTED = 4
_TASKS = 8
_LEAST_STEPS = 96

# The numbers of blocks of a reduction, the lengths of blocks of a long one, and the numbers of tiles in a block around
# such blocks.
_BLOCKS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_LENGTHS = (512, 256, 128)
_TILES_OF_BLOCK = (2, 3, 4, 6, 8, 16, 32)

# If the number of tiles that share a prefetched block is dynamic, _FEWEST_PARTS is the fewest. Inputs with fewer uses
# are fast enough without prefetching. So are blocks below this part of the first-level cache, or below the second part
# if an input does not fit the second-level cache.
_FEWEST_PARTS = 3
_FEWEST_USES = 6
_LEAST_BLOCK = 0.5
_LEAST_FAR_BLOCK = 0.125

# The prefetch distance of a stream that is read in order, in bytes: two pages.
_AHEAD = 2 << 12


@dataclass(frozen=True)
class Level:
    """Loop over blocks of ``step`` iterations of the nest's loop ``loop``."""

    loop: int
    step: int


@dataclass(frozen=True)
class Prefetch:
    """Prefetch of the next block of an input.

    Attributes:
        operand: the number of the input.
        depth: the level whose iterations each read one block. The next iteration reads the following block.
        block: the size of a block, in bytes.
        parts: the number of tiles inside the level, which prefetch one part each. If their number is dynamic, this is
            the least number for which they prefetch. More tiles share the block, and fewer do not prefetch.
        distance: the prefetch distance in bytes, for an input that is read once; 0 for the size of a block.
    """

    operand: int
    depth: int
    block: int
    parts: int
    distance: int = 0


def choose_levels(
    nest: KernelSpec,
    machine: Machine,
    order: Sequence[int],
    reduction: Sequence[int],
    tiles: Sequence[int],
    cycles: float,
) -> tuple[Level, ...]:
    """Return the levels around a register tile of ``tiles`` whose arithmetic takes ``cycles``.

    ``order`` are the parallel loops in the preferred order if memory does not matter. ``reduction`` are the loops that
    reduce, outermost first. Without them, the reduction has no blocks.
    """
    plain = tuple(Level(loop, tiles[loop]) for loop in order)
    best, least = plain, miss_cycles(nest, machine, plain) + idle_cycles(nest, machine, plain, cycles)
    if least <= _HIDDEN * cycles:
        return best
    searches = _SEARCHES if _rereads_memory(nest, machine) else _SEARCHES[:-1]
    for search, gain, better in searches if reduction else _SEARCHES[:1]:
        for levels in search(nest, plain, reduction, tiles):
            cost, most = miss_cycles(nest, machine, levels), min(least - gain * cycles, better * least)
            if cost < most and (cost := cost + idle_cycles(nest, machine, levels, cycles)) < most:
                best, least = levels, cost
        if least <= _HIDDEN * cycles:
            break
    return best


def levels_by_cost(
    nest: KernelSpec, machine: Machine, order: Sequence[int], reduction: Sequence[int], tiles: Sequence[int]
) -> list[tuple[Level, ...]]:
    """Return the candidates of :func:`choose_levels`, best first.

    They are the orders of the loops around a register tile, without and with blocks of a reduction.
    """
    plain = tuple(Level(loop, tiles[loop]) for loop in order)
    searches = [search for search, *_ in _SEARCHES] if reduction else [_orders]
    candidates = dict.fromkeys(levels for search in searches for levels in search(nest, plain, reduction, tiles))
    return sorted(candidates, key=lambda levels: miss_cycles(nest, machine, levels))


def choose_prefetch(nest: AnyNest, known: KernelSpec, machine: Machine, levels: Sequence[Level]) -> Prefetch | None:
    """Return the prefetch for ``levels``: the consecutive blocks of the largest input that has such blocks.

    Without it, the first tile that needs a new block would wait for the whole block, and memory would be idle during
    the other tiles. Weights that fit the second-level cache are prefetched too, since other kernels have evicted them.

    ``known`` is the nest at typical sizes. The number of tiles that share a block may be dynamic, but not the layout of
    the block.
    """
    if any(nest.reduction[level.loop] for level in levels) or len({level.loop for level in levels}) < len(levels):
        return None
    trips = [-(-known.sizes[level.loop] // level.step) for level in levels]
    uses = [
        math.prod(n for n, s in zip(known.sizes, operand.strides, strict=True) if not s) for operand in known.inputs
    ]
    blocks = [_blocks_of(nest, k, levels, trips) for k, count in enumerate(uses) if count >= _FEWEST_USES]
    largest = machine.second_level
    sizes = {each: size for each, size in filter(None, blocks) if _least_block(size, machine) <= each.block <= largest}
    return max(sizes, key=lambda each: sizes[each], default=None) or _prefetch_stream(
        nest, known, machine, levels, trips
    )


def _least_block(size: int, machine: Machine) -> float:
    """Return the bytes of the smallest blocks of an input of ``size`` bytes that are prefetched."""
    return machine.first_level * (_LEAST_BLOCK if size <= machine.second_level else _LEAST_FAR_BLOCK)


def _prefetch_stream(
    nest: AnyNest, known: KernelSpec, machine: Machine, levels: Sequence[Level], trips: Sequence[int]
) -> Prefetch | None:
    """Return the prefetch of a stream: an input that is read once and comes from memory.

    The input is read sequentially, or in several rows of bytes that are too short for the hardware prefetcher.
    """
    if nest.is_dynamic:
        return None
    for number, operand in enumerate(known.inputs):
        blocks = _blocks_of(nest, number, levels, trips)
        if not blocks or blocks[0].parts != 1 or operand not in streams(known, machine):
            continue
        if _is_ascending(known, operand, levels):
            return replace(blocks[0], distance=_AHEAD)
        if ELEMENT_BYTES[storage_type(operand.element)] == 1:
            return replace(blocks[0], distance=blocks[0].block)
    return None


def _is_ascending(nest: KernelSpec, operand: Operand, levels: Sequence[Level]) -> bool:
    """Return whether each step of a reduction reads data after the data of the previous step."""
    steps = [s for s, reduces, n in zip(operand.strides, nest.reduction, nest.sizes, strict=True) if reduces and n > 1]
    extents = {level.loop: level.step for level in levels}
    within = [operand.strides[loop] * extent for loop, extent in extents.items() if extent > 1]
    return bool(steps) and max(within, default=0) <= min(steps)


def _blocks_of(
    nest: AnyNest, number: int, levels: Sequence[Level], trips: Sequence[int]
) -> tuple[Prefetch, int] | None:
    """Return the blocks of an input, and its size in bytes, if consecutive iterations read consecutive blocks.

    ``trips`` are the iterations of ``levels``.
    """
    operand = nest.inputs[number]
    moving = [k for k, level in enumerate(levels) if trips[k] > 1 and operand.strides[level.loop]]
    if not moving or not has_static_layout(nest, operand):
        return None
    extents = list(nest.sizes)
    for level in (levels[k] for k in moving):
        extents[level.loop] = level.step
    size, depth = ELEMENT_BYTES[storage_type(operand.element)], moving[-1]
    block = size * math.prod(e for e, stride in zip(extents, operand.strides, strict=True) if stride)
    follows = size * operand.strides[levels[depth].loop] * levels[depth].step == block
    if not follows or not isinstance(block, int):
        return None
    varies = any(isinstance(nest.sizes[level.loop], Size) for level in levels[depth + 1 :])
    parts = _FEWEST_PARTS if varies else math.prod(trips[depth + 1 :])
    return Prefetch(number, depth, block, parts), block * math.prod(trips[k] for k in moving)


def has_static_layout(nest: AnyNest, operand: AnyOperand) -> bool:
    """Return whether the elements of an operand that one tile reads have the same layout at all sizes."""
    return all(
        isinstance(stride, int) and (not stride or not reduces or isinstance(size, int))
        for stride, reduces, size in zip(operand.strides, nest.reduction, nest.sizes, strict=True)
    )


def _orders(
    nest: KernelSpec, plain: Sequence[Level], _reduction: Sequence[int] = (), _tiles: Sequence[int] = ()
) -> Iterator[tuple[Level, ...]]:
    """Yield every order of the loops that have more than one tile."""
    moving = [level for level in plain if nest.sizes[level.loop] > level.step]
    still = tuple(level for level in plain if level not in moving)
    if len(moving) <= _MOST_PERMUTED:
        for order in itertools.permutations(moving):
            yield (*order, *still)


def _blocked_orders(
    nest: KernelSpec, plain: Sequence[Level], reduction: Sequence[int], tiles: Sequence[int]
) -> Iterator[tuple[Level, ...]]:
    """Yield every order with blocks of the outermost loop that reduces.

    Blocks are at every depth that leaves enough tasks outside. A reduction across lanes does not have blocks: its lanes
    are combined once.
    """
    loop, steps = reduction[0], _block_steps(nest, reduction, tiles)
    for order in _orders(nest, plain):
        tasks = 1
        for depth, level in enumerate(order):
            if tasks >= _TASKS:
                for step in steps:
                    yield (*order[:depth], Level(loop, step), *order[depth:])
            tasks *= -(-nest.sizes[level.loop] // level.step)


def _rereads_memory(nest: KernelSpec, machine: Machine) -> bool:
    """Return whether any order of loops reads some operand from memory again, since two operands are in no cache."""
    counts = (math.prod(n for n, s in zip(nest.sizes, each.strides, strict=True) if s) for each in nest.operands)
    bytes_ = [n * ELEMENT_BYTES[storage_type(each.element)] for n, each in zip(counts, nest.operands, strict=True)]
    return sum(map(machine.comes_from_memory, bytes_)) > 1


def _doubly_blocked_orders(
    nest: KernelSpec, plain: Sequence[Level], reduction: Sequence[int], tiles: Sequence[int]
) -> Iterator[tuple[Level, ...]]:
    """Yield every order with blocks of some tiles of one loop, without and with blocks of a reduction inside.

    A block of the other factor is then read for all of these tiles.
    """
    steps = _block_steps(nest, reduction, tiles)
    inside = [(), *((Level(reduction[0], step),) for step in steps)]
    for order in _orders(nest, plain):
        for level, count in itertools.product(order, _TILES_OF_BLOCK):
            block = Level(level.loop, level.step * count)
            if -(-nest.sizes[block.loop] // block.step) >= _TASKS:
                yield from ((block, *blocks, *order) for blocks in inside)


def _block_steps(nest: KernelSpec, reduction: Sequence[int], tiles: Sequence[int]) -> list[int]:
    """Return the possible steps of blocks of the outermost loop that reduces, the longest first."""
    if any(tiles[d] > 1 for d in reduction):
        return []
    size, inner = nest.sizes[reduction[0]], math.prod(nest.sizes[d] for d in reduction[1:])
    counts = {*_BLOCKS, *(-(-size // length) for length in _LENGTHS)}
    steps = sorted({-(-size // count) for count in counts}, reverse=True)
    return [step for step in steps if step * inner >= _LEAST_STEPS and step < size]


# Searches for another order of loops, the simplest first. An order must gain the first part of the arithmetic's time,
# and reduce the misses to the second part.
_SEARCHES = (
    (_orders, 0.06, 0.8),
    (_blocked_orders, 0.06, 0.8),
    (_doubly_blocked_orders, 0.03, 0.9),
)


def miss_cycles(nest: KernelSpec, machine: Machine, levels: Sequence[Level]) -> float:
    """Return the cycles for repeated cache misses.

    The first read of each byte is not counted, since it comes from memory in any order. Nor are results, which are
    written once.
    """
    operands = _read_operands(nest, levels)
    first, second = (
        _missed_bytes(nest, machine, levels, operands, capacity, max(1, capacity // (ways * machine.line)))
        for capacity, ways in ((machine.first_level, 8), (machine.second_level, machine.ways))
    )
    once = sum(_lines(operand, nest.sizes, machine)[0] for operand in _inputs(nest)) * machine.line
    return (first - once) * _SECOND_LEVEL_BYTE + (second - once) / machine.memory_bytes


def idle_cycles(nest: KernelSpec, machine: Machine, levels: Sequence[Level], cycles: float) -> float:
    """Return the cycles for which all threads together wait for the busiest one, if they share leading levels.

    The arithmetic of the nest takes ``cycles``.
    """
    if machine.threads == 1:
        return 0.0
    blocks: dict[int, tuple[int, int]] = {}
    share = 1.0
    for level in levels:
        if nest.reduction[level.loop] or level.loop in blocks:
            break
        blocks[level.loop] = nest.sizes[level.loop], level.step
        share = min(share, largest_share(list(blocks.values()), 1, machine.threads))
    return (share * machine.threads - 1) * cycles


def _results(nest: KernelSpec) -> tuple[Operand, ...]:
    return (nest.epilogue or nest).outputs


def _inputs(nest: KernelSpec) -> tuple[Operand, ...]:
    """Return the inputs, with those of the epilogue."""
    return nest.operands[: -len(_results(nest))]


def _read_operands(nest: KernelSpec, levels: Sequence[Level]) -> list[Operand]:
    """Return all inputs, and the scratch of partial results if the reduction has blocks.

    The scratch is included twice for each output, since it is read and written. Its elements are adjacent.
    """
    operands = list(_inputs(nest))
    first = next((k for k, level in enumerate(levels) if nest.reduction[level.loop]), None)
    if first is not None:
        outside = {level.loop: level.step for level in levels[:first]}
        inside = {level.loop for level in levels[first:]}
        for output in nest.outputs:
            strides, distance = [0] * len(nest.sizes), 1
            for d in sorted(inside, key=lambda d: output.strides[d]):
                if output.strides[d]:
                    strides[d], distance = distance, distance * outside.get(d, nest.sizes[d])
            operands += [Operand(output.element, tuple(strides))] * 2
    return operands


def _missed_bytes(
    nest: KernelSpec, machine: Machine, levels: Sequence[Level], operands: Sequence[Operand], capacity: int, sets: int
) -> float:
    """Return the bytes of ``operands`` that are fetched into a cache of ``capacity`` bytes.

    Data that does not fit even for one tile is fetched for each tile. Neighbouring blocks of a loop share their
    overlap. Results take space, but they need not stay, so conflicts between their lines do not matter.
    """
    extents = list(nest.sizes)

    def space() -> float:
        results = sum(_lines(result, extents, machine)[0] for result in _results(nest)) * machine.line
        return results + sum(_occupied_bytes(operand, extents, machine, sets) for operand in operands)

    depth = 0
    while depth < len(levels) and space() > _FILLED * capacity:
        extents[levels[depth].loop] = min(levels[depth].step, extents[levels[depth].loop])
        depth += 1
    total = 0.0
    for operand in operands:
        stays = _occupied_bytes(operand, extents, machine, sets) <= capacity
        moving = [
            k for k in range(depth) if not stays or operand.strides[levels[k].loop] or nest.reduction[levels[k].loop]
        ]
        last = max(moving, default=-1)
        widened = list(extents)
        if stays and moving and operand.strides[levels[last].loop]:
            widened[levels[last].loop] = _enclosing_extent(nest, levels, last)
            last -= 1
        trips = math.prod(-(-_enclosing_extent(nest, levels, k) // levels[k].step) for k in range(last + 1))
        total += trips * _lines(operand, widened, machine)[0] * machine.line
    return total


def _enclosing_extent(nest: KernelSpec, levels: Sequence[Level], depth: int) -> int:
    """Return the iterations of a level's loop in the block around that level."""
    outer = [other.step for other in levels[:depth] if other.loop == levels[depth].loop]
    return outer[-1] if outer else nest.sizes[levels[depth].loop]


def _occupied_bytes(operand: Operand, extents: Sequence[int], machine: Machine, sets: int) -> float:
    """Return the bytes that an operand occupies in a cache of ``sets`` sets.

    Conflicts count: its lines may share few sets.
    """
    lines, rows = _lines(operand, extents, machine)
    distinct = 1
    for count, distance in rows:
        distinct *= min(count, sets // math.gcd(sets, distance)) if distance else count
    ways = lines / min(distinct, sets)
    return max(lines * machine.line, (ways - 2) * sets * machine.line)


def _lines(operand: Operand, extents: Sequence[int], machine: Machine) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of cache lines of an operand, and the lines as nested rows.

    Each row is a count and a distance in lines. The distance is 0 if it is not a whole number of lines.
    """
    size = ELEMENT_BYTES[storage_type(operand.element)]
    rows: list[tuple[int, int]] = []
    for distance, count in _runs(operand, extents):
        span = distance * size
        if not rows and span < machine.line:
            rows.append((-(-span * count // machine.line), 1))
        else:
            rows.append((count, 0 if span % machine.line else span // machine.line))
    return math.prod(count for count, _ in rows), rows


def _runs(operand: Operand, extents: Sequence[int]) -> list[tuple[int, int]]:
    """Return the elements as nested rows, innermost first: element distance and count.

    Loops over the same elements, such as a window and the points that it slides over, are merged. The direction does
    not matter.
    """
    runs: list[tuple[int, int]] = []
    for stride, extent in sorted(zip(map(abs, operand.strides), extents, strict=True)):
        if not stride or extent == 1:
            continue
        if runs and stride % runs[-1][0] == 0 and stride <= runs[-1][0] * runs[-1][1]:
            distance, count = runs[-1]
            runs[-1] = distance, (extent - 1) * (stride // distance) + count
        else:
            runs.append((stride, extent))
    return runs
