"""Footprints of kernels in memory, and the waits that follow from them if threads share an entry.

An access of a kernel is a sum of one term per loop (:class:`Addresses`). The addresses of a block of the kernel's range
are an interval that moves with the block's number (:class:`Footprint`). The rows of all channels are not an interval.
Then the footprint has addresses modulo the distance of channels. The runtime (``src/runtime/shared_entry.cpp``)
compares footprints for the chunks of its threads (:class:`Wait`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from torchmdla.devices.cpu.schedule.partition import chunk_size

# A loop of an access: the distance in bytes from iteration to iteration, and the number of iterations.
Loop = tuple[int, int]


@dataclass(frozen=True)
class Footprint:
    """Interval of addresses that moves with the number of a block of a kernel's range.

    Blocks from number ``n * blocks`` on use the addresses from ``n * stride + begin`` to ``n * stride + end``.
    """

    blocks: int
    stride: int
    begin: int
    end: int


@dataclass(frozen=True)
class Wait:
    """Wait for an earlier kernel, ``distance`` kernels before, for the threads whose chunks have a common address.

    ``iterations`` and ``grain`` are those of the earlier kernel.
    """

    distance: int
    iterations: int
    grain: int
    earlier: Footprint
    later: Footprint

    def threads(self, first: int, end: int, threads: int) -> range:
        """Return the threads to wait for before blocks ``first`` to ``end`` run, as the runtime computes them."""
        low = first // self.later.blocks * self.later.stride + self.later.begin
        high = (end - 1) // self.later.blocks * self.later.stride + self.later.end
        lowest = max((low - self.earlier.end) // self.earlier.stride + 1, 0)
        highest = (high - self.earlier.begin - 1) // self.earlier.stride
        last = min((highest + 1) * self.earlier.blocks, self.iterations) - 1
        chunk = chunk_size(self.iterations, self.grain, threads)
        return range(lowest * self.earlier.blocks // chunk, last // chunk + 1) if last >= 0 else range(0)


@dataclass(frozen=True)
class KernelWaits:
    """Waits of a kernel: for a ``barrier``, and for some threads.

    At a barrier all threads wait until all have finished the kernel ``barrier`` kernels before; 0 without a barrier.
    """

    barrier: int = 0
    waits: tuple[Wait, ...] = ()

    @property
    def constants(self) -> list[int]:
        """Return the waits as the runtime reads them."""
        waits = [(w.distance, w.iterations, w.grain, *astuple(w.earlier), *astuple(w.later)) for w in self.waits]
        return [self.barrier, len(waits), *(number for wait in waits for number in wait)]


@dataclass(frozen=True)
class Addresses:
    """Addresses of an access: ``offset`` plus a multiple of each loop's distance, ``width`` bytes each.

    Attributes:
        loops: the loops of the kernel.
        ranged: the loops of the kernel's range, from block to block.
        inner: the loops inside a block.
    """

    offset: int
    width: int
    loops: tuple[Loop, ...]
    ranged: tuple[Loop, ...]
    inner: tuple[Loop, ...]

    @classmethod
    def of_loops(cls, offset: int, width: int, loops: Sequence[Loop], blocks: Mapping[int, int]) -> Addresses:
        """Return the addresses of ``loops``, of which those in ``blocks`` are the range, with their sizes of blocks."""
        ranged = tuple((loops[k][0] * step, -(-loops[k][1] // step)) for k, step in blocks.items())
        inner = tuple((distance, min(size, blocks.get(k, size))) for k, (distance, size) in enumerate(loops))
        return cls(offset, width, tuple(loops), ranged, inner)

    @property
    def iterations(self) -> int:
        """Return the number of blocks in the range."""
        return math.prod(size for _, size in self.ranged)

    def footprint(self, modulus: int) -> Footprint | None:
        """Return the footprint of addresses modulo ``modulus``, or of the addresses themselves if it is 0.

        The result is None if no such interval has all addresses.
        """
        if any(distance < 0 for distance, _ in self.loops):
            return None

        def span(loops: Sequence[Loop]) -> int:
            return sum(distance * (size - 1) for distance, size in loops if not _divides(modulus, distance))

        begin = self.offset % modulus if modulus else self.offset
        if modulus and begin + span(self.loops) + self.width > modulus:
            return None
        distance, size, rest = self._outermost(modulus)
        end = begin + span((*self.ranged[rest:], *self.inner)) + self.width
        if not distance or _divides(modulus, distance):
            return Footprint(self.iterations, 1, begin, end)
        return Footprint(self.iterations // size, distance, begin, end)

    def _outermost(self, modulus: int) -> tuple[int, int, int]:
        """Return the distance and size of the range's outermost loop, and the number of loops that it consists of.

        Loops inside that continue it are joined with it.
        """
        start = next((k for k, (_, size) in enumerate(self.ranged) if size > 1), None)
        if start is None:
            return 0, 1, len(self.ranged)
        (distance, size), end = self.ranged[start], start + 1
        for inner, iterations in self.ranged[end:]:
            if distance != inner * iterations or _divides(modulus, distance):
                break
            distance, size, end = inner, size * iterations, end + 1
        return distance, size, end


def _divides(modulus: int, distance: int) -> bool:
    return modulus > 0 and not distance % modulus
