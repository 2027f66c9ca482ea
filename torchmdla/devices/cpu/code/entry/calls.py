"""Calls of kernels: operands in an array, ranges that threads share, and notifications of the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.accesses import Scalar
from torchmdla.devices.cpu.code.entry.abi import BEGIN_KERNEL, KERNEL_TYPE, PARALLEL_FOR
from torchmdla.devices.cpu.code.entry.frame import Frame
from torchmdla.devices.cpu.code.entry.kernel_functions import KernelFunctions
from torchmdla.devices.cpu.code.entry.manifest import KernelList
from torchmdla.devices.cpu.loop_program import LoopNest, OutlinedRegion, TileLoop
from torchmdla.devices.cpu.schedule import Blocks, count, ranges
from torchmdla.devices.cpu.schedule.tile_loops import blocks_of


class CallWriter:
    """Writer of the calls in a function.

    ``most_operands`` is the largest number of operands of a kernel. ``listed`` records the calls of the entry; it is
    None in a pack.
    """

    def __init__(self, frame: Frame, kernels: KernelFunctions, listed: KernelList | None) -> None:
        self.most_operands = 1
        self._frame = frame
        self._text = frame.text
        self._kernels = kernels
        self._listed = listed

    def nest(self, step: LoopNest) -> None:
        symbol, kernel = self._kernels.nest(step)
        nest, schedule = kernel.nest, kernel.schedule
        places = step.places
        pointers = [self._frame.pointer(*places[number]) for number in step.pointer_places]
        pointers += self.spill(step.all_scalars)
        pointers += [self._frame.status()] if nest.may_fail else []
        pointers += [self._frame.symbols] if nest.is_dynamic else []
        self._begin(symbol, step)
        self._call(symbol, pointers, ranges(nest, schedule), schedule.grain)

    def tile_loop(self, step: TileLoop) -> None:
        symbol, code, grain = self._kernels.tile_loop(step)
        pointers = [self._frame.pointer(buffer, offset) for buffer, offset in code.places]
        pointers += self.spill(code.scalars)
        pointers += [self._frame.status()] if code.may_fail else []
        pointers += [self._frame.symbols] if self._frame.symbols else []
        self._begin(symbol, step)
        self._call(symbol, pointers, blocks_of(step), grain)

    def region(self, step: OutlinedRegion) -> None:
        self._begin(step.symbol, step)
        self._kernels.region(step)
        operands = [self._frame.pointer(buffer) for buffer in step.inputs + step.outputs + step.temporaries]
        kinds = ["!llvm.ptr"] * len(operands) + [s.type for s in step.scalars]
        operands += [self._frame.value(s) for s in step.scalars]
        results = [s.type for s in step.results]
        call = f"func.call @{step.symbol}({', '.join(operands)}) : ({', '.join(kinds)}) -> ({', '.join(results)})"
        if not results:
            self._text.add(call)
            return
        name = self._text.fresh()
        self._text.add(f"{name}:{len(results)} = {call}")
        self._frame.values.update((result, f"{name}#{k}") for k, result in enumerate(step.results))

    def spill(self, scalars: Sequence[Scalar]) -> list[str]:
        """Return the addresses of slots that hold the scalars."""
        return [self._frame.spill(scalar) for scalar in scalars]

    def _begin(self, symbol: str, step: LoopNest | TileLoop | OutlinedRegion) -> None:
        """Notify the runtime that a kernel begins. Packs do not notify it."""
        if self._listed is None:
            return
        number = self._text.constant(self._listed.add(symbol, step))
        kinds = self._kernels.externals[BEGIN_KERNEL] = "(i64) -> ()"
        self._text.add(f"llvm.call @{BEGIN_KERNEL}({number}) : {kinds}")

    def _call(self, symbol: str, pointers: Sequence[str], blocks: Blocks, tasks_of: int) -> None:
        """Run a kernel for the range of ``blocks``.

        Threads share the range in tasks of ``tasks_of`` blocks. The range is not shared if ``tasks_of`` is 0.
        """
        text, sizes = self._text, self._frame.sizes
        self.most_operands = max(self.most_operands, len(pointers))
        for k, pointer in enumerate(pointers):
            text.add(f"llvm.store {pointer}, {text.place_in('%operands', k)} : !llvm.ptr, !llvm.ptr")
        begin = text.constant(0)
        is_dynamic = any(isinstance(size, Size) for size, _ in blocks)
        end = sizes.count(blocks) if is_dynamic else text.constant(count(blocks))
        if not tasks_of:
            # Inlining the kernel does not make it faster, and would merge most of a module into one function.
            text.add(f"llvm.call @{symbol}(%operands, {begin}, {end}) {{no_inline}} : {KERNEL_TYPE}")
            return
        kernel, grain = text.define(f"llvm.mlir.addressof @{symbol} : !llvm.ptr"), text.constant(tasks_of)
        kinds = self._kernels.externals[PARALLEL_FOR] = "(!llvm.ptr, !llvm.ptr, i64, i64, i64) -> ()"
        text.add(f"llvm.call @{PARALLEL_FOR}({kernel}, %operands, {begin}, {end}, {grain}) : {kinds}")
