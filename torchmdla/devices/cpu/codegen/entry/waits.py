"""Waits between the kernels of an entry that threads share.

Each thread runs its chunk of every kernel, in order. Before a kernel it waits for the threads whose chunks of earlier
kernels have memory in common with its own chunk, if one of both writes there. Memory is that of buffers, and of the
places in the workspace that temporaries share.

``schedule/footprints.py`` has the memory of chunks. If all threads would wait for all others, there is a barrier.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torchmdla.compiler.sizes import AnySize, Size, static
from torchmdla.devices.cpu.codegen.entry.frame import lifetimes, plan_workspace
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.loop_program import (
    AssertStep,
    KernelStep,
    LoadStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    RepeatLoop,
    ScalarStep,
    Scatter,
    Step,
    TileLoop,
)
from torchmdla.devices.cpu.schedule import Blocks, count, ranges
from torchmdla.devices.cpu.schedule.footprints import Addresses, KernelWaits, Wait
from torchmdla.devices.cpu.schedule.partition import chunk_size
from torchmdla.devices.cpu.schedule.plan import Plan
from torchmdla.devices.cpu.schedule.tile_loops import blocks_of

# Steps of an entry that threads can share. Each thread computes all scalars. Other steps are for one thread.
_SHAREABLE = (LoopNest, TileLoop, Scatter, RepeatLoop, LoadStep, ScalarStep, AssertStep)

# The number of waits of a kernel that cost less than waiting for all threads.
_MOST_WAITS = 4

# The number of kernels without a barrier after which one follows, so that few pairs of kernels are compared.
_MOST_KERNELS = 32

# The number of threads for which the footprints with the fewest waits are chosen.
_TYPICAL_THREADS = 16

# The number of indices of a dimension that are compared one by one.
_MOST_INDICES = 4096


@dataclass(frozen=True)
class Use:
    """Use of a buffer by a kernel.

    ``addresses`` is None if a block may use all of the buffer. ``indices`` are all indices of each dimension. They are
    None for a dimension with many, and empty if they are not known.
    """

    buffer: Buffer
    is_write: bool
    addresses: Addresses | None = None
    indices: tuple[frozenset[int] | None, ...] = ()

    def is_disjoint(self, other: Use) -> bool:
        """Return whether two uses of one buffer have no element in common: the border of an image and its inside."""
        if len(self.indices) != len(other.indices):
            return False
        pairs = zip(self.indices, other.indices, strict=True)
        return any(a is not None and b is not None and a.isdisjoint(b) for a, b in pairs)


@dataclass(frozen=True)
class _Kernel:
    """Kernel of the entry: its ``number`` in the order of calls, its range and its uses of memory.

    The kernels of a loop have the numbers of its last iteration, as if the loop did not take numbers itself.
    ``iterations`` is 0 if the range is known only at run time.
    """

    number: int
    iterations: int
    grain: int
    uses: tuple[Use, ...]

    @property
    def is_serial(self) -> bool:
        """Return whether the first thread runs it, whatever the number of threads."""
        return not self.grain or 0 < self.iterations <= self.grain

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Return the chunks of the typical number of threads."""
        size = chunk_size(self.iterations, self.grain, _TYPICAL_THREADS)
        return [(first, min(first + size, self.iterations)) for first in range(0, self.iterations, size)]


def is_shareable(steps: LoopProgram, plan: Plan) -> bool:
    """Return whether threads share the whole entry of a program: at least two kernels that threads share."""
    if not all(isinstance(step, _SHAREABLE) for step in steps.steps):
        return False
    inside = [inner for step in steps.steps if isinstance(step, RepeatLoop) for inner in step.steps]
    calls = [step for step in [*steps.steps, *inside, *inside] if isinstance(step, KernelStep)]
    return sum(range_of(step, plan)[1] > 0 for step in calls) > 1


def range_of(step: KernelStep, plan: Plan) -> tuple[Blocks, int]:
    """Return the range of a kernel and its grain."""
    if isinstance(step, OutlinedRegion):
        return (), 0
    if isinstance(step, TileLoop):
        return blocks_of(step), plan.tile_loops[step].grain
    kernel = plan.kernel(step.nest if isinstance(step, Scatter) else step)
    return ranges(kernel.nest, kernel.schedule), kernel.schedule.grain


def find_waits(steps: LoopProgram, plan: Plan) -> list[KernelWaits]:
    """Return the waits of each kernel of a shareable program, in the order of their numbers."""
    finder = _Finder(steps, plan)
    return [waits for step in steps.steps for waits in finder.add(step)]


class _Finder:
    """Analysis of the entry's steps in order. ``_kernels`` are those since the last barrier that all have passed."""

    def __init__(self, steps: LoopProgram, plan: Plan) -> None:
        self._plan = plan
        self._is_dynamic = plan.symbols.is_used
        self._lifetimes = lifetimes(steps.steps)
        self._places = {} if self._is_dynamic else plan_workspace(steps.steps)[0]
        self._in_place = {result for result, _ in steps.in_place}
        self._kernels: list[_Kernel] = []
        self._number = 0

    def add(self, step: Step) -> Iterator[KernelWaits]:
        """Yield the waits of the kernels of the next step."""
        if isinstance(step, RepeatLoop):
            yield from self._add_loop(step)
        elif isinstance(step, LoopNest | TileLoop | Scatter):
            kernel = self._describe(step, self._number)
            self._number += 1
            yield self._add_kernel(kernel)
        elif isinstance(step, LoadStep):
            # The entry has a barrier before the load, and a kernel without blocks after it.
            self._number += 2
            self._kernels = [_Kernel(self._number - 1, 0, 1, (Use(step.buffer, False),))]

    def _describe(
        self, step: LoopNest | TileLoop | Scatter, number: int, views: Mapping[Buffer, Buffer] | None = None
    ) -> _Kernel:
        """Return a kernel. In a loop, whose ``views`` move, and in a dynamic program its addresses are not known."""
        blocks, grain = range_of(step, self._plan)
        if self._is_dynamic or views is not None:
            known = views or {}
            used = [(b, True) for b in step.writes] + [(b, False) for b in step.reads]
            return _Kernel(number, 0, grain, tuple(Use(known.get(b, b), is_write) for b, is_write in used))
        uses = _uses_of_tiles(step) if isinstance(step, TileLoop) else _uses_of_nest(step, self._plan)
        return _Kernel(number, count(blocks), grain, tuple(uses) if count(blocks) else ())

    def _add_kernel(self, kernel: _Kernel) -> KernelWaits:
        waits: list[Wait] = []
        for position in reversed(range(len(self._kernels))):
            earlier = self._kernels[position]
            added = self._compare(earlier, kernel)
            is_far = len(self._kernels) - position > _MOST_KERNELS
            if added is None or is_far or len(waits) + len(added) > _MOST_WAITS:
                self._kernels = [*self._kernels[position + 1 :], kernel]
                return KernelWaits(kernel.number - earlier.number, tuple(waits))
            waits += added
        self._kernels.append(kernel)
        return KernelWaits(0, tuple(waits))

    def _add_loop(self, step: RepeatLoop) -> Iterator[KernelWaits]:
        """Yield the waits of the kernels in a loop: for all threads and all earlier kernels, or none.

        The second iteration has the waits of all others.
        """
        views = {view.buffer: view.base for view in step.views}
        before, size = self._kernels, len(step.steps)
        waiting: set[int] = set()
        for position in (*range(size), *range(size)):
            kernel = self._describe(step.steps[position], self._number - size + position, views)
            if any(self._compare(earlier, kernel) != [] for earlier in self._kernels):
                waiting.add(position)
                self._kernels = []
            self._kernels = [*self._kernels, kernel]
        if isinstance(step.count, Size) or step.count < 1:  # Its kernels, and so its barriers, may not run.
            self._kernels = [*before, *self._kernels]
        yield from (KernelWaits(int(position in waiting)) for position in range(size))

    def _compare(self, earlier: _Kernel, later: _Kernel) -> list[Wait] | None:
        """Return the waits of a kernel for an earlier one; None if all threads should wait for all."""
        if earlier.is_serial and later.is_serial:
            return []
        waits: list[Wait] = []
        for first, second in itertools.product(earlier.uses, later.uses):
            if not (first.is_write or second.is_write) or not self._may_meet(first, second):
                continue
            wait = self._wait(earlier, later, first, second)
            if wait is None:
                return None
            if wait not in waits and not _is_own(wait, later):
                waits.append(wait)
        return waits

    def _may_meet(self, first: Use, second: Use) -> bool:
        """Return whether two uses may have memory in common.

        A result that is computed in the memory of an input may change other inputs, too: inputs may alias each other.
        """
        before, now = first.buffer, second.buffer
        if before is now:
            return not first.is_disjoint(second)
        if before.kind == now.kind == "temporary":
            return not self._lifetimes[before].overlaps(self._lifetimes[now]) and self._share_place(before, now)
        results = [b for b in (before, now) if b.kind == "result" and b.position in self._in_place]
        return bool(results) and any(b.kind in ("input", "parameter") for b in (before, now))

    def _share_place(self, first: Buffer, second: Buffer) -> bool:
        """Return whether two temporaries may have a common place in the workspace."""
        if self._is_dynamic:
            return True
        begin, other = self._places[first], self._places[second]
        return begin < other + static(second.bytes) and other < begin + static(first.bytes)

    def _wait(self, earlier: _Kernel, later: _Kernel, first: Use, second: Use) -> Wait | None:
        """Return the wait between two uses of memory; None if all threads would wait for all, or may have to."""
        if first.addresses is None or second.addresses is None or later.is_serial:
            return None
        moduli, shift = {0}, 0
        if first.buffer is second.buffer:
            loops = (*first.addresses.ranged, *first.addresses.inner, *second.addresses.ranged, *second.addresses.inner)
            moduli |= {distance for distance, _ in loops if distance > 0}
        elif first.buffer.kind == second.buffer.kind == "temporary":
            shift = self._places[second.buffer] - self._places[first.buffer]
        else:
            return None
        best, fewest = None, len(earlier.chunks) * len(later.chunks)
        for modulus in sorted(moduli):
            before, now = first.addresses.footprint(modulus), second.addresses.footprint(modulus)
            if before is None or now is None:
                continue
            now = replace(now, begin=now.begin + shift, end=now.end + shift)
            wait = Wait(later.number - earlier.number, earlier.iterations, earlier.grain, before, now)
            pairs = sum(len(wait.threads(*chunk, _TYPICAL_THREADS)) for chunk in later.chunks)
            if pairs < fewest:
                best, fewest = wait, pairs
        return best


def _is_own(wait: Wait, later: _Kernel) -> bool:
    """Return whether each block uses addresses of only the same block of the earlier kernel, so of the same thread."""
    earlier, now = wait.earlier, wait.later
    if (wait.iterations, wait.grain) != (later.iterations, later.grain) or (earlier.blocks, now.blocks) != (1, 1):
        return False
    is_before = (now.begin - earlier.end) // now.stride == -1
    return earlier.stride == now.stride and is_before and now.end - earlier.begin <= now.stride


def _uses_of_nest(step: LoopNest | Scatter, plan: Plan) -> Iterator[Use]:
    nest = step.nest if isinstance(step, Scatter) else step
    kernel = plan.kernel(nest)
    blocks = {level.loop: level.step for level in kernel.schedule.levels[: kernel.schedule.ranged]}
    for number, access in enumerate(nest.accesses):
        buffer, offset = nest.places[number]
        width = ELEMENT_BYTES[storage_type(access.element)]
        distances = [static(stride) * width for stride in kernel.nest.operands[number].strides]
        loops = list(zip(distances, map(static, kernel.nest.sizes), strict=True))
        if _is_write(nest, number) and isinstance(step, Scatter):
            yield Use(buffer, True)
            continue
        addresses = Addresses.of_loops(_bytes(buffer, offset), width, loops, blocks)
        yield Use(buffer, _is_write(nest, number), addresses, _indices(access, nest.sizes))
    yield from (Use(table.buffer, False) for table in nest.tables)


def _uses_of_tiles(step: TileLoop) -> Iterator[Use]:
    for position, member in enumerate(step.members):
        sizes = list(map(static, step.part(position, step.extents).sizes))
        blocks = dict(zip(step.loops[position], step.tile, strict=True))
        for number, access in enumerate(member.accesses):
            buffer, offset = member.places[number]
            if buffer.kind == "local":
                continue
            distances = [_bytes(buffer, factor) for factor in access.linearise(len(sizes)).factors]
            width = ELEMENT_BYTES[storage_type(access.element)]
            loops = list(zip(distances, sizes, strict=True))
            addresses = Addresses.of_loops(_bytes(buffer, offset), width, loops, blocks)
            yield Use(buffer, _is_write(member, number), addresses, _indices(access, sizes))
        yield from (Use(table.buffer, False) for table in member.tables)


def _is_write(nest: LoopNest, number: int) -> bool:
    """Return whether a nest writes at access ``number``: the last accesses are those that it writes."""
    return number >= len(nest.accesses) - len(nest.written_accesses)


def _indices(access: Access, sizes: Sequence[AnySize]) -> tuple[frozenset[int] | None, ...]:
    """Return all indices of each dimension in an access of loops of ``sizes``; empty if it is of several elements."""
    return tuple(_numbers(index, tuple(sizes)) for index in access.indices) if access.width == 1 else ()


@lru_cache(maxsize=4096)
def _numbers(index: AffineExpr, sizes: tuple[AnySize, ...]) -> frozenset[int] | None:
    if math.prod(static(sizes[loop]) for loop in index.loops) > _MOST_INDICES:
        return None
    numbers = {static(index.constant)}
    for loop in index.loops:
        numbers = {n + static(index.factors[loop]) * k for n in numbers for k in range(static(sizes[loop]))}
    return frozenset(numbers)


def _bytes(buffer: Buffer, elements: AnySize) -> int:
    return static(elements) * ELEMENT_BYTES[storage_type(buffer.element)]
