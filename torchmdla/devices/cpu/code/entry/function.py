"""Writer of a function of the ABI, step by step: the entry, or a pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.code.entry.abi import WORKSPACE, Abi
from torchmdla.devices.cpu.code.entry.calls import CallWriter
from torchmdla.devices.cpu.code.entry.frame import Frame
from torchmdla.devices.cpu.code.entry.kernel_functions import KernelFunctions
from torchmdla.devices.cpu.code.entry.manifest import KernelList
from torchmdla.devices.cpu.code.entry.scalar_code import ScalarCode
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.loop_program import (
    AssertStep,
    LoadStep,
    LoopNest,
    OutlinedRegion,
    Packing,
    RepeatLoop,
    ScalarStep,
    Step,
    StoreStep,
    TileLoop,
)

# The number of steps that share a loaded pointer. LLVM's register allocation takes quadratic time in a value's uses.
_SECTION = 256


class FunctionWriter:
    """Writer of one function of the ABI: the entry, or a pack.

    Each step becomes a call of a kernel or region, or scalar code. ``listed`` records the kernels of the entry.
    """

    def __init__(
        self, symbol: str, steps: Sequence[Step], abi: Abi, kernels: KernelFunctions, packing: Packing | None = None
    ) -> None:
        self.symbol = symbol
        self.listed = KernelList()
        self._steps = steps
        self._kernels = kernels
        self._attributes = abi.attributes
        self._frame = Frame(steps, abi, kernels.marks, packing)
        self._calls = CallWriter(self._frame, kernels, None if packing else self.listed)
        self._scalars = ScalarCode(self._frame)
        self._writers: Mapping[type, Callable[[Any], None]] = {
            LoopNest: self._calls.nest,
            TileLoop: self._calls.tile_loop,
            OutlinedRegion: self._calls.region,
            RepeatLoop: self._repeat,
            LoadStep: self._scalars.load,
            StoreStep: self._scalars.store,
            ScalarStep: self._scalars.compute,
            AssertStep: self._scalars.check,
        }

    @property
    def workspace_bytes(self) -> int:
        """Return the size in bytes of a workspace that is planned at compile time, after :meth:`write`."""
        return self._frame.workspace_bytes

    @property
    def arguments(self) -> frozenset[int]:
        """Return the positions of the arguments and results that the function uses, after :meth:`write`."""
        return frozenset(self._frame.arguments)

    def require(self, numbers: Sequence[Size]) -> None:
        """End a call with an error if one of ``numbers`` is negative."""
        for number in numbers:
            self._scalars.require(number)

    def write(self) -> str:
        for first in range(0, len(self._steps), _SECTION):
            if first:
                self._frame.text.begin_section()
            self._run(self._steps[first : first + _SECTION])
        return self._assemble()

    def write_workspace(self) -> str:
        """Return the function that computes the size of the workspace. Call this after :meth:`write`."""
        text = self._frame.text
        text.add(f"llvm.return {self._frame.workspace_value('%sizes')} : i64")
        return self._function(f"@{WORKSPACE}(%sizes: !llvm.ptr) -> i64", text.take())

    def _run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._writers[type(step)](step)

    def _repeat(self, step: RepeatLoop) -> None:
        """Write a loop. The addresses of its views are computed at the start of each iteration."""
        frame, text = self._frame, self._frame.text
        for nest in step.nests:
            self._calls.spill(nest.all_scalars)
        bases = [frame.pointer(view.base, view.offset) for view in step.views]
        distances = [frame.number(v.distance * ELEMENT_BYTES[storage_type(v.base.element)]) for v in step.views]
        begin, end, increment = text.constant(0), frame.number(step.count), text.constant(1)
        iteration = text.fresh()
        text.add(f"scf.for {iteration} = {begin} to {end} step {increment} : i64 {{")
        for view, base, distance in zip(step.views, bases, distances, strict=True):
            moved = text.define(f"llvm.mul {iteration}, {distance} : i64")
            frame.views[view.buffer] = text.offset_pointer(base, moved)
        with self.listed.repeat(step):
            self._run(step.steps)
        text.add("}")

    def _assemble(self) -> str:
        frame, text = self._frame, self._frame.text
        body = text.take()
        count = f"llvm.mlir.constant({self._calls.most_operands} : i64) : i64"
        head = [f"%count = {count}", "%operands = llvm.alloca %count x !llvm.ptr : (i64) -> !llvm.ptr"]
        if frame.has_status:
            text.add(f"llvm.store {text.constant(0, 'i32')}, {frame.status()} : i32, !llvm.ptr")
            body = [*text.take(), *body]
        status = text.constant(0, "i32")
        if frame.has_status:
            status = text.define(f"llvm.load {frame.status()} : !llvm.ptr -> i32")
        if frame.marks:
            status = frame.marks.outcome(text.define, status)
        text.add(f"llvm.return {status} : i32")
        if self._scalars.may_fail:
            text.add("^failed:")
            text.add(f"llvm.return {text.constant(1, 'i32')} : i32")
        argument = "%given" if frame.marks else "%buffers"
        body += text.take()
        return self._function(f"@{self.symbol}({argument}: !llvm.ptr) -> i32", [*head, *frame.prologue(), *body])

    def _function(self, head: str, lines: Sequence[str]) -> str:
        return "\n".join([f"llvm.func {head} {self._attributes} {{", *self._frame.text.constants, *lines, "}"])
