"""Fusion of consecutive nests over the same outer loops by tiles: one pass over memory for all of them.

Softmax, normalisations, attention and chains of elementwise nests and reductions compute rows that are independent of
each other. Each chain becomes a :class:`~torchmdla.devices.cpu.ir.loop_program.TileLoop`. For each tile of the shared
loops (the axes), it runs all nests in order, with intermediate values in small buffers that stay in the cache.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torchmdla.compiler.sizes import AnySize, at
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Step, TileLoop, Users, is_contraction, is_copy
from torchmdla.devices.cpu.passes.rematerialise import rematerialise
from torchmdla.devices.cpu.schedule import estimate_cycles, is_worth_sharing
from torchmdla.devices.cpu.schedule.partition import join_cycles
from torchmdla.devices.cpu.target.machine import Machine

# Local buffers are on the stack of the thread that runs a tile.
MOST_LOCAL_BYTES = 256 << 10

# The share of the first-level cache for a tile of buffers in memory; the rest is left for data fetched for later tiles.
_STREAMED_PART = 1 / 2

# A nest that stores more results than this in an iteration already works on its own tile.
_MOST_RESULTS = 8

# Longer chains are split, as each new member is compared with all accesses of the members before it.
_MOST_MEMBERS = 64

# The same holds for chains with more buffers: LLVM compares all addresses that a kernel loads first with each other.
_MOST_BUFFERS = 512

# The time to call the kernels of a tile, in iterations.
_TILE_COST = 1

# The rows of a tile's product that take as long as to read the other factor from the second-level cache.
FEWEST_ROWS = 4

# The tiles for each thread that are enough for any number of threads.
_ENOUGH_TILES = 16

# The part of the time of few tiles that threads may take for separate members, which exchange data through memory.
_MOST_SEPARATE = 0.8

# The innermost loop of a tile is not shorter than this, unless the loop is.
_LEAST_INNERMOST = 64


def fuse_by_tiles(steps: LoopProgram, machine: Machine, tiles: Sequence[Sequence[int]] | None = None) -> None:
    """Replace nests that can run tile by tile by chains, in place.

    ``tiles`` has the tiles of each chain in turn. If it is not given, they are chosen by cost, for the typical values
    of the symbols in a dynamic program.

    Raises:
        ValueError: The chains are not those of ``tiles``.
    """
    result: list[Step] = []
    sequence = _Sequence(steps.steps)
    users = Users(steps.steps)
    remaining = None if tiles is None else deque(tiles)
    start = 0
    while start < len(steps.steps):
        chain, fused = _longest_chain(users, sequence, start, _Costs(machine, steps.typical), remaining)
        if chain is None or fused is None:
            result.append(steps.steps[start])
            start += 1
            continue
        members = set(chain.members)
        result += [*(step for step in steps.steps[start : chain.end] if step not in members), fused]
        start = chain.end
    if remaining:
        raise ValueError(f"{len(remaining)} tiles are of chains that these steps do not make")
    steps.steps = result


class _Sequence:
    """Steps in order, with the positions of the steps that touch each buffer, and of those that write it."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self._touching: dict[Buffer, list[int]] = defaultdict(list)
        self._writing: dict[Buffer, list[int]] = defaultdict(list)
        for place, step in enumerate(steps):
            written = set(step.writes)
            for buffer in written.union(step.reads):
                self._touching[buffer].append(place)
            for buffer in written:
                self._writing[buffer].append(place)

    def next_dependent(self, reads: Collection[Buffer], writes: Collection[Buffer], place: int) -> int | None:
        """Return the position of the first step after ``place`` that depends on steps with these buffers."""
        used = [self._touching[b] for b in writes] + [self._writing[b] for b in reads if b in self._writing]
        following = [places[k] for places in used if (k := bisect_right(places, place)) < len(places)]
        return min(following, default=None)


@dataclass(frozen=True)
class _Costs:
    """Costs on a machine for the values ``typical`` of the symbols."""

    machine: Machine
    typical: Sequence[int]

    def at(self, size: AnySize) -> int:
        return at(size, self.typical)


def _longest_chain(
    users: Users, sequence: _Sequence, start: int, costs: _Costs, remaining: deque[Sequence[int]] | None
) -> tuple[_Candidate | None, TileLoop | None]:
    """Return the longest chain from a step on whose local buffers fit, with the next of the remaining tiles."""
    for chain in reversed(_grow_chains(sequence, start, users, costs)):
        fused = chain.fuse(users, costs, remaining)
        if fused is not None:
            return chain, fused
    return None, None


def _grow_chains(sequence: _Sequence, start: int, users: Users, costs: _Costs) -> list[_Candidate]:
    """Return the chains that start with a step, each one member longer than the one before."""
    first = sequence.steps[start]
    if not isinstance(first, LoopNest) or not _may_join(first):
        return []
    chains = [_Candidate([first], [(loop,) for loop in _free_loops(first)], start + 1, is_contraction(first))]
    reads, writes = set(first.reads), set(first.writes)
    while len(chains) < _MOST_MEMBERS and len(reads) + len(writes) < _MOST_BUFFERS:
        # Steps in between do not depend on members, nor members on them.
        place = sequence.next_dependent(reads, writes, chains[-1].end - 1)
        if place is None:
            break
        step = sequence.steps[place]
        longer = chains[-1].with_member(step, place + 1) if isinstance(step, LoopNest) else None
        if longer is None or (
            is_copy(first) and not (len(chains) == 1 and _gains_from_copy(sequence, place, users, costs))
        ):
            break
        chains.append(longer)
        reads.update(step.reads)
        writes.update(step.writes)
    return chains[1:]


def _gains_from_copy(sequence: _Sequence, place: int, users: Users, costs: _Costs) -> bool:
    """Return whether the step at ``place`` is a product that gains from a copy by tiles: it does not start a chain.

    Nothing else gains from a copy in the same chain.
    """
    step = sequence.steps[place]
    if not isinstance(step, LoopNest) or not is_contraction(step):
        return False
    return not any(chain.local_buffers(users, costs) for chain in _grow_chains(sequence, place, users, costs))


@dataclass
class _Candidate:
    """Chain of ``members`` with the loop of each member for each axis.

    ``end`` is the position after the last member. ``contracts`` specifies whether some member is a product.
    """

    members: list[LoopNest]
    axes: list[tuple[int, ...]]
    end: int
    contracts: bool

    @cached_property
    def _accesses(self) -> dict[Buffer, list[tuple[int, Access, bool]]]:
        """Return the accesses of each buffer.

        An entry has the position of the member, the access, and whether the member writes the buffer.
        """
        accesses: dict[Buffer, list[tuple[int, Access, bool]]] = defaultdict(list)
        for k, member in enumerate(self.members):
            written = set(member.writes)
            for access in member.accesses:
                accesses[access.buffer].append((k, access, access.buffer in written))
        return accesses

    def with_member(self, step: LoopNest, end: int) -> _Candidate | None:
        """Return the chain with one more member; None if it does not extend any axis."""
        if not _may_join(step):
            return None
        free, written = _free_loops(step), set(step.writes)
        dependences = [
            (k, earlier, later)
            for later in step.accesses
            for k, earlier, writes in self._accesses.get(later.buffer, ())
            if writes or later.buffer in written
        ]
        loops = [(axis, self._loop_in(step, free, axis, dependences)) for axis in self.axes]
        axes = [(*axis, loop) for axis, loop in loops if loop is not None]
        if not axes:
            return None
        return _Candidate([*self.members, step], axes, end, self.contracts or is_contraction(step))

    def _loop_in(
        self,
        step: LoopNest,
        free: Sequence[int],
        axis: Sequence[int],
        dependences: Sequence[tuple[int, Access, Access]],
    ) -> int | None:
        """Return the loop of ``step`` that walks all buffers shared with the members as the axis does, or None."""
        counterparts = {_counterpart(earlier, axis[k], later) for k, earlier, later in dependences}
        loop = counterparts.pop() if len(counterparts) == 1 else None
        if loop is None or loop not in free:
            return None
        return loop if step.sizes[loop] == self.members[0].sizes[axis[0]] else None

    def fuse(self, users: Users, costs: _Costs, remaining: deque[Sequence[int]] | None) -> TileLoop | None:
        """Return the chain with the next of the remaining tiles, or with a chosen one.

        Return None if all intermediate values leave the tile, or if the local buffers do not fit.

        Raises:
            ValueError: No tile is left, or the next one does not have the same number of axes.
        """
        local = self.local_buffers(users, costs)
        if not local or (remaining is None and self._is_too_large(local, costs)):
            return None
        chain = self._rematerialise(local)
        written = {b for m in chain.members for b in m.writes}
        return chain._fuse([b for b in local if b in written], costs, remaining)

    def local_buffers(self, users: Users, costs: _Costs) -> list[Buffer]:
        """Return the buffers that only members use; none if the chain must not run by tiles."""
        if self._rereads_large_factor(costs):
            return []
        inside: set[Step] = set(self.members)
        written = dict.fromkeys(b for member in self.members for b in member.writes)
        return [b for b in written if b.kind == "temporary" and not b.fixed and all(s in inside for s in users.of(b))]

    def _rereads_large_factor(self, costs: _Costs) -> bool:
        """Return whether every tile reads all of a factor that is in no cache, such as the weights of a large layer."""
        return any(
            is_contraction(member)
            and any(
                costs.machine.comes_from_memory(costs.at(access.buffer.bytes))
                and access.loops.isdisjoint(axis[k] for axis in self.axes)
                for access in member.inputs
            )
            for k, member in enumerate(self.members)
        )

    def _is_too_large(self, local: Sequence[Buffer], costs: _Costs) -> bool:
        """Return whether even the smallest tile does not fit: results of reductions are stored in any case."""
        stored = {buffer for member in self.members if any(member.reduction) for buffer in member.writes}
        least = [1] * len(self.axes)
        return sum(self._bytes(buffer, least, costs) for buffer in local if buffer in stored) > MOST_LOCAL_BYTES

    def _rematerialise(self, local: Sequence[Buffer]) -> _Candidate:
        """Return the chain without members whose values are computed where they are read.

        If no local buffer would remain, return the chain itself.
        """
        results = rematerialise(self.members, local)
        members = [m for m in results if m is not None]
        if not any(b in local for m in members for b in m.writes):
            return self
        axes = [tuple(loop for loop, m in zip(axis, results, strict=True) if m is not None) for axis in self.axes]
        return replace(self, members=members, axes=axes)

    def _fuse(self, local: Sequence[Buffer], costs: _Costs, remaining: deque[Sequence[int]] | None) -> TileLoop | None:
        """Return the same as :meth:`fuse`, for a chain with the local buffers ``local``."""
        tile = self._choose_tile(local, costs) if remaining is None else self._next_tile(remaining)
        if remaining is not None:
            remaining.popleft()
        else:
            fits = sum(self._bytes(buffer, tile, costs) for buffer in local) <= MOST_LOCAL_BYTES
            if not fits or self._leaves_threads_idle(tile, costs):
                return None
        shrunk = {buffer: self._local_buffer(buffer, tile) for buffer in local}
        members = tuple(self._tile_member(k, tile, shrunk) for k in range(len(self.members)))
        loops = tuple(tuple(axis[k] for axis in self.axes) for k in range(len(self.members)))
        return TileLoop(members, loops, tuple(self._sizes()), tuple(tile), tuple(shrunk.values()))

    def _next_tile(self, remaining: deque[Sequence[int]]) -> list[int]:
        if not remaining or len(remaining[0]) != len(self.axes):
            raise ValueError(f"the next tile is not of a chain of {len(self.axes)} axes")
        return list(remaining[0])

    def _sizes(self) -> list[AnySize]:
        return [self.members[0].sizes[axis[0]] for axis in self.axes]

    # Tiles.

    def _cycles(self, costs: _Costs) -> list[float]:
        """Return the cycles of each member."""
        return [estimate_cycles(member.kernel, costs.machine, tuple(costs.typical)) for member in self.members]

    def _leaves_threads_idle(self, tile: Sequence[int], costs: _Costs) -> bool:
        """Return whether threads that share each member take much less time, since tiles are too few."""
        threads = costs.machine.threads
        tiles = math.prod(-(-costs.at(size) // extent) for size, extent in zip(self._sizes(), tile, strict=True))
        busiest = -(-tiles // threads) / tiles
        if threads == 1 or busiest * threads * _MOST_SEPARATE <= 1:
            return False
        cycles, separate = self._cycles(costs), 0.0
        for member, alone in zip(self.members, cycles, strict=True):
            sizes = (costs.at(n) for n, reduces in zip(member.sizes, member.reduction, strict=True) if not reduces)
            separate += min(alone, alone / min(threads, math.prod(sizes)) + join_cycles(threads))
        return separate < _MOST_SEPARATE * sum(cycles) * busiest

    def _choose_tile(self, local: Sequence[Buffer], costs: _Costs) -> list[int]:
        """Return the extent of each axis: the largest that fits, reduced from the outermost loop on."""
        sizes = list(map(costs.at, self._sizes()))
        tile, least = list(sizes), [1] * len(sizes)
        counted, limit = self._limited_buffers(local, costs)

        def fits(axis: int, extent: int) -> bool:
            cut = [*tile[:axis], extent, *tile[axis + 1 :]]
            return sum(self._bytes(buffer, cut, costs) for buffer in counted) <= limit

        order = self._outermost_first(costs)
        for axis in order:
            innermost = (axis == order[-1] and self._is_innermost(axis, costs)) or self._is_column(axis)
            least[axis] = min(sizes[axis], _LEAST_INNERMOST) if innermost else 1
            # Bytes grow with the extent.
            smallest = least[axis]
            most = bisect_left(range(smallest, sizes[axis]), True, key=lambda e: not fits(axis, e + 1)) + smallest
            tile[axis] = choose_extent(sizes[axis], most, costs.machine.vector_bytes // 4 if innermost else 1)
            if innermost:
                least[axis] = tile[axis]
        if costs.machine.threads == 1 or not is_worth_sharing(costs.machine, sum(self._cycles(costs))):
            return tile
        fewest = FEWEST_ROWS if self._shares_factor() else 1
        return balance_tile(sizes, tile, least, costs.machine.threads, fewest)

    def _shares_factor(self) -> bool:
        """Return whether the iterations of some axis share a factor of a product, which tiles read again.

        If the only axis is the heads of attention, they share nothing.
        """
        return any(
            is_contraction(member)
            and any(axis[k] not in access.loops for access in member.inputs for axis in self.axes)
            for k, member in enumerate(self.members)
        )

    def _limited_buffers(self, local: Sequence[Buffer], costs: _Costs) -> tuple[list[Buffer], int]:
        """Return the buffers that count for a tile's size, and the most bytes of them that a tile may touch."""
        machine = costs.machine
        if self.contracts:
            return list(local), min(MOST_LOCAL_BYTES, machine.second_level // 4)
        every = list(dict.fromkeys(a.buffer for m in self.members for a in m.accesses))
        passing = [b for b in every if b not in local]
        if machine.is_streamed(sum(costs.at(b.bytes) for b in passing)):
            return passing, int(machine.first_level * _STREAMED_PART)
        return every, machine.first_level

    def _outermost_first(self, costs: _Costs) -> list[int]:
        first = self.members[0]
        flat = first.written_accesses[0].linearise(len(first.sizes))
        return sorted(range(len(self.axes)), key=lambda a: -costs.at(flat.factors[self.axes[a][0]]))

    def _is_innermost(self, axis: int, costs: _Costs) -> bool:
        """Return whether the axis walks one of the large buffers element by element.

        A border makes images of the same size differ.
        """
        accesses = [(k, a) for k, member in enumerate(self.members) for a in member.accesses]
        largest = max(costs.at(a.buffer.count) for _, a in accesses)
        return any(
            a.linearise(len(self.members[k].sizes)).factors[self.axes[axis][k]] == 1
            for k, a in accesses
            if 2 * costs.at(a.buffer.count) > largest
        )

    def _is_column(self, axis: int) -> bool:
        """Return whether the axis walks the result of a product element by element, so that it has its vectors."""
        return any(
            is_contraction(member)
            and any(a.linearise(len(member.sizes)).factors[loop] == 1 for a in member.written_accesses)
            for member, loop in zip(self.members, self.axes[axis], strict=True)
        )

    def _bytes(self, buffer: Buffer, tile: Sequence[int], costs: _Costs) -> int:
        """Return the bytes of the part of a buffer that one tile touches, 0 if every tile touches all of it."""
        least = self._local_buffer(buffer, [1] * len(tile))
        return costs.at(self._local_buffer(buffer, tile).bytes) if costs.at(least.count) < costs.at(buffer.count) else 0

    def _local_buffer(self, buffer: Buffer, tile: Sequence[int]) -> Buffer:
        """Return a buffer for one tile's part of ``buffer``."""
        sizes = list(buffer.sizes)
        for k, access, _ in self._accesses.get(buffer, ()):
            for axis, extent in zip(self.axes, tile, strict=True):
                d = _dimension(access, axis[k])
                if d is not None:
                    sizes[d] = extent
        return Buffer("local", buffer.element, tuple(sizes), padding=buffer.padding)

    def _tile_member(self, position: int, tile: Sequence[int], shrunk: dict[Buffer, Buffer]) -> LoopNest:
        """Return a member over one tile, with its local buffers replaced."""
        member = replace(self.members[position])
        sizes = list(member.sizes)
        for axis, extent in zip(self.axes, tile, strict=True):
            sizes[axis[position]] = extent
        member.sizes = tuple(sizes)
        member.map_accesses(lambda a: replace(a, buffer=shrunk.get(a.buffer, a.buffer)))
        return member


def _may_join(step: LoopNest) -> bool:
    """Return whether a nest can be a member of a chain.

    It has to write through accesses only. It must not be a product with weights, as each tile would read these again.
    """
    if step.tables or not 0 < len(step.written_accesses) <= _MOST_RESULTS:
        return False
    return not (is_contraction(step) and any(b.kind in ("parameter", "packed") for b in step.reads))


def _free_loops(step: LoopNest) -> list[int]:
    """Return the loops that tiles can split: those that are parallel, and whose index is not used as a value."""
    used = step.indexed_loops
    return [loop for loop, size in enumerate(step.sizes) if size != 1 and not step.reduction[loop] and loop not in used]


def _counterpart(access: Access, loop: int, other: Access) -> int | None:
    """Return the loop of ``other`` that walks the buffer as ``loop`` does in ``access``, or None."""
    d = _dimension(access, loop)
    if d is None or not other.indices[d].is_loop():
        return None
    counterpart = other.indices[d].loops[0]
    return counterpart if _dimension(other, counterpart) == d else None


def _dimension(access: Access, loop: int) -> int | None:
    """Return the dimension whose index is the loop; None if the loop is part of another index."""
    dims = [d for d, index in enumerate(access.indices) if loop in index.loops]
    return dims[0] if len(dims) == 1 and access.indices[dims[0]].is_loop() else None


def choose_extent(size: int, most: int, granule: int) -> int:
    """Return the extent of the tiles of an axis, at most ``most``.

    It is a divisor if one is not far below ``most``, as the last tile then needs no separate code. Otherwise tiles are
    as even as multiples of ``granule`` permit.
    """
    divisor = next((d for d in range(most, most // 2, -1) if size % d == 0), 0)
    if divisor:
        return divisor
    even = -(-size // -(-size // most))
    rounded = -(-even // granule) * granule
    return rounded if rounded <= most else even


def balance_tile(
    sizes: Sequence[int], tile: Sequence[int], least: Sequence[int], threads: int, fewest: int = 1
) -> list[int]:
    """Return the extents of a tile for which ``threads`` threads take the least time, at most those of ``tile``.

    The number of tiles should be a multiple of the threads, or large. ``least`` are the least extents. ``fewest`` is as
    for :func:`busiest_time`.
    """
    if threads == 1:
        return list(tile)
    axes = [_even_extents(*axis, _ENOUGH_TILES * threads) for axis in zip(sizes, tile, least, strict=True)]
    best = min(itertools.product(*axes), key=lambda extents: busiest_time(sizes, extents, threads, fewest))
    return list(best)


def busiest_time(sizes: Sequence[int], tile: Sequence[int], threads: int, fewest: int = 1) -> int:
    """Return the time of the busiest thread for its tiles, in iterations.

    A tile takes as long as one of ``fewest`` iterations, and that of a call of its kernels.
    """
    tiles = math.prod(-(-size // extent) for size, extent in zip(sizes, tile, strict=True))
    return -(-tiles // threads) * (max(math.prod(tile), fewest) + _TILE_COST)


def _even_extents(size: int, most: int, least: int, enough: int) -> list[int]:
    """Return the extents from ``most`` down to ``least`` that divide an axis evenly, into about ``enough`` tiles."""
    fewest = -(-size // most)
    counts = range(fewest, min(-(-size // least), max(fewest, enough)) + 1)
    return list(dict.fromkeys(-(-size // count) for count in counts))
