"""Manifest entries of kernels and packs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torchmdla.compiler.artifact import KernelCall, Pack
from torchmdla.compiler.program import Program
from torchmdla.compiler.sizes import Size, static, terms
from torchmdla.devices.cpu.ir.accesses import Buffer
from torchmdla.devices.cpu.ir.loop_program import (
    KernelStep,
    LoopProgram,
    Packing,
    RepeatLoop,
    TileLoop,
)
from torchmdla.devices.cpu.ir.work import work_of


class KernelList:
    """List of the kernel calls in an entry, in order.

    ``calls`` record the work of each call, and the calls whose results it reads. ``nests`` is the number of nests in
    all calls.
    """

    def __init__(self) -> None:
        self.calls: list[KernelCall] = []
        self.nests = 0
        self._repeats: int | Size = 1
        # The base of each buffer that is a view, the kernels that wrote each buffer, and the buffers read since then.
        self._bases: dict[Buffer, Buffer] = {}
        self._writers: dict[Buffer, list[int]] = {}
        self._was_read: set[Buffer] = set()

    def add(self, symbol: str, step: KernelStep) -> int:
        """Add a call of the kernel of ``step`` and return the number of the call."""
        number = len(self.calls)
        self.nests += len(step.members) if isinstance(step, TileLoop) else 1
        after = self._register(step, number)
        work = work_of(step, self._repeats)
        flops, moved = terms(work.flops), terms(work.bytes)
        is_result = any(buffer.kind == "result" for buffer in step.writes)
        self.calls.append(KernelCall(symbol, work.loops, flops, moved, work.nodes, after, is_result))
        return number

    @contextmanager
    def repeat(self, step: RepeatLoop) -> Iterator[None]:
        """Record the calls that are added in the block as calls in the loop ``step``."""
        self._bases.update((view.buffer, view.base) for view in step.views)
        self._repeats = step.count
        yield
        self._repeats = 1

    def _register(self, step: KernelStep, number: int) -> tuple[int, ...]:
        """Return the kernels that wrote the buffers that ``step`` reads, with -1 for inputs.

        Register kernel ``number`` as a writer of the buffers that ``step`` writes. Kernels that write to a buffer
        before a kernel reads it are all writers of the buffer: each may write a part.
        """
        reads = {self._bases.get(buffer, buffer) for buffer in step.reads}
        writers = ([-1] if buffer.kind == "input" else self._writers.get(buffer, []) for buffer in reads)
        after = sorted({writer for each in writers for writer in each} - {number})
        self._was_read |= reads
        for buffer in {self._bases.get(buffer, buffer) for buffer in step.writes}:
            earlier = [] if buffer in self._was_read else self._writers.get(buffer, [])
            self._writers[buffer] = [*earlier, number]
            self._was_read.discard(buffer)
        return tuple(after)


def describe_packs(
    steps: LoopProgram, program: Program, functions: Sequence[tuple[str, str]], kernels: Mapping[str, str]
) -> tuple[Pack, ...]:
    """Return the manifest entries of the packs of ``steps``.

    ``functions`` are the symbol and the code of each pack. In the code, ``{symbol}`` stands for the symbol. The packs
    call ``kernels``, which are code by symbol.
    """
    hashes = {symbol: _hash(code) for symbol, code in kernels.items()}

    def describe(packing: Packing, symbol: str, text: str) -> Pack:
        """Return the manifest entry of a pack.

        Its recipe is a hash of everything that the function does: the types of arguments, the constants, and the calls
        with the kernels' code in place of their names.
        """
        calls = re.sub(r"(?<=@)kernel_\d+\b", lambda match: hashes[match[0]], text)
        kinds = [(program.arguments[k].dtype, program.arguments[k].shape) for k in packing.arguments]
        constants = sorted({steps.globals[b.symbol] for s in packing.steps for b in s.reads if b.kind == "global"})
        recipe = _hash(f"{kinds} {constants} {calls}")
        return Pack(symbol, recipe, packing.arguments, static(packing.buffer.bytes))

    return tuple(describe(p, *function) for p, function in zip(steps.packings, functions, strict=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
