"""What is decided for a tile loop beside its tile: which parts there are, what members fetch, and how large tasks are.

Where tiles do not divide an axis, the last ones along it have kernels of their own, of the same members over fewer
iterations. In a dynamic program how many these are is known at run time only: a symbol, one for each such axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import Size, at
from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, stored
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, TileLoop, flattened
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.schedule import Ahead, Blocks, Fetch, Symbols, choose, count
from torchmdla.devices.cpu.vector_math import expand

# An operand of a member, by the numbers of both.
Place = tuple[int, int]

Extents = tuple[int | Size, ...]


# A common size of a last tile, to choose schedules for.
_TYPICAL_REST = 8


def symbols_of(steps: LoopProgram, symbols: int) -> Symbols:
    """The ``symbols`` of a program, and those that tile loops need for the sizes of last tiles."""
    if not symbols:
        return Symbols()
    axes = [len(step.tile) for step in flattened(steps.steps) if isinstance(step, TileLoop)]
    return Symbols(symbols, (*steps.typical, *[_TYPICAL_REST] * max(axes, default=0)))


# Instructions for an element from which on the processor waits for memory more often than fetching costs, whatever it
# foresees. Zen 4, with fetching ÷ without: layer norm (30) 1.05, softmax (32) 1.13, five functions in a row (160) 0.9.
_LONG_CHAIN = 96


@dataclass(frozen=True)
class Fetched:
    """What a member fetches: ``ahead`` of its kernel, and the operands of later members that are the buffers ``beside``
    its own."""

    ahead: Ahead = ()
    beside: tuple[Place, ...] = ()


@dataclass(frozen=True)
class TileSchedule:
    """``cut``: for each axis of which it is not known where its tiles end, the symbol of a tile's extent along it;
    ``choices``: for each axis the extents of its tiles, the full one first; ``fetched``: what each member fetches;
    ``grain``: tiles in a task, 0 if none is worth sharing."""

    cut: Mapping[int, Size]
    choices: tuple[Extents, ...]
    fetched: tuple[Fetched, ...]
    grain: int

    def parts(self, step: TileLoop) -> Iterator[Extents]:
        """The extents of every kind of tile."""
        for extents in itertools.product(*self.choices):
            if self.cut:
                yield self.full(step, extents)
            yield extents

    def full(self, step: TileLoop, extents: Extents) -> Extents:
        """A tile that is full along the axes of which it is not known where its tiles end."""
        return tuple(step.tile[axis] if axis in self.cut else extent for axis, extent in enumerate(extents))


def blocks_of(step: TileLoop) -> Blocks:
    """The range of a tile loop: the axes, in tiles."""
    return tuple(zip(step.extents, step.tile, strict=True))


def schedule_tiles(step: TileLoop, machine: Machine, symbols: Symbols) -> TileSchedule:
    """What is decided for a tile loop, by simple costs."""
    cut: dict[int, Size] = {}
    for axis, (extent, tile) in enumerate(blocks_of(step)):
        if isinstance(extent, Size) and tile > 1:
            cut[axis] = Size.symbol(symbols.count + len(cut))
    choices = tuple(_choices(extent, tile, cut.get(axis)) for axis, (extent, tile) in enumerate(blocks_of(step)))
    fetched = tuple(fetched_ahead(step, machine, symbols.typical))
    return TileSchedule(cut, choices, fetched, _grain(step, machine, symbols.typical))


def _choices(extent: int | Size, tile: int, last: Size | None) -> Extents:
    if isinstance(extent, Size):
        return (tile if last is None else last,)
    full, rest = divmod(extent, tile)
    return (*([tile] if full else []), *([rest] if rest else []))


def _grain(step: TileLoop, machine: Machine, typical: tuple[int, ...]) -> int:
    """Tiles in a task, from what the members' own schedules think a task is."""
    tasks = 0.0
    for position in range(len(step.members)):
        schedule = choose(step.part(position, step.extents).kernel, machine, typical)
        tasks += schedule.iterations / schedule.grain if schedule.grain else 0.0
    return max(1, math.ceil(count(blocks_of(step), typical) / tasks)) if tasks else 0


def fetched_ahead(step: TileLoop, machine: Machine, typical: Sequence[int] = ()) -> list[Fetched]:
    """What each member fetches for later tiles and members while it computes. Processors see far enough ahead along one
    tile, but not that the next one follows; memory would be idle while members compute on what is in the cache.

    Of what is read, the part of a later tile is fetched by the member that computes most where it touches the buffer.
    What is only written is fetched by the member that computes most of the others: while memory answers one, it has
    nothing to do for the other. What comes from the second cache, where symbols have the values ``typical``, comes fast
    enough without; on a machine that foresees what a tile walks, so does all that little is computed of."""
    moving = [axis for axis, (extent, tile) in enumerate(zip(step.extents, step.tile, strict=True)) if extent != tile]
    lengths = [len(expand(member.kernel, machine).body) for member in step.members]
    read, written = _streams(step, lengths)
    buffers = {step.members[k].accesses[number].buffer for k, number in [*read, *written]}
    foreseen = machine.foresees and sum(lengths) < _LONG_CHAIN
    if foreseen or not moving or not machine.streams(sum(at(buffer.bytes, typical) for buffer in buffers)):
        return [Fetched()] * len(step.members)
    ahead: list[list[Fetch]] = [[] for _ in step.members]
    beside: list[list[Place]] = [[] for _ in step.members]
    tiles = _tiles_ahead(step, read, machine, typical)
    busy = {position for position, _ in read}
    for place in read:
        ahead[place[0]] += _of_later_tile(step, place, moving[-1], tiles)
    for place in written:
        alike = _walked_alike(step, place, typical)
        member, own = max(alike, key=lambda found: (found[0] not in busy, lengths[found[0]], found[0]))
        if member == place[0]:
            ahead[member] += _of_later_tile(step, place, moving[-1], 1)
        else:
            ahead[member].append(Fetch(own, beside=len(beside[member])))
            beside[member].append(place)
    return [Fetched(tuple(own), tuple(places)) for own, places in zip(ahead, beside, strict=True)]


def _of_later_tile(step: TileLoop, place: Place, axis: int, tiles: int) -> list[Fetch]:
    """The part of the tile that is ``tiles`` further along an axis, if it is another one."""
    distance = step.strides(*place)[axis] * tiles
    return [Fetch(place[1], distance)] if distance else []


def _streams(step: TileLoop, lengths: Sequence[int]) -> tuple[list[Place], list[Place]]:
    """The operands by which tiles walk memory: of each buffer that is read first, in the longest member, and of each
    that is written first, where that is."""
    read: dict[Buffer, Place] = {}
    written: dict[Buffer, Place] = {}
    for position, member in enumerate(step.members):
        for number, access in enumerate(member.accesses):
            buffer = access.buffer
            if buffer.kind == "local" or not member.walks(access) or buffer in written:
                continue
            if buffer not in member.reads and buffer not in read:
                written[buffer] = position, number
            elif buffer not in read or lengths[position] >= lengths[read[buffer][0]]:
                read[buffer] = position, number
    return list(read.values()), list(written.values())


def _tiles_ahead(step: TileLoop, read: Sequence[Place], machine: Machine, typical: Sequence[int]) -> int:
    """How many tiles ahead to fetch what is read: two where these take no more than half of the first cache, since
    memory takes longer than a tile of little work."""
    part = 0
    for position, number in read:
        member = step.members[position]
        iterations = math.prod(at(size, typical) for size in member.sizes)
        part += iterations * ELEMENT_BYTES[stored(member.accesses[number].buffer.element)]
    return 2 if 4 * part <= machine.first_level else 1


def _walked_alike(step: TileLoop, place: Place, typical: Sequence[int]) -> list[Place]:
    """One operand of each member up to that of ``place`` that touches as many bytes, as far apart, as that operand."""
    last, number = place
    wanted = _walk(step.members[last], number, typical)
    found: dict[int, Place] = {last: place}
    for position, member in enumerate(step.members[:last]):
        for own, access in enumerate(member.accesses):
            if member.walks(access) and _walk(member, own, typical) == wanted:
                found.setdefault(position, (position, own))
    return list(found.values())


def _walk(member: LoopNest, number: int, typical: Sequence[int]) -> list[tuple[int, int]]:
    """How a member's operand touches memory, whatever the order of its loops: distances in bytes, and how many of each
    there are."""
    access = member.accesses[number]
    size = ELEMENT_BYTES[stored(access.buffer.element)]
    factors = access.flat(len(member.sizes)).factors
    loops = [(at(f, typical) * size, at(n, typical)) for f, n in zip(factors, member.sizes, strict=True)]
    walk: list[tuple[int, int]] = []
    for distance, steps in sorted(loop for loop in loops if loop[1] != 1):
        if walk and distance == walk[-1][0] * walk[-1][1]:
            walk[-1] = walk[-1][0], walk[-1][1] * steps
        else:
            walk.append((distance, steps))
    return walk
