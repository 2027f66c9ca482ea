"""What the manifest says of kernels and packs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torchmdla.compiler.artifact import KernelCall, Pack
from torchmdla.compiler.program import Program
from torchmdla.compiler.sizes import Size, static, terms
from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, OutlinedRegion, Packing, RepeatLoop, TileLoop
from torchmdla.devices.cpu.work import work_of


class KernelList:
    """The ``calls`` of kernels in an entry, in order: what each computes, and whose results it reads. ``nests``: how
    many there are in them."""

    def __init__(self) -> None:
        self.calls: list[KernelCall] = []
        self.nests = 0
        self._writers = _Writers()
        self._repeats: int | Size = 1

    def add(self, symbol: str, step: LoopNest | TileLoop | OutlinedRegion) -> int:
        """The number of the next call, of the kernel of ``step``."""
        number = len(self.calls)
        self.nests += len(step.members) if isinstance(step, TileLoop) else 1
        after = self._writers.of_read(step, number)
        work = work_of(step, self._repeats)
        flops, moved = terms(work.flops), terms(work.bytes)
        is_result = any(buffer.kind == "result" for buffer in step.writes)
        self.calls.append(KernelCall(symbol, work.loops, flops, moved, work.nodes, after, is_result))
        return number

    @contextmanager
    def repeated(self, step: RepeatLoop) -> Iterator[None]:
        """What is added meanwhile is in a loop."""
        self._writers.bases.update((view.buffer, view.base) for view in step.views)
        self._repeats = step.count
        yield
        self._repeats = 1


class _Writers:
    """Which kernels wrote what buffers hold. ``bases``: the buffers that views are of."""

    def __init__(self) -> None:
        self.bases: dict[Buffer, Buffer] = {}
        self._writers: dict[Buffer, list[int]] = {}
        self._was_read: set[Buffer] = set()

    def of_read(self, step: LoopNest | TileLoop | OutlinedRegion, number: int) -> tuple[int, ...]:
        """The kernels that wrote what ``step`` reads, -1 for inputs. From then on it has written what it writes: with
        those before it, each a part, until somebody reads that."""
        reads = {self.bases.get(buffer, buffer) for buffer in step.reads}
        after = sorted({writer for buffer in reads for writer in self._writers_of(buffer)} - {number})
        self._was_read |= reads
        for buffer in {self.bases.get(buffer, buffer) for buffer in step.writes}:
            earlier = [] if buffer in self._was_read else self._writers.get(buffer, [])
            self._writers[buffer] = [*earlier, number]
            self._was_read.discard(buffer)
        return tuple(after)

    def _writers_of(self, buffer: Buffer) -> Sequence[int]:
        return (-1,) if buffer.kind == "input" else self._writers.get(buffer, ())


def described_packs(
    steps: LoopProgram, program: Program, functions: Sequence[tuple[str, str]], kernels: Mapping[str, str]
) -> tuple[Pack, ...]:
    """Return the packs of ``steps``. ``functions`` are the symbol and the code of each, in which ``{symbol}`` stands
    for the symbol; they call ``kernels``, code by symbol."""
    hashes = {symbol: _hash(code) for symbol, code in kernels.items()}

    def described(packing: Packing, symbol: str, text: str) -> Pack:
        """A recipe names everything that the function does: the calls, in place of the kernels' names their code, and
        the constants."""
        calls = re.sub(r"(?<=@)kernel_\d+\b", lambda found: hashes[found[0]], text)
        kinds = [(program.arguments[k].dtype, program.arguments[k].shape) for k in packing.arguments]
        constants = sorted({steps.globals[b.symbol] for s in packing.steps for b in s.reads if b.kind == "global"})
        recipe = _hash(f"{kinds} {constants} {calls}")
        return Pack(symbol, recipe, packing.arguments, static(packing.buffer.bytes))

    return tuple(described(p, *function) for p, function in zip(steps.packings, functions, strict=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
