"""The order of the loops around the register tile, and blocks of a loop that reduces, by the bytes that caches miss.

For an order of loops, what lies inside the outermost level whose operands fit a cache together is fetched into that
cache once, and again for every iteration of a loop outside that moves it. Rows at a distance that is a multiple of a
power of two share few of a cache's sets, so operands may need more room than they have bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, stored
from torchmdla.devices.cpu.kernel_spec import AnyNest, AnyOperand, KernelSpec, Operand
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.schedule.streams import streams

# Cycles to fetch a byte past the first cache, most of which arithmetic hides, and the part of a cache that operands may
# fill.
_SECOND_LEVEL_BYTE = 1 / 400
_FILLED = 0.75

# Misses below this part of the arithmetic's time are hidden by it; the least gain (of that time, and of the
# misses) that is worth another order of loops.
_HIDDEN = 0.1
_GAIN = 0.06
_BETTER = 0.8

# Loops that are permuted, tasks that blocks of a reduction must leave, and the fewest steps in such a block.
_MOST_PERMUTED = 4
_TASKS = 8
_LEAST_STEPS = 96

# Where it varies how many tiles share the fetching of the next block: the fewest for which they do. What is used fewer
# times comes as fast as memory goes without, as do blocks of fewer bytes than this part of the first cache.
_FEWEST_PARTS = 3
_FEWEST_USES = 6
_LEAST_BLOCK = 0.5

# How far ahead of where it is read what is read once is fetched, in bytes: a page.
_AHEAD = 4096


@dataclass(frozen=True)
class Level:
    """A loop over blocks of ``step`` iterations of the nest's loop ``loop``."""

    loop: int
    step: int


@dataclass(frozen=True)
class Prefetch:
    """Each iteration of the level ``depth`` reads a block of input ``operand``, of ``block`` bytes, and the next one
    the block behind it. The ``parts`` tiles of the levels inside each fetch a part of that one ahead. Where their count
    is dynamic, ``parts`` is the least for which they do: more tiles share the block, fewer fetch nothing.
    ``distance``: how many bytes ahead, if not those of a block: of what is read once, from front to back."""

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
    """The levels around a register tile of ``tiles`` whose arithmetic takes ``cycles`` in all. ``order``: the parallel
    loops in the order to take if memory does not matter. ``reduction``: the loops that reduce, outermost first."""
    plain = tuple(Level(loop, tiles[loop]) for loop in order)
    found, least = plain, _cost(nest, machine, plain)
    if least <= _HIDDEN * cycles:
        return found
    for candidates in (_orders(nest, plain), _blocked(nest, plain, reduction, tiles)):
        for levels in candidates:
            cost = _cost(nest, machine, levels)
            if cost < min(least - _GAIN * cycles, _BETTER * least):
                found, least = levels, cost
        if least <= _HIDDEN * cycles:
            break
    return found


def levels_by_cost(
    nest: KernelSpec, machine: Machine, order: Sequence[int], reduction: Sequence[int], tiles: Sequence[int]
) -> list[tuple[Level, ...]]:
    """Every order of the loops around a register tile, and every one with blocks of a reduction, of those that
    :func:`choose_levels` chooses from, best first."""
    plain = tuple(Level(loop, tiles[loop]) for loop in order)
    found = dict.fromkeys([*_orders(nest, plain), *(_blocked(nest, plain, reduction, tiles) if reduction else ())])
    return sorted(found, key=lambda levels: _cost(nest, machine, levels))


def choose_prefetch(nest: AnyNest, known: KernelSpec, machine: Machine, levels: Sequence[Level]) -> Prefetch | None:
    """What to fetch ahead under ``levels``: blocks, one behind the other, of the largest input that has such. Of a new
    block, the first tile that needs it would wait for all of it, while memory is idle during the others. Weights that
    the second cache would hold are not there either: other kernels have filled it since.

    ``known`` is the nest at typical sizes. How many tiles share a block may vary, but not where its bytes lie."""
    if any(nest.reduction[level.loop] for level in levels) or len({level.loop for level in levels}) < len(levels):
        return None
    trips = [-(-known.sizes[level.loop] // level.step) for level in levels]
    uses = [math.prod(n for n, s in zip(known.sizes, own.strides, strict=True) if not s) for own in known.inputs]
    found = [_blocks_of(nest, k, levels, trips) for k, count in enumerate(uses) if count >= _FEWEST_USES]
    smallest, largest = _LEAST_BLOCK * machine.first_level, machine.second_level
    sizes = {each: size for each, size in filter(None, found) if smallest <= each.block <= largest}
    return max(sizes, key=lambda each: sizes[each], default=None) or _of_stream(nest, known, machine, levels, trips)


def _of_stream(
    nest: AnyNest, known: KernelSpec, machine: Machine, levels: Sequence[Level], trips: Sequence[int]
) -> Prefetch | None:
    """What is read once, and comes from memory: from front to back, or bytes of several rows, which are too short for a
    processor to foresee what it reads of them."""
    if nest.is_dynamic:
        return None
    for number, operand in enumerate(known.inputs):
        found = _blocks_of(nest, number, levels, trips)
        if not found or found[0].parts != 1 or operand not in streams(known, machine):
            continue
        if _rises(known, operand, levels):
            return replace(found[0], distance=_AHEAD)
        if ELEMENT_BYTES[stored(operand.element)] == 1:
            return found[0]
    return None


def _rises(nest: KernelSpec, operand: Operand, levels: Sequence[Level]) -> bool:
    """Whether each step of a reduction reads what lies behind what the one before it has read."""
    steps = [s for s, reduces, n in zip(operand.strides, nest.reduction, nest.sizes, strict=True) if reduces and n > 1]
    extents = {level.loop: level.step for level in levels}
    within = [operand.strides[loop] * extent for loop, extent in extents.items() if extent > 1]
    return bool(steps) and max(within, default=0) <= min(steps)


def _blocks_of(
    nest: AnyNest, number: int, levels: Sequence[Level], trips: Sequence[int]
) -> tuple[Prefetch, int] | None:
    """The blocks of an input that ``levels`` of ``trips`` walk, if they lie one behind the other, and its bytes."""
    operand = nest.inputs[number]
    moving = [k for k, level in enumerate(levels) if trips[k] > 1 and operand.strides[level.loop]]
    if not moving or not lies_alike(nest, operand):
        return None
    extents = list(nest.sizes)
    for level in (levels[k] for k in moving):
        extents[level.loop] = level.step
    size, depth = ELEMENT_BYTES[stored(operand.element)], moving[-1]
    block = size * math.prod(e for e, stride in zip(extents, operand.strides, strict=True) if stride)
    follows = size * operand.strides[levels[depth].loop] * levels[depth].step == block
    if not follows or not isinstance(block, int):
        return None
    varies = any(isinstance(nest.sizes[level.loop], Size) for level in levels[depth + 1 :])
    parts = _FEWEST_PARTS if varies else math.prod(trips[depth + 1 :])
    return Prefetch(number, depth, block, parts), block * math.prod(trips[k] for k in moving)


def lies_alike(nest: AnyNest, operand: AnyOperand) -> bool:
    """Whether what a nest reads of an operand in one tile lies alike at all sizes."""
    return all(
        isinstance(stride, int) and (not stride or not reduces or isinstance(size, int))
        for stride, reduces, size in zip(operand.strides, nest.reduction, nest.sizes, strict=True)
    )


def _orders(nest: KernelSpec, plain: Sequence[Level]) -> Iterator[tuple[Level, ...]]:
    """Every order of the loops that have more than one tile."""
    moving = [level for level in plain if nest.sizes[level.loop] > level.step]
    still = tuple(level for level in plain if level not in moving)
    if len(moving) <= _MOST_PERMUTED:
        for order in itertools.permutations(moving):
            yield (*order, *still)


def _blocked(
    nest: KernelSpec, plain: Sequence[Level], reduction: Sequence[int], tiles: Sequence[int]
) -> Iterator[tuple[Level, ...]]:
    """Every order with blocks of the outermost loop that reduces, at every depth that leaves tasks outside. A reduction
    across lanes has none: its lanes are combined once."""
    loop = reduction[0]
    inner = math.prod(nest.sizes[d] for d in reduction[1:])
    if any(tiles[d] > 1 for d in reduction):
        return
    sizes = {-(-nest.sizes[loop] // count) for count in (2, 3, 4, 6, 8, 12, 16, 24, 32)}
    steps = [step for step in sorted(sizes, reverse=True) if step * inner >= _LEAST_STEPS and step < nest.sizes[loop]]
    for order in _orders(nest, plain):
        tasks = 1
        for depth, level in enumerate(order):
            if tasks >= _TASKS:
                for step in steps:
                    yield (*order[:depth], Level(loop, step), *order[depth:])
            tasks *= -(-nest.sizes[level.loop] // level.step)


def _cost(nest: KernelSpec, machine: Machine, levels: Sequence[Level]) -> float:
    """Cycles for the bytes that caches miss again: once every byte comes from memory whatever the order."""
    operands = _touched(nest, levels)
    first = _missed(nest, machine, levels, operands, machine.first_level, machine.first_level // (8 * machine.line))
    second = _missed(
        nest, machine, levels, operands, machine.second_level, machine.second_level // (machine.ways * machine.line)
    )
    once = sum(_lines(operand, nest.sizes, machine)[0] for operand in nest.operands) * machine.line
    return (first - once) * _SECOND_LEVEL_BYTE + (second - once) / machine.memory_bytes


def _touched(nest: KernelSpec, levels: Sequence[Level]) -> list[Operand]:
    """The operands, and the scratch of partial results (read and written), if there are blocks of the reduction."""
    operands = list(nest.operands)
    first = next((k for k, level in enumerate(levels) if nest.reduction[level.loop]), None)
    if first is not None:
        inside = {level.loop for level in levels[first:]}
        for output in nest.outputs:
            strides = tuple(s if d in inside else 0 for d, s in enumerate(output.strides))
            operands += [Operand(output.element, strides)] * 2
    return operands


def _missed(
    nest: KernelSpec, machine: Machine, levels: Sequence[Level], operands: Sequence[Operand], capacity: int, sets: int
) -> float:
    """Bytes fetched into a cache of ``capacity`` bytes. What does not even fit during one tile is fetched for each, and
    each block of a reduction goes through the outputs again. Neighbouring blocks of a loop share what they overlap."""
    extents = list(nest.sizes)
    depth = 0
    while depth < len(levels) and sum(_room(o, extents, machine, sets) for o in operands) > _FILLED * capacity:
        extents[levels[depth].loop] = min(levels[depth].step, extents[levels[depth].loop])
        depth += 1
    total = 0.0
    for operand in operands:
        stays = _room(operand, extents, machine, sets) <= capacity
        moving = [
            k for k in range(depth) if not stays or operand.strides[levels[k].loop] or nest.reduction[levels[k].loop]
        ]
        last = max(moving, default=-1)
        widened = list(extents)
        if stays and moving and operand.strides[levels[last].loop]:
            widened[levels[last].loop] = _around(nest, levels, last)
            last -= 1
        trips = math.prod(-(-_around(nest, levels, k) // levels[k].step) for k in range(last + 1))
        total += trips * _lines(operand, widened, machine)[0] * machine.line
    return total


def _around(nest: KernelSpec, levels: Sequence[Level], depth: int) -> int:
    """Iterations of a level's loop in the block around the level."""
    outer = [other.step for other in levels[:depth] if other.loop == levels[depth].loop]
    return outer[-1] if outer else nest.sizes[levels[depth].loop]


def _room(operand: Operand, extents: Sequence[int], machine: Machine, sets: int) -> float:
    """Bytes of a cache of ``sets`` sets that an operand needs, as its lines share the sets that they fall into."""
    lines, rows = _lines(operand, extents, machine)
    distinct = 1
    for count, distance in rows:
        distinct *= min(count, sets // math.gcd(sets, distance)) if distance else count
    ways = lines / min(distinct, sets)
    return max(lines * machine.line, (ways - 2) * sets * machine.line)


def _lines(operand: Operand, extents: Sequence[int], machine: Machine) -> tuple[int, list[tuple[int, int]]]:
    """How many cache lines an operand's elements lie in, and these as nested rows: how many, and how many lines apart
    (0: not a whole number of lines)."""
    size = ELEMENT_BYTES[stored(operand.element)]
    rows: list[tuple[int, int]] = []
    for distance, count in _runs(operand, extents):
        span = distance * size
        if not rows and span < machine.line:
            rows.append((-(-span * count // machine.line), 1))
        else:
            rows.append((count, 0 if span % machine.line else span // machine.line))
    return math.prod(count for count, _ in rows), rows


def _runs(operand: Operand, extents: Sequence[int]) -> list[tuple[int, int]]:
    """The elements as nested rows, innermost first: element distance and count. Loops that walk the same elements, as a
    window and the points that it slides over, are one. What is read backwards lies in the same lines."""
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
