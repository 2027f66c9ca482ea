"""Writer of a function of the ABI, step by step: the entry, or a pack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.codegen.entry.abi import (
    BEGIN_KERNEL,
    ENTRY,
    KERNEL_TYPE,
    PARALLEL_FOR,
    SHARE_ENTRY,
    SHARE_KERNEL,
    SHARED,
    SHARED_KERNELS,
    SIZES,
    WORKSPACE,
    Abi,
)
from torchmdla.devices.cpu.codegen.entry.frame import Frame
from torchmdla.devices.cpu.codegen.entry.kernel_functions import KernelFunctions
from torchmdla.devices.cpu.codegen.entry.manifest import KernelList
from torchmdla.devices.cpu.codegen.sizes import SizeCode
from torchmdla.devices.cpu.ir.accesses import Scalar
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, register_type, storage_type, typed_constant
from torchmdla.devices.cpu.ir.loop_program import (
    AssertStep,
    ElementStep,
    KernelStep,
    LoadStep,
    LoopNest,
    OutlinedRegion,
    Packing,
    RepeatLoop,
    ScalarStep,
    Scatter,
    Step,
    StoreStep,
    TileLoop,
    flatten,
)
from torchmdla.devices.cpu.schedule import Blocks, count, ranges
from torchmdla.devices.cpu.schedule.footprints import KernelWaits
from torchmdla.devices.cpu.schedule.tile_loops import blocks_of

# The number of steps that share a loaded pointer. LLVM's register allocation takes quadratic time in a value's uses.
_SECTION = 256


class FunctionWriter:
    """Writer of one function of the ABI: the entry, or a pack.

    Each step becomes a call of a kernel or region, or scalar code. ``listed`` records the kernels of the entry. If the
    ``waits`` of its kernels are set, threads share the entry: each runs the function, and its part of each kernel.
    """

    def __init__(
        self,
        symbol: str,
        steps: Sequence[Step],
        abi: Abi,
        kernels: KernelFunctions,
        packing: Packing | None = None,
        waits: Sequence[KernelWaits] = (),
    ) -> None:
        self.symbol = symbol
        self.listed = KernelList()
        self._steps = steps
        self._kernels = kernels
        self._abi = abi
        self._waits = waits
        # The constants of the kernels that threads share, and the ranges and grains of those with several tasks.
        self._constants: list[int] = []
        self._ranges: dict[tuple[Blocks, int], None] = {}
        self._frame = Frame(steps, abi, kernels.marks, packing, "%status" if waits else "")
        self._text = self._frame.text
        # The largest number of operands of a kernel, and whether a check jumps to the block ``^failed``.
        self._most_operands = 1
        self._may_fail = False
        self._writers: Mapping[type, Callable[[Any], None]] = {
            LoopNest: self._nest,
            Scatter: self._scatter,
            TileLoop: self._tile_loop,
            OutlinedRegion: self._region,
            RepeatLoop: self._repeat,
            LoadStep: self._load,
            StoreStep: self._store,
            ScalarStep: self._compute,
            AssertStep: self._check,
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
        sizes = self._frame.sizes
        for number in numbers:
            self._fail_unless(self._text.define(f"arith.cmpi sge, {sizes.value(number)}, {sizes.value(0)} : i64"))

    def write(self) -> str:
        for first in range(0, len(self._steps), _SECTION):
            if first:
                self._text.begin_section()
            self._run(self._steps[first : first + _SECTION])
        kernels = sum(isinstance(step, KernelStep) for step in flatten(self._steps))
        assert self._frame.packing or len(self.listed.calls) == kernels, "releases of inputs rely on kernels' numbers"
        return self._assemble()

    def write_workspace(self) -> str:
        """Return the function that computes the size of the workspace. Call this after :meth:`write`."""
        text = self._text
        text.add(f"llvm.return {self._frame.workspace_value('%sizes')} : i64")
        return self._function(f"@{WORKSPACE}(%sizes: !llvm.ptr) -> i64", text.take())

    def write_shared(self) -> dict[str, str]:
        """Return the entry whose function :meth:`write` returned, by symbol. It lets threads share that function."""
        text = self._text
        function = text.define(f"llvm.mlir.addressof @{SHARED} : !llvm.ptr")
        kinds = self._kernels.externals[SHARE_ENTRY] = "(!llvm.ptr, !llvm.ptr, i64) -> i32"
        call = f"llvm.call @{SHARE_ENTRY}({function}, %buffers, {self._most_tasks()}) : {kinds}"
        text.add(f"llvm.return {text.define(call)} : i32")
        return {ENTRY: self._function(f"@{ENTRY}(%buffers: !llvm.ptr) -> i32", text.take())}

    @property
    def shared_kernels(self) -> dict[str, str]:
        """Return the text of the constants of the kernels that threads share, by symbol, after :meth:`write`."""
        size = len(self._constants)
        value = f"dense<{self._constants}> : tensor<{size}xi64>"
        kind = f"!llvm.array<{size} x i64>"
        text = f"llvm.mlir.global internal constant @{SHARED_KERNELS}({value}) {{alignment = 64 : i64}} : {kind}"
        return {SHARED_KERNELS: text}

    def _most_tasks(self) -> str:
        """Return the name of the largest number of tasks of a kernel, for the sizes of a call."""
        text = self._text
        most = max((-(-count(blocks) // grain) for blocks, grain in self._ranges if _is_static(blocks)), default=1)
        tasks = text.constant(most)
        ranges_of_calls = [each for each in self._ranges if not _is_static(each[0])]
        if not ranges_of_calls:
            return tasks
        place = text.define(f"llvm.getelementptr %buffers[{SIZES}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        symbols = text.define(f"llvm.load {place} : !llvm.ptr -> !llvm.ptr")
        sizes = SizeCode.from_pointer(text.define, symbols, self._abi.symbols.count)
        for blocks, grain in ranges_of_calls:
            tasks = sizes.op("maxsi", tasks, sizes.op("ceildivsi", sizes.count(blocks), sizes.value(grain)))
        return tasks

    def _run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._writers[type(step)](step)

    def _repeat(self, step: RepeatLoop) -> None:
        """Write a loop. The addresses of its views are computed at the start of each iteration."""
        frame, text = self._frame, self._text
        for nest in step.nests:
            self._spill(nest.all_scalars)
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
        frame, text = self._frame, self._text
        body = text.take()
        count = f"llvm.mlir.constant({self._most_operands} : i64) : i64"
        head = [f"%count = {count}", "%operands = llvm.alloca %count x !llvm.ptr : (i64) -> !llvm.ptr"]
        if frame.slots:
            head.append(f"%most = llvm.mlir.constant({frame.slots} : i64) : i64")
            head.append("%slots = llvm.alloca %most x !llvm.ptr : (i64) -> !llvm.ptr")
        if frame.has_status:
            text.add(f"llvm.store {text.constant(0, 'i32')}, {frame.status()} : i32, !llvm.ptr")
            body = [*text.take(), *body]
        status = text.constant(0, "i32")
        if frame.has_status:
            status = text.define(f"llvm.load {frame.status()} : !llvm.ptr -> i32")
        if frame.marks:
            status = frame.marks.outcome(text.define, status)
        text.add(f"llvm.return {status} : i32")
        if self._may_fail:
            text.add("^failed:")
            text.add(f"llvm.return {text.constant(1, 'i32')} : i32")
        arguments = "%given: !llvm.ptr" if frame.marks else "%buffers: !llvm.ptr"
        symbol = f"@{self.symbol}"
        if self._waits:
            symbol, arguments = f"internal @{SHARED}", f"{arguments}, %member: !llvm.ptr, %status: !llvm.ptr"
        body += text.take()
        return self._function(f"{symbol}({arguments}) -> i32", [*head, *frame.prologue(), *body])

    def _function(self, head: str, lines: Sequence[str]) -> str:
        return "\n".join([f"llvm.func {head} {self._abi.attributes} {{", *self._text.constants, *lines, "}"])

    # Calls of kernels: operands in an array, ranges that threads share, and notifications of the runtime.

    def _nest(self, step: LoopNest) -> None:
        self._run_kernel(step, step)

    def _scatter(self, step: Scatter) -> None:
        self._run_kernel(step, step.nest)

    def _run_kernel(self, whole: LoopNest | Scatter, step: LoopNest) -> None:
        """Run the kernel of the nest of the step ``whole``."""
        symbol, kernel = self._kernels.nest(step)
        nest, schedule = kernel.nest, kernel.schedule
        places = step.places
        pointers = [self._frame.pointer(*places[number]) for number in step.pointer_places]
        pointers += self._spill(step.all_scalars)
        pointers += [self._frame.status()] if nest.may_fail else []
        pointers += [self._frame.symbols] if nest.is_dynamic else []
        self._begin(symbol, whole)
        self._call(symbol, pointers, ranges(nest, schedule), schedule.grain)

    def _tile_loop(self, step: TileLoop) -> None:
        symbol, code, grain = self._kernels.tile_loop(step)
        pointers = [self._frame.pointer(buffer, offset) for buffer, offset in code.places]
        pointers += self._spill(code.scalars)
        pointers += [self._frame.status()] if code.may_fail else []
        pointers += [self._frame.symbols] if self._frame.symbols else []
        self._begin(symbol, step)
        self._call(symbol, pointers, blocks_of(step), grain)

    def _region(self, step: OutlinedRegion) -> None:
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

    def _spill(self, scalars: Sequence[Scalar]) -> list[str]:
        """Return the addresses of slots that hold the scalars."""
        return [self._frame.spill(scalar) for scalar in scalars]

    def _begin(self, symbol: str, step: KernelStep) -> None:
        """Notify the runtime that a kernel begins. Packs do not notify it, and a shared kernel's call does."""
        if self._frame.packing:
            return
        number = self.listed.add(symbol, step)
        if self._waits:
            return
        kinds = self._kernels.externals[BEGIN_KERNEL] = "(i64) -> ()"
        self._text.add(f"llvm.call @{BEGIN_KERNEL}({self._text.constant(number)}) : {kinds}")

    def _call(self, symbol: str, pointers: Sequence[str], blocks: Blocks, tasks_of: int) -> None:
        """Run a kernel for the range of ``blocks``.

        Threads share the range in tasks of ``tasks_of`` blocks. The range is not shared if ``tasks_of`` is 0.
        """
        text, sizes = self._text, self._frame.sizes
        self._most_operands = max(self._most_operands, len(pointers))
        for k, pointer in enumerate(pointers):
            text.add(f"llvm.store {pointer}, {text.place_in('%operands', k)} : !llvm.ptr, !llvm.ptr")
        begin = text.constant(0)
        end = text.constant(count(blocks)) if _is_static(blocks) else sizes.count(blocks)
        if self._waits:
            self._share(symbol, blocks, end, tasks_of)
            return
        if not tasks_of:
            # Inlining the kernel does not make it faster, and would merge most of a module into one function.
            text.add(f"llvm.call @{symbol}(%operands, {begin}, {end}) {{no_inline}} : {KERNEL_TYPE}")
            return
        kernel, grain = text.define(f"llvm.mlir.addressof @{symbol} : !llvm.ptr"), text.constant(tasks_of)
        kinds = self._kernels.externals[PARALLEL_FOR] = "(!llvm.ptr, !llvm.ptr, i64, i64, i64) -> ()"
        text.add(f"llvm.call @{PARALLEL_FOR}({kernel}, %operands, {begin}, {end}, {grain}) : {kinds}")

    def _share(self, symbol: str, blocks: Blocks, end: str, grain: int) -> None:
        """Run the thread's part of the latest kernel, whose range of ``blocks`` has ``end`` iterations."""
        number = len(self.listed.calls) - 1
        if grain:
            self._ranges[tuple(blocks), grain] = None
        kernel = self._text.define(f"llvm.mlir.addressof @{symbol} : !llvm.ptr")
        self._call_shared(kernel, end, [number, grain, *self._waits[number].constants])

    def _notify(self, waits: KernelWaits) -> None:
        """Let a thread of a shared entry wait, and publish that it has come here: a kernel without blocks."""
        if self._waits:
            kernel = self._text.define("llvm.mlir.zero : !llvm.ptr")
            self._call_shared(kernel, self._text.constant(0), [-1, 0, *waits.constants])

    def _call_shared(self, kernel: str, end: str, constants: Sequence[int]) -> None:
        text, place = self._text, len(self._constants)
        self._constants += constants
        start = text.define(f"llvm.mlir.addressof @{SHARED_KERNELS} : !llvm.ptr")
        kinds = self._kernels.externals[SHARE_KERNEL] = "(!llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> ()"
        arguments = f"%member, {kernel}, %operands, {end}, {text.offset_pointer(start, place, 'i64')}"
        text.add(f"llvm.call @{SHARE_KERNEL}({arguments}) : {kinds}")

    # Loads and stores of single elements, computations of numbers, and checks.

    def _load(self, step: LoadStep) -> None:
        pointer, kind = self._address(step)
        align = ELEMENT_BYTES[kind]
        self._notify(KernelWaits(barrier=1))
        value = self._text.define(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")
        self._notify(KernelWaits())
        element = register_type(step.buffer.element)
        if element == "i1":
            zero = self._text.define(f"arith.constant 0 : {kind}")
            value = self._text.define(f"arith.cmpi ne, {value}, {zero} : {kind}")
        elif element != kind:
            value = self._text.define(f"llvm.bitcast {value} : {kind} to {element}")
        self._frame.values[step.scalar] = value

    def _store(self, step: StoreStep) -> None:
        pointer, kind = self._address(step)
        value = self._frame.to_memory(self._frame.value(step.scalar), register_type(step.buffer.element))
        align = ELEMENT_BYTES[kind]
        self._text.add(f"llvm.store {value}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")

    def _address(self, step: ElementStep) -> tuple[str, str]:
        pointer, kind = self._frame.pointer(step.buffer, step.offset), storage_type(step.buffer.element)
        for index, stride in zip(step.indices, step.strides, strict=True):
            distance = self._text.define(f"llvm.mul {self._frame.value(index)}, {self._frame.number(stride)} : i64")
            pointer = self._text.offset_pointer(pointer, distance, kind)
        return pointer, kind

    def _compute(self, step: ScalarStep) -> None:
        self._frame.values[step.result] = self._emit(step, [self._frame.value(s) for s in step.operands])

    def _emit(self, step: ScalarStep, values: list[str]) -> str:
        kind = step.result.type
        if isinstance(step.value, Size):
            number = self._frame.number(step.value)
            if kind.startswith("i"):
                return self._cast(number, "i64", kind, "arith.index_cast")
            return self._text.define(f"arith.sitofp {number} : i64 to {kind}")
        if step.value is not None:
            return self._text.define(f"arith.constant {typed_constant(step.value, kind)}")
        if step.name in ("arith.index_cast", "arith.index_castui"):
            return self._cast(values[0], step.operands[0].type, kind, step.name)
        types = ", ".join(s.type for s in step.operands)
        return self._text.define(f'"{step.name}"({", ".join(values)}) {{{step.attributes}}} : ({types}) -> {kind}')

    def _cast(self, value: str, source: str, target: str, op: str) -> str:
        if source == target:
            return value
        widen = "arith.extui" if op.endswith("ui") else "arith.extsi"
        resize = widen if int(source[1:]) < int(target[1:]) else "arith.trunci"
        return self._text.define(f"{resize} {value} : {source} to {target}")

    def _check(self, step: AssertStep) -> None:
        """End the call with an error if a check fails. PyTorch can then run the group and raise its own error."""
        self._fail_unless(self._frame.value(step.condition))

    def _fail_unless(self, condition: str) -> None:
        self._may_fail = True
        following = self._text.fresh("^next")
        self._text.add(f"llvm.cond_br {condition}, {following}, ^failed")
        self._text.add(f"{following}:")


def _is_static(blocks: Blocks) -> bool:
    return not any(isinstance(size, Size) for size, _ in blocks)
