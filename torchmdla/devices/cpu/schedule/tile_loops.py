"""Schedules of tile loops: the kinds of tiles, the prefetches of members, and the size of tasks.

Where tiles do not divide an axis, the last tiles along it have separate kernels, of the same members over fewer
iterations. In a dynamic program, the size of the last tile is known only at run time. It is a symbol, one for each such
axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import Size, at
from torchmdla.devices.cpu.ir.accesses import Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, TileLoop, flatten
from torchmdla.devices.cpu.schedule import (
    Ahead,
    Blocks,
    Fetch,
    Symbols,
    choose_grain,
    choose_schedule,
    count,
    estimate_cycles,
)
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.vector_math import expand

# An operand of a member, by the numbers of the member and the operand.
Place = tuple[int, int]

Extents = tuple[int | Size, ...]


# A typical size of a last tile, for which schedules are chosen.
_TYPICAL_REST = 8


def symbols_of(steps: LoopProgram, symbols: int) -> Symbols:
    """Return the ``symbols`` of a program, and the symbols for the sizes of last tiles."""
    if not symbols:
        return Symbols()
    axes = [len(step.tile) for step in flatten(steps.steps) if isinstance(step, TileLoop)]
    return Symbols(symbols, (*steps.typical, *[_TYPICAL_REST] * max(axes, default=0)))


# The instructions per element from which prefetching pays, even if the hardware prefetches. Below, the processor waits
# for memory less often than prefetching costs. On Zen 4, time with prefetching ÷ without: layer norm (30) 1.05, softmax
# (32) 1.13, five functions in a row (160) 0.9.
_LONG_CHAIN = 96


@dataclass(frozen=True)
class MemberPrefetches:
    """Prefetches of a member.

    Attributes:
        ahead: the prefetches of its kernel.
        beside: the operands of later members whose buffers are the ``beside`` buffers of these prefetches.
    """

    ahead: Ahead = ()
    beside: tuple[Place, ...] = ()


@dataclass(frozen=True)
class TileSchedule:
    """Schedule of a tile loop.

    Attributes:
        cut: for each axis whose last tile has an unknown size, the symbol of a tile's extent along it.
        choices: for each axis, the extents of its tiles, the full tile first.
        fetched: the prefetches of each member.
        grain: the number of tiles in a task; 0 if sharing between threads does not pay.
    """

    cut: Mapping[int, Size]
    choices: tuple[Extents, ...]
    fetched: tuple[MemberPrefetches, ...]
    grain: int

    def parts(self, step: TileLoop) -> Iterator[Extents]:
        """Yield the extents of every kind of tile."""
        for extents in itertools.product(*self.choices):
            if self.cut:
                yield self.full(step, extents)
            yield extents

    def full(self, step: TileLoop, extents: Extents) -> Extents:
        """Return the extents of a tile that is full along the axes in ``cut``."""
        return tuple(step.tile[axis] if axis in self.cut else extent for axis, extent in enumerate(extents))


def blocks_of(step: TileLoop) -> Blocks:
    """Return the range of a tile loop: its axes, in tiles."""
    return tuple(zip(step.extents, step.tile, strict=True))


def schedule_tiles(step: TileLoop, machine: Machine, symbols: Symbols) -> TileSchedule:
    """Return the schedule of a tile loop, by a simple cost model."""
    cut: dict[int, Size] = {}
    for axis, (extent, tile) in enumerate(blocks_of(step)):
        if isinstance(extent, Size) and tile > 1:
            cut[axis] = Size.symbol(symbols.count + len(cut))
    choices = tuple(_choices(extent, tile, cut.get(axis)) for axis, (extent, tile) in enumerate(blocks_of(step)))
    fetched = tuple(plan_prefetches(step, machine, symbols.typical))
    return TileSchedule(cut, choices, fetched, _grain(step, machine, symbols.typical))


def _choices(extent: int | Size, tile: int, last: Size | None) -> Extents:
    if isinstance(extent, Size):
        return (tile if last is None else last,)
    full, rest = divmod(extent, tile)
    return (*([tile] if full else []), *([rest] if rest else []))


def _grain(step: TileLoop, machine: Machine, typical: tuple[int, ...]) -> int:
    """Return the number of tiles in a task.

    For one and two threads, it is derived from the grains of the members' own schedules.
    """
    nests = [step.part(position, step.extents).kernel for position in range(len(step.members))]
    if machine.threads > 1:
        cycles = sum(estimate_cycles(expand(nest, machine), machine, typical) for nest in nests)
        is_dynamic = any(isinstance(extent, Size) for extent in step.extents)
        return choose_grain(machine, count(blocks_of(step), typical), cycles, is_dynamic)
    tasks = 0.0
    for nest in nests:
        schedule = choose_schedule(nest, machine, typical)
        tasks += schedule.iterations / schedule.grain if schedule.grain else 0.0
    return max(1, math.ceil(count(blocks_of(step), typical) / tasks)) if tasks else 0


def plan_prefetches(step: TileLoop, machine: Machine, typical: Sequence[int] = ()) -> list[MemberPrefetches]:
    """Return the prefetches of each member, for later tiles and members.

    Hardware prefetches within one tile, but it does not foresee the next tile. Memory would be idle while members
    compute on data in the cache.

    A buffer that is read is prefetched for a later tile. The prefetch is in the member with the longest body among
    those that access it.

    A buffer that is only written is prefetched by a member with the same access pattern. Members without prefetches of
    read buffers are preferred, then the longest one. Memory would serve two prefetches of one member one after the
    other.

    Data from the second-level cache, at the ``typical`` values of symbols, is fast enough without prefetching. So is
    data with little computation on a machine whose hardware prefetches a tile's data.
    """
    moving = [axis for axis, (extent, tile) in enumerate(zip(step.extents, step.tile, strict=True)) if extent != tile]
    lengths = [len(expand(member.kernel, machine).body) for member in step.members]
    read, written = _streams(step, lengths)
    buffers = {step.members[k].accesses[number].buffer for k, number in [*read, *written]}
    foreseen = machine.has_strong_prefetcher and sum(lengths) < _LONG_CHAIN
    if foreseen or not moving or not machine.is_streamed(sum(at(buffer.bytes, typical) for buffer in buffers)):
        return [MemberPrefetches()] * len(step.members)
    ahead: list[list[Fetch]] = [[] for _ in step.members]
    beside: list[list[Place]] = [[] for _ in step.members]
    tiles = _tiles_ahead(step, read, machine, typical)
    busy = {position for position, _ in read}
    for place in read:
        ahead[place[0]] += _prefetch_later_tile(step, place, moving[-1], tiles)
    for place in written:
        alike = _find_same_pattern(step, place, typical)
        member, fetched = max(
            alike, key=lambda candidate: (candidate[0] not in busy, lengths[candidate[0]], candidate[0])
        )
        if member == place[0]:
            ahead[member] += _prefetch_later_tile(step, place, moving[-1], 1)
        else:
            ahead[member].append(Fetch(fetched, beside=len(beside[member])))
            beside[member].append(place)
    return [MemberPrefetches(tuple(fetched), tuple(places)) for fetched, places in zip(ahead, beside, strict=True)]


def _prefetch_later_tile(step: TileLoop, place: Place, axis: int, tiles: int) -> list[Fetch]:
    """Return the prefetch of the tile that is ``tiles`` further along an axis, if it is at another address."""
    distance = step.strides(*place)[axis] * tiles
    return [Fetch(place[1], distance)] if distance else []


def _streams(step: TileLoop, lengths: Sequence[int]) -> tuple[list[Place], list[Place]]:
    """Return the operands through which tiles stream memory, those that are read and those that are written.

    A buffer that is read first is represented by the longest member that accesses it. A buffer that is written first is
    represented by its first write.
    """
    read: dict[Buffer, Place] = {}
    written: dict[Buffer, Place] = {}
    for position, member in enumerate(step.members):
        for number, access in enumerate(member.accesses):
            buffer = access.buffer
            if buffer.kind == "local" or not member.is_indexed_by_all_loops(access) or buffer in written:
                continue
            if buffer not in member.reads and buffer not in read:
                written[buffer] = position, number
            elif buffer not in read or lengths[position] >= lengths[read[buffer][0]]:
                read[buffer] = position, number
    return list(read.values()), list(written.values())


def _tiles_ahead(step: TileLoop, read: Sequence[Place], machine: Machine, typical: Sequence[int]) -> int:
    """Return the prefetch distance in tiles: two if the tile's data fits half of the first-level cache, else one.

    Memory takes longer than a tile of little work.
    """
    part = 0
    for position, number in read:
        member = step.members[position]
        iterations = math.prod(at(size, typical) for size in member.sizes)
        part += iterations * ELEMENT_BYTES[storage_type(member.accesses[number].buffer.element)]
    return 2 if 4 * part <= machine.first_level else 1


def _find_same_pattern(step: TileLoop, place: Place, typical: Sequence[int]) -> list[Place]:
    """Return one operand of each member up to that of ``place`` with the same access pattern.

    Such an operand touches as many bytes, at the same distances, as the operand at ``place``.
    """
    last, number = place
    pattern = _access_pattern(step.members[last], number, typical)
    places: dict[int, Place] = {last: place}
    for position, member in enumerate(step.members[:last]):
        for operand, access in enumerate(member.accesses):
            if member.is_indexed_by_all_loops(access) and _access_pattern(member, operand, typical) == pattern:
                places.setdefault(position, (position, operand))
    return list(places.values())


def _access_pattern(member: LoopNest, number: int, typical: Sequence[int]) -> list[tuple[int, int]]:
    """Return the access pattern of a member's operand, independent of the order of loops.

    It is a list of distances in bytes, each with a count.
    """
    access = member.accesses[number]
    size = ELEMENT_BYTES[storage_type(access.buffer.element)]
    factors = access.linearise(len(member.sizes)).factors
    loops = [(at(f, typical) * size, at(n, typical)) for f, n in zip(factors, member.sizes, strict=True)]
    walk: list[tuple[int, int]] = []
    for distance, steps in sorted(loop for loop in loops if loop[1] != 1):
        if walk and distance == walk[-1][0] * walk[-1][1]:
            walk[-1] = walk[-1][0], walk[-1][1] * steps
        else:
            walk.append((distance, steps))
    return walk
