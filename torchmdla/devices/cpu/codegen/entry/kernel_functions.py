"""Kernels of a module. Equal kernels are written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torchmdla.compiler import dump
from torchmdla.devices.cpu.codegen.checks import Marks
from torchmdla.devices.cpu.codegen.kernels import write_kernel
from torchmdla.devices.cpu.codegen.kernels.instructions import has_infinities
from torchmdla.devices.cpu.codegen.tile_loops import MemberKernel, TileLoopCode, TileLoopWriter
from torchmdla.devices.cpu.ir.loop_program import LoopNest, OutlinedRegion, TileLoop
from torchmdla.devices.cpu.ir.printer import kernel_text
from torchmdla.devices.cpu.schedule import Ahead, ranges
from torchmdla.devices.cpu.schedule.plan import Plan, ScheduledKernel
from torchmdla.devices.cpu.target.machine import Machine


class KernelFunctions:
    """Functions of the steps of ``plan``.

    ``regions`` are the texts of regions by symbol. ``externals`` are the types of the external functions that the
    module calls, by symbol.
    """

    def __init__(self, machine: Machine, attributes: str, plan: Plan, marks: Marks | None) -> None:
        self._attributes = attributes
        self.marks = marks
        self.regions: dict[str, str] = {}
        self.externals: dict[str, str] = {}
        self._machine = machine
        self._plan = plan
        self._has_infinities = any(has_infinities(kernel.nest) for kernel in plan.kernels.values())
        # The symbols of kernels, by their code and by the identity of the planned kernel.
        self._symbols: dict[str, str] = {}
        self._written: dict[int, str] = {}

    @property
    def count(self) -> int:
        """Return the number of functions."""
        return len(self._symbols) + len(self.regions)

    @property
    def code(self) -> dict[str, str]:
        """Return the code of the kernels by symbol. In the code, ``{symbol}`` stands for the symbol."""
        return {symbol: code for code, symbol in self._symbols.items()}

    def nest(self, step: LoopNest, ahead: Ahead = ()) -> tuple[str, ScheduledKernel]:
        """Return the symbol and the kernel of a nest with the prefetches ``ahead``; write the kernel if it is new."""
        kernel = self._plan.kernel(step, ahead)
        if id(kernel) not in self._written:
            code = write_kernel(
                kernel.nest, kernel.schedule, self._machine, self._attributes, has_infinities=self._has_infinities
            )
            self.externals.update(code.externals)
            description = partial(kernel_text, kernel.nest, kernel.schedule)
            self._written[id(kernel)] = self._symbol(code.text, description)
        return self._written[id(kernel)], kernel

    def tile_loop(self, step: TileLoop) -> tuple[str, TileLoopCode, int]:
        """Return the symbol of a tile loop's kernel, its code, and the number of tiles in a task."""

        def member_kernel(member: LoopNest, ahead: Ahead) -> MemberKernel:
            symbol, kernel = self.nest(member, ahead)
            return MemberKernel(symbol, ranges(kernel.nest, kernel.schedule), kernel.nest.is_dynamic)

        plan = self._plan
        schedule = plan.tile_loops[step]
        code = TileLoopWriter(step, schedule, member_kernel, self._attributes, plan.symbols, self.marks).write()
        self.externals.update(code.externals)
        return self._symbol(code.text), code, schedule.grain

    def region(self, step: OutlinedRegion) -> None:
        """Add the function of a region."""
        self.regions[step.symbol] = step.text
        dump.write(f"{step.symbol}.mlir", lambda: f"{step.text}\n")

    def _symbol(self, code: str, describe: Callable[[], str] = str) -> str:
        """Return the symbol of a kernel with this code. ``describe`` returns a description as comments."""
        if code not in self._symbols:
            symbol = self._symbols[code] = f"kernel_{len(self._symbols)}"
            dump.write(f"{symbol}.mlir", lambda: describe() + code.replace("{symbol}", symbol) + "\n")
        return self._symbols[code]
