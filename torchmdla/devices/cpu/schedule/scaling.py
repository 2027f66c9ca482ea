"""Scaling of a planned program with threads: which part of each kernel's work the busiest thread does.

The partition is exact (:mod:`~torchmdla.devices.cpu.schedule.partition`), on a machine with any number of processors.
The work of kernels is in cycles of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torchmdla.compiler.sizes import Size, at
from torchmdla.devices.cpu.ir.loop_program import (
    KernelStep,
    LoopProgram,
    OutlinedRegion,
    RepeatLoop,
    Scatter,
    TileLoop,
    is_contraction,
    is_copy,
)
from torchmdla.devices.cpu.ir.work import work_of
from torchmdla.devices.cpu.schedule import BYTE_COST, Blocks, count, estimate_cycles, ranges
from torchmdla.devices.cpu.schedule.footprints import KernelWaits
from torchmdla.devices.cpu.schedule.partition import (
    StaticBlocks,
    barrier_cycles,
    chunk_size,
    count_tasks,
    join_cycles,
    largest_share,
)
from torchmdla.devices.cpu.schedule.plan import Plan
from torchmdla.devices.cpu.schedule.tile_loops import blocks_of
from torchmdla.devices.cpu.target.machine import Machine
from torchmdla.devices.cpu.target.vector_math import expand

# The cycles of the entry for a call of a kernel: it stores the operands, and notifies the runtime.
_ENTRY_CYCLES = 50.0


@dataclass(frozen=True)
class SharedKernel:
    """Kernel of a planned program, and the way that threads share it.

    Attributes:
        kind: ``"product"``, ``"tiles"``, ``"copy"``, ``"region"`` or ``"other"``.
        loops: the sizes of its nests.
        calls: the number of calls of the kernel in a call of the program.
        cycles: the cycles of all calls on one thread.
        blocks: the range that threads share.
        grain: the number of blocks in a task; 0 if one thread runs the kernel.
        threads: the number of threads.
    """

    kind: str
    loops: str
    calls: int
    cycles: float
    blocks: StaticBlocks
    grain: int
    threads: int

    @cached_property
    def tasks(self) -> int:
        """Return the number of threads that run a part of the kernel."""
        return count_tasks(count(self.blocks), self.grain, self.threads)

    @cached_property
    def largest(self) -> float:
        """Return the part of the work that the busiest thread does."""
        return largest_share(self.blocks, self.grain, self.threads)

    @property
    def imbalance(self) -> float:
        """Return the work of the busiest thread relative to the mean of all threads, minus one."""
        return self.largest * self.threads - 1

    @property
    def is_serial(self) -> bool:
        return self.tasks == 1


@dataclass(frozen=True)
class Scaling:
    """Kernels of a planned program on a number of threads.

    ``waits`` are those of the kernels if threads share the whole entry.
    """

    kernels: Sequence[SharedKernel]
    threads: int
    waits: Sequence[KernelWaits] = ()

    @property
    def serial_cycles(self) -> float:
        """Return the cycles of the kernels that one thread runs, and of the entry."""
        calls = sum(kernel.calls for kernel in self.kernels)
        return sum(kernel.cycles for kernel in self.kernels if kernel.is_serial) + _ENTRY_CYCLES * calls

    @property
    def serial_share(self) -> float:
        """Return the part of the program's work that one thread does alone."""
        return self.serial_cycles / (self.serial_cycles + self._shared_cycles)

    @property
    def imbalance(self) -> float:
        """Return the imbalance of all shared kernels together, weighted by their work."""
        busiest = sum(kernel.cycles * (1 + kernel.imbalance) for kernel in self.kernels if not kernel.is_serial)
        return busiest / self._shared_cycles - 1 if self._shared_cycles else 0.0

    @property
    def joins(self) -> int:
        """Return how often a call of the program starts and joins threads."""
        shared = sum(kernel.calls for kernel in self.kernels if not kernel.is_serial)
        return min(shared, 1) if self.waits else shared

    @property
    def barriers(self) -> int:
        """Return how often all threads wait for all others in a call, without joining."""
        return sum(kernel.calls for kernel, waits in zip(self.kernels, self.waits, strict=False) if waits.barrier)

    @property
    def partial_waits(self) -> int:
        """Return the number of kernels in a call before which some threads wait for some others, without a barrier."""
        pairs = zip(self.kernels, self.waits, strict=False)
        return sum(kernel.calls for kernel, waits in pairs if not waits.barrier and self._is_waiting(kernel, waits))

    def _is_waiting(self, kernel: SharedKernel, waits: KernelWaits) -> bool:
        """Return whether a thread waits for another one before its chunk of a kernel."""
        iterations, size = count(kernel.blocks), chunk_size(count(kernel.blocks), kernel.grain, self.threads)
        chunks = enumerate((first, min(first + size, iterations)) for first in range(0, iterations, size))
        return any(
            set(wait.threads(*chunk, self.threads)) - {thread} for thread, chunk in chunks for wait in waits.waits
        )

    @property
    def speed_up(self) -> float:
        """Return the time of one thread over the time of all threads, by the cost model."""
        busiest = sum(kernel.cycles * kernel.largest for kernel in self.kernels if not kernel.is_serial)
        alone = self.serial_cycles + self._shared_cycles
        waiting = (self.barriers + self.partial_waits) * barrier_cycles(self.threads)
        return alone / (self.serial_cycles + busiest + self.joins * join_cycles(self.threads) + waiting)

    @property
    def _shared_cycles(self) -> float:
        return sum(kernel.cycles for kernel in self.kernels if not kernel.is_serial)


def scaling_of(
    steps: LoopProgram, plan: Plan, machine: Machine, threads: int, waits: Sequence[KernelWaits] = ()
) -> Scaling:
    """Return the scaling of a program, at the typical values of its symbols, on ``threads`` threads.

    ``waits`` are those of its kernels if threads share the whole entry.
    """
    kernels = []
    for step, calls in _kernel_steps(steps):
        kind, cycles, blocks, grain = _describe(step, plan, machine)
        typical = plan.symbols.typical
        sizes = [(at(size, typical), block) for size, block in blocks]
        times = at(calls, typical)
        kernels.append(SharedKernel(kind, work_of(step).loops, times, cycles * times, sizes, grain, threads))
    return Scaling(kernels, threads, waits)


def _kernel_steps(steps: LoopProgram) -> Iterator[tuple[KernelStep, int | Size]]:
    """Yield each call of a kernel in the entry, in order, and how often a call of the program repeats it."""
    for step in steps.steps:
        if isinstance(step, RepeatLoop):
            yield from ((inner, step.count) for inner in step.steps)
        elif isinstance(step, KernelStep):
            yield step, 1


def _describe(step: KernelStep, plan: Plan, machine: Machine) -> tuple[str, float, Blocks, int]:
    """Return the kind of a kernel, its cycles, its range and its grain."""
    typical = plan.symbols.typical
    if isinstance(step, OutlinedRegion):
        return "region", at(work_of(step).bytes, typical) * BYTE_COST, (), 0
    if isinstance(step, TileLoop):
        members = (step.part(position, step.extents).kernel for position in range(len(step.members)))
        cycles = sum(estimate_cycles(expand(member, machine), machine, typical) for member in members)
        return "tiles", cycles, blocks_of(step), plan.tile_loops[step].grain
    nest = step.nest if isinstance(step, Scatter) else step
    kernel = plan.kernel(nest)
    kind = "product" if is_contraction(nest) else "copy" if is_copy(nest) else "other"
    blocks, grain = ranges(kernel.nest, kernel.schedule), kernel.schedule.grain
    return kind, estimate_cycles(kernel.nest, machine, typical), blocks, grain
