"""The code of an executable: what runs its steps, in order, and where buffers lie."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torchmdla.compiler import dump
from torchmdla.compiler.artifact import KernelCall, Pack
from torchmdla.compiler.program import Program
from torchmdla.compiler.sizes import Size, at, static, terms
from torchmdla.devices.cpu.accesses import Buffer, Scalar
from torchmdla.devices.cpu.code.checks import FAULT, Marks
from torchmdla.devices.cpu.code.kernels import write_kernel
from torchmdla.devices.cpu.code.sizes import SizeCode, share_slots
from torchmdla.devices.cpu.code.tile_loops import MemberKernel, described, write_tile_loop
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, computed, stored, typed_constant
from torchmdla.devices.cpu.loop_program import (
    AssertStep,
    ElementStep,
    LoadStep,
    LoopNest,
    LoopProgram,
    OutlinedRegion,
    Packing,
    RepeatLoop,
    ScalarStep,
    Step,
    StoreStep,
    TileLoop,
    final_nest,
    first_and_last_uses,
)
from torchmdla.devices.cpu.machine import CHECK_BOUNDS, Machine
from torchmdla.devices.cpu.printer import kernel_text
from torchmdla.devices.cpu.schedule import Ahead, Blocks, count, ranges
from torchmdla.devices.cpu.schedule.plan import Plan, ScheduledKernel
from torchmdla.devices.cpu.schedule.tile_loops import blocks_of
from torchmdla.devices.cpu.work import work_of
from torchmdla.devices.cpu.workspace import ALIGNMENT, Lifetime, plan

ENTRY = "mdla_forward"
WORKSPACE = "mdla_workspace"
PARALLEL_FOR = "mdla_parallel_for"
BEGIN_KERNEL = "mdla_begin_kernel"

# The entry's buffers before its arguments: workspace, packed, sizes.
_GIVEN = 3
_SIZES = 2

# Bytes of a pointer, and of a size.
_WORD = 8

# Scalars that a kernel takes are passed in slots of the workspace.
_SLOT_BYTES = 8


@dataclass(frozen=True)
class Code:
    """The whole module as MLIR text, what it needs, the kernels that its entry calls, the nests in these, and how many
    kernels it holds. ``workspace_bytes`` leaves out the entry of a dynamic program: the function ``workspace`` says
    what that needs. ``regions`` are the functions of regions. Of code that is to be checked
    (:mod:`~torchmdla.devices.cpu.code.checks`), ``fault`` tells what failed.
    """

    text: str
    workspace_bytes: int
    workspace: str
    externals: tuple[str, ...]
    regions: tuple[str, ...]
    kernels: tuple[KernelCall, ...]
    nests: int
    distinct_kernels: int
    packs: tuple[Pack, ...]
    fault: str = ""


@dataclass
class _Module:
    """The functions of the module: equal kernels are held once."""

    machine: Machine
    attributes: str
    plan: Plan
    # How many buffers the entry is given, and how many packed ones; marks, where accesses are to be checked.
    given: int
    packs: int
    marks: Marks | None
    kernels: dict[str, str] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    externals: dict[str, str] = field(default_factory=dict)

    def kernel(self, text: str) -> str:
        return self.kernels.setdefault(text, f"kernel_{len(self.kernels)}")


def write_module(steps: LoopProgram, plan: Plan, program: Program) -> Code:
    """The module that runs ``steps`` by the ABI, computed as ``plan`` says."""
    symbols = plan.symbols
    given = _GIVEN + len(program.arguments) + len(program.results)
    marks = Marks() if CHECK_BOUNDS in program.target.features.split(",") else None
    module = _Module(Machine.of(program.target), function_attributes(program), plan, given, len(steps.packings), marks)
    packs = [_FunctionWriter(f"mdla_pack_{k}", p.steps, module, p) for k, p in enumerate(steps.packings)]
    entry = _FunctionWriter(ENTRY, steps.steps, module, None)
    entry.require(steps.not_negative)
    functions = [writer.write() for writer in [*packs, entry]]
    planned = packs if symbols.is_used else [*packs, entry]
    if symbols.is_used:
        functions.append(entry.write_workspace())
    parts = [f"llvm.func @{name}{_declaration(kinds)}" for name, kinds in sorted(module.externals.items())]
    parts += list(steps.globals.values())
    parts += [text.replace("{symbol}", symbol) for text, symbol in module.kernels.items()]
    parts += list(module.regions.values())
    parts += module.marks.declarations if module.marks else []
    return Code(
        text="\n".join(parts + functions),
        workspace_bytes=max((writer.workspace_bytes for writer in planned), default=0),
        workspace=WORKSPACE if symbols.is_used else "",
        externals=tuple(sorted(module.externals)),
        regions=tuple(module.regions),
        kernels=tuple(entry.calls),
        nests=entry.nests,
        distinct_kernels=len(module.kernels) + len(module.regions),
        packs=tuple(_pack(p, w, module, steps, program) for p, w in zip(steps.packings, packs, strict=True)),
        fault=FAULT if module.marks else "",
    )


def _pack(packing: Packing, writer: _FunctionWriter, module: _Module, steps: LoopProgram, program: Program) -> Pack:
    """What the manifest says of a pack. Its recipe names everything that its function does: the calls, in place of the
    kernels' names their code, and the constants."""
    hashes = {symbol: hashlib.sha256(text.encode()).hexdigest() for text, symbol in module.kernels.items()}
    recipe = re.sub(r"(?<=@)kernel_\d+\b", lambda found: hashes[found[0]], writer.text)
    arguments = packing.arguments
    kinds = [(program.arguments[k].dtype, program.arguments[k].shape) for k in arguments]
    constants = sorted({steps.globals[b.symbol] for s in packing.steps for b in s.reads if b.kind == "global"})
    text = f"{kinds} {constants} {recipe.replace(writer.symbol, 'pack')}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Pack(writer.symbol, digest, arguments, static(packing.buffer.bytes))


# The processor that every feature is added to, by architecture.
_BASELINES = {"x86_64": "x86-64", "aarch64": "generic", "arm64": "generic"}


def function_attributes(program: Program) -> str:
    """LLVM's target attributes of generated functions.

    Features are named one by one on top of the architecture's baseline, because a processor's name promises more than
    a virtual machine may offer.
    """
    target, items = program.target, ['passthrough = [["prefer-vector-width", "512"]]']
    baseline = _BASELINES.get(target.triple.split("-")[0])
    if baseline:
        items.append(f'target_cpu = "{baseline}"')
    if target.cpu:
        items.append(f'tune_cpu = "{target.cpu}"')
    features = [f'"{name}"' for name in target.features.split(",") if name.startswith("+")]
    if features:
        items.append(f"target_features = #llvm.target_features<[{', '.join(features)}]>")
    return f"attributes {{{', '.join(items)}}}"


class _FunctionWriter:
    """Writes one function of the ABI: the entry, or a pack. Each step becomes a call of a kernel or region, or scalar
    code."""

    def __init__(self, symbol: str, steps: Sequence[Step], module: _Module, packing: Packing | None) -> None:
        self.symbol = symbol
        self.text = ""
        self.calls: list[KernelCall] = []
        self.nests = 0
        self._written = _Written()
        self._repeats: int | Size = 1
        self._steps = steps
        self._module = module
        self._packing = packing
        self._lines: list[str] = []
        self._counter = 0
        self._names: dict[Scalar, str] = {}
        self._views: dict[Buffer, str] = {}
        self._slots: dict[object, int] = {}
        self._most_operands = 1
        self._uses_status = False
        self._asserts = False
        symbols = 0 if packing else module.plan.symbols.count
        self._symbols = ""
        if symbols:
            self._symbols = self._marked(self._pointer_in("%buffers", _SIZES), _WORD * symbols, "the sizes")
        self._sizes = SizeCode.loading(self._define, self._symbols, symbols)
        # Of temporaries, and where the last one ends: a value that the function computes, and bytes behind it.
        self._offsets: dict[Buffer, tuple[str, int]]
        if symbols:
            self._offsets, self._end = self._laid_out(self._sizes)
        else:
            planned, size = plan_workspace(steps)
            self._offsets, self._end = {b: ("", offset) for b, offset in planned.items()}, ("", size)
        self._prologue, self._lines = self._lines, []

    def _laid_out(self, sizes: SizeCode) -> tuple[dict[Buffer, tuple[str, int]], tuple[str, int]]:
        """Offsets of temporaries in a workspace of slots as large as sizes are at run time, and its end."""
        used = lifetimes(self._steps)
        typical = [replace(own, size=at(own.size, self._module.plan.symbols.typical)) for own in used.values()]
        buffers, slots = list(used), share_slots(typical)
        places, end = sizes.laid_out([[buffers[k].bytes for k in slot] for slot in slots])
        found = {buffers[k]: (place, 0) for slot, place in zip(slots, places, strict=True) for k in slot}
        return found, (end, 0)

    @property
    def workspace_bytes(self) -> int:
        """The size of a workspace that is planned ahead."""
        return self._end[1] + self._slot_bytes

    @property
    def _slot_bytes(self) -> int:
        return -(-_SLOT_BYTES * len(self._slots) // ALIGNMENT) * ALIGNMENT

    def write_workspace(self) -> str:
        """The function that tells how large the workspace must be."""
        self._lines = []
        symbols = self._module.plan.symbols.count
        sizes = SizeCode.loading(self._define, self._marked("%sizes", _WORD * symbols, "the sizes"), symbols)
        (end, _) = self._laid_out(sizes)[1]
        total = sizes.op("addi", end, sizes.value(self._slot_bytes))
        lines = "\n".join([*self._lines, f"llvm.return {total} : i64"])
        return f"llvm.func @{WORKSPACE}(%sizes: !llvm.ptr) -> i64 {self._module.attributes} {{\n{lines}\n}}"

    def require(self, numbers: Sequence[Size]) -> None:
        """Ends a call with an error if one of ``numbers`` is negative."""
        for number in numbers:
            condition = self._define(f"arith.cmpi sge, {self._sizes.value(number)}, {self._sizes.value(0)} : i64")
            self._fail_unless(condition)

    def write(self) -> str:
        for step in self._steps:
            self._run(step)
        self.text = self._assemble()
        return self.text

    def _run(self, step: Step) -> None:
        _WRITERS[type(step)](self, step)

    # Text.

    def _define(self, text: str) -> str:
        self._counter += 1
        name = f"%e{self._counter}"
        self._lines.append(f"{name} = {text}")
        return name

    def _constant(self, number: int, kind: str = "i64") -> str:
        return self._define(f"llvm.mlir.constant({number} : {kind}) : {kind}")

    def _pointer_in(self, array: str, position: int) -> str:
        slot = self._define(f"llvm.getelementptr {array}[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return self._define(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def _number(self, number: int | Size) -> str:
        return self._sizes.value(number) if isinstance(number, Size) else self._constant(number)

    def _at(self, pointer: str, offset: int | Size) -> str:
        if not offset:
            return pointer
        if isinstance(offset, Size):
            return self._moved(pointer, self._sizes.value(offset))
        return self._define(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8")

    def _moved(self, pointer: str, distance: str, kind: str = "i8") -> str:
        return self._define(f"llvm.getelementptr {pointer}[{distance}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")

    def _workspace(self, place: tuple[str, int]) -> str:
        """The address of a byte of the workspace."""
        value, offset = place
        pointer = "%workspace" if self._module.marks else self._pointer_in("%buffers", 0)
        return self._at(self._moved(pointer, value) if value else pointer, offset)

    # Buffers and scalars.

    def _pointer(self, buffer: Buffer, offset: int | Size = 0) -> str:
        """The address of a buffer's element ``offset``."""
        distance = offset * ELEMENT_BYTES[stored(buffer.element)]
        return self._at(self._views[buffer] if buffer.kind == "view" else self._base(buffer), distance)

    def _base(self, buffer: Buffer) -> str:
        """The address of a buffer."""
        if buffer.kind == "temporary":
            pointer = self._workspace(self._offsets[buffer])
        elif buffer.kind == "global":
            pointer = self._define(f"llvm.mlir.addressof @{buffer.symbol} : !llvm.ptr")
        else:
            pointer = self._given(buffer)
        return self._marked(pointer, buffer.bytes, self._label(buffer)) if self._module.marks else pointer

    def _marked(self, pointer: str, size: int | Size, name: str) -> str:
        """A pointer to ``size`` bytes, marked as such where accesses are checked."""
        marks = self._module.marks
        return marks.marked(self._define, pointer, self._number(size), name) if marks else pointer

    def _label(self, buffer: Buffer) -> str:
        """What messages call a buffer."""
        number: object = buffer.symbol or buffer.position
        if buffer.kind == "temporary":
            number = list(self._offsets).index(buffer)
        elif self._packing and buffer is not self._packing.buffer:
            number = self._packing.arguments.index(buffer.position)
        return f"{buffer.kind} {number} {described(buffer)}"

    def _given(self, buffer: Buffer) -> str:
        """The address of a buffer that the caller gives. A pack's own is its destination."""
        if self._packing is None:
            if buffer.kind == "packed":
                packs = self._marked(self._pointer_in("%buffers", 1), _WORD * self._module.packs, "the packed buffers")
                return self._pointer_in(packs, buffer.position)
            return self._pointer_in("%buffers", buffer.position + _GIVEN)
        if buffer is self._packing.buffer:
            return self._pointer_in("%buffers", 1)
        return self._pointer_in("%buffers", self._packing.arguments.index(buffer.position) + 2)

    def _name(self, scalar: Scalar) -> str:
        """The value of a scalar; arguments are loaded where they are first needed."""
        if scalar not in self._names:
            pointer = self._pointer_in("%buffers", scalar.argument + _GIVEN)
            pointer = self._marked(pointer, _WORD, f"scalar {scalar.argument}")
            load = f"llvm.load {pointer} {{alignment = 8 : i64}} : !llvm.ptr -> {scalar.type}"
            self._names[scalar] = self._define(load)
        return self._names[scalar]

    def _slot(self, key: object) -> str:
        """The address of a slot in the workspace for one scalar."""
        value, offset = self._end
        number = self._slots.setdefault(key, len(self._slots))
        return self._marked(self._workspace((value, offset + _SLOT_BYTES * number)), _SLOT_BYTES, f"slot {number}")

    def _spilled(self, scalar: Scalar) -> str:
        """The address of a slot that holds a scalar."""
        known = scalar in self._slots
        pointer = self._slot(scalar)
        if not known:
            name, kind = self._name(scalar), scalar.type
            if stored(kind) != kind:
                name = self._define(f"llvm.zext {name} : {kind} to {stored(kind)}")
            self._lines.append(f"llvm.store {name}, {pointer} : {stored(kind)}, !llvm.ptr")
        return pointer

    # Calls.

    def _call(self, step: LoopNest) -> None:
        symbol, kernel = self._kernel(step)
        nest, schedule = kernel.nest, kernel.schedule
        pointers = [self._pointer(buffer, offset) for buffer, offset in final_nest(step)[1]]
        pointers += self._spilled_all(step.all_scalars, nest.may_fail)
        pointers += [self._symbols] if nest.is_dynamic else []
        self._begin_kernel(symbol, step)
        self._call_kernel(symbol, pointers, ranges(nest, schedule), schedule.grain)

    def _call_tile_loop(self, step: TileLoop) -> None:
        def member_kernel(member: LoopNest, ahead: Ahead) -> MemberKernel:
            symbol, kernel = self._kernel(member, ahead)
            return MemberKernel(symbol, ranges(kernel.nest, kernel.schedule), kernel.nest.is_dynamic)

        module, schedule = self._module, self._module.plan.tile_loops[step]
        code = write_tile_loop(step, schedule, member_kernel, module.attributes, module.plan.symbols, module.marks)
        module.externals.update(code.externals)
        pointers = [self._pointer(buffer, offset) for buffer, offset in code.places]
        pointers += self._spilled_all(code.scalars, code.may_fail)
        pointers += [self._symbols] if module.plan.symbols.is_used else []
        symbol = self._written_out(code.text)
        self._begin_kernel(symbol, step)
        self._call_kernel(symbol, pointers, blocks_of(step), schedule.grain)

    def _repeat(self, step: RepeatLoop) -> None:
        """A loop; the addresses of the views are computed at the start of each iteration."""
        for nest in step.nests:
            self._spilled_all(nest.all_scalars, may_fail=False)
        bases = [self._pointer(view.base, view.offset) for view in step.views]
        distances = [self._number(v.distance * ELEMENT_BYTES[stored(v.base.element)]) for v in step.views]
        begin, end, one = self._constant(0), self._number(step.count), self._constant(1)
        self._counter += 1
        iteration = f"%e{self._counter}"
        self._lines.append(f"scf.for {iteration} = {begin} to {end} step {one} : i64 {{")
        self._written.bases.update((view.buffer, view.base) for view in step.views)
        for view, base, distance in zip(step.views, bases, distances, strict=True):
            moved = self._define(f"llvm.mul {iteration}, {distance} : i64")
            self._views[view.buffer] = self._moved(base, moved)
        self._repeats = step.count
        for member in step.steps:
            self._run(member)
        self._repeats = 1
        self._lines.append("}")

    def _kernel(self, step: LoopNest, ahead: Ahead = ()) -> tuple[str, ScheduledKernel]:
        """The kernel of a nest that fetches ``ahead``, and its symbol; written if it is new."""
        module, kernel = self._module, self._module.plan.kernel(step, ahead)
        if id(kernel) not in module.written:
            code = write_kernel(kernel.nest, kernel.schedule, module.machine, module.attributes)
            module.externals.update(code.externals)
            said = partial(kernel_text, kernel.nest, kernel.schedule)
            module.written[id(kernel)] = self._written_out(code.text, said)
        return module.written[id(kernel)], kernel

    def _written_out(self, code: str, said: Callable[[], str] = str) -> str:
        """The symbol of a kernel of this code; ``said``: what it is, as comments."""
        is_new = code not in self._module.kernels
        symbol = self._module.kernel(code)
        if is_new:
            dump.write(f"{symbol}.mlir", lambda: said() + code.replace("{symbol}", symbol) + "\n")
        return symbol

    def _spilled_all(self, scalars: Sequence[Scalar], may_fail: bool) -> list[str]:
        """The addresses of the scalars, then of the status if there is one."""
        pointers = [self._spilled(scalar) for scalar in scalars]
        if may_fail:
            pointers.append(self._slot("status"))
            self._uses_status = True
        return pointers

    def _begin_kernel(self, symbol: str, step: LoopNest | TileLoop | OutlinedRegion) -> None:
        """Tells the runtime that a kernel begins. What packs do is not told of."""
        if self._packing is not None:
            return
        self.nests += len(step.members) if isinstance(step, TileLoop) else 1
        after = self._written.by(step, len(self.calls))
        number = self._constant(len(self.calls))
        kinds = self._module.externals[BEGIN_KERNEL] = "(i64) -> ()"
        self._lines.append(f"llvm.call @{BEGIN_KERNEL}({number}) : {kinds}")
        work = work_of(step, self._repeats)
        flops, moved = terms(work.flops), terms(work.bytes)
        is_result = any(buffer.kind == "result" for buffer in step.writes)
        self.calls.append(KernelCall(symbol, work.loops, flops, moved, work.nodes, after, is_result))

    def _call_kernel(self, symbol: str, pointers: Sequence[str], blocks: Blocks, tasks_of: int) -> None:
        """Runs a kernel's range of ``blocks``, shared by threads in tasks of ``tasks_of`` (0: not shared)."""
        self._most_operands = max(self._most_operands, len(pointers))
        for k, pointer in enumerate(pointers):
            slot = self._define(f"llvm.getelementptr %operands[{k}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
            self._lines.append(f"llvm.store {pointer}, {slot} : !llvm.ptr, !llvm.ptr")
        begin = self._constant(0)
        is_dynamic = any(isinstance(size, Size) for size, _ in blocks)
        end = self._sizes.count(blocks) if is_dynamic else self._constant(count(blocks))
        if not tasks_of:
            self._lines.append(f"llvm.call @{symbol}(%operands, {begin}, {end}) : (!llvm.ptr, i64, i64) -> ()")
            return
        kernel, grain = self._define(f"llvm.mlir.addressof @{symbol} : !llvm.ptr"), self._constant(tasks_of)
        kinds = "(!llvm.ptr, !llvm.ptr, i64, i64, i64) -> ()"
        self._module.externals[PARALLEL_FOR] = kinds
        self._lines.append(f"llvm.call @{PARALLEL_FOR}({kernel}, %operands, {begin}, {end}, {grain}) : {kinds}")

    def _call_region(self, step: OutlinedRegion) -> None:
        self._begin_kernel(step.symbol, step)
        self._module.regions[step.symbol] = step.text
        dump.write(f"{step.symbol}.mlir", lambda: f"{step.text}\n")
        operands = [self._pointer(buffer) for buffer in step.inputs + step.outputs + step.temporaries]
        kinds = ["!llvm.ptr"] * len(operands) + [s.type for s in step.scalars]
        operands += [self._name(s) for s in step.scalars]
        results = [s.type for s in step.results]
        call = f"func.call @{step.symbol}({', '.join(operands)}) : ({', '.join(kinds)}) -> ({', '.join(results)})"
        if not results:
            self._lines.append(call)
            return
        self._counter += 1
        self._lines.append(f"%e{self._counter}:{len(results)} = {call}")
        for k, result in enumerate(step.results):
            self._names[result] = f"%e{self._counter}#{k}"

    # Scalar code.

    def _element_address(self, step: ElementStep) -> tuple[str, str]:
        pointer, kind = self._pointer(step.buffer, step.offset), stored(step.buffer.element)
        for index, stride in zip(step.indices, step.strides, strict=True):
            distance = self._define(f"llvm.mul {self._name(index)}, {self._number(stride)} : i64")
            pointer = self._moved(pointer, distance, kind)
        return pointer, kind

    def _load(self, step: LoadStep) -> None:
        pointer, kind = self._element_address(step)
        align = ELEMENT_BYTES[kind]
        name = self._define(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")
        own = computed(step.buffer.element)
        if own != kind:
            name = self._define(f"llvm.trunc {name} : {kind} to {own}")
        self._names[step.scalar] = name

    def _store(self, step: StoreStep) -> None:
        pointer, kind = self._element_address(step)
        name, own = self._name(step.scalar), computed(step.buffer.element)
        if own != kind:
            name = self._define(f"llvm.zext {name} : {own} to {kind}")
        align = ELEMENT_BYTES[kind]
        self._lines.append(f"llvm.store {name}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")

    def _assert(self, step: AssertStep) -> None:
        """A failed check ends the call with an error, so that PyTorch can run the group and raise its own."""
        self._fail_unless(self._name(step.condition))

    def _fail_unless(self, condition: str) -> None:
        self._asserts = True
        self._counter += 1
        following = f"^next{self._counter}"
        self._lines.append(f"llvm.cond_br {condition}, {following}, ^failed")
        self._lines.append(f"{following}:")

    def _compute(self, step: ScalarStep) -> None:
        names, kind = [self._name(s) for s in step.operands], step.result.type
        if isinstance(step.value, Size):
            self._names[step.result] = self._converted(self._number(step.value), kind)
            return
        if step.value is not None:
            self._names[step.result] = self._define(f"arith.constant {typed_constant(step.value, kind)}")
            return
        if step.name in ("arith.index_cast", "arith.index_castui"):
            self._names[step.result] = self._cast(names[0], step.operands[0].type, kind, step.name)
            return
        types = ", ".join(s.type for s in step.operands)
        op = f'"{step.name}"({", ".join(names)}) {{{step.attributes}}} : ({types}) -> {kind}'
        self._names[step.result] = self._define(op)

    def _converted(self, name: str, kind: str) -> str:
        """An ``i64`` as a number of another type."""
        if not kind.startswith("i"):
            return self._define(f"arith.sitofp {name} : i64 to {kind}")
        return self._cast(name, "i64", kind, "arith.index_cast")

    def _cast(self, name: str, source: str, target: str, op: str) -> str:
        if source == target:
            return name
        widen = "arith.extui" if op.endswith("ui") else "arith.extsi"
        resize = widen if int(source[1:]) < int(target[1:]) else "arith.trunci"
        return self._define(f"{resize} {name} : {source} to {target}")

    # The function.

    def _assemble(self) -> str:
        count = f"llvm.mlir.constant({self._most_operands} : i64) : i64"
        head = [f"%count = {count}", "%operands = llvm.alloca %count x !llvm.ptr : (i64) -> !llvm.ptr"]
        body, self._lines = self._lines, []
        head += self._given_buffers()
        if self._uses_status:
            zero, pointer = self._constant(0, "i32"), self._slot("status")
            self._lines.append(f"llvm.store {zero}, {pointer} : i32, !llvm.ptr")
            head += self._lines
        self._lines = []
        status = self._constant(0, "i32")
        if self._uses_status:
            pointer = self._slot("status")
            status = self._define(f"llvm.load {pointer} : !llvm.ptr -> i32")
        if self._module.marks:
            status = self._module.marks.outcome(self._define, status)
        self._lines.append(f"llvm.return {status} : i32")
        if self._asserts:
            self._lines.append("^failed:")
            self._lines.append(f"llvm.return {self._constant(1, 'i32')} : i32")
        lines = "\n".join(head + body + self._lines)
        given = "%given" if self._module.marks else "%buffers"
        return f"llvm.func @{self.symbol}({given}: !llvm.ptr) -> i32 {self._module.attributes} {{\n{lines}\n}}"

    def _given_buffers(self) -> list[str]:
        """The first lines: the marks of what the caller gives in any case, where there are marks; the prologue."""
        if self._module.marks is None:
            return self._prologue
        count = 2 + len(self._packing.arguments) if self._packing else self._module.given
        buffers = self._marked("%given", _WORD * count, "the buffers")
        first = [*self._lines, f"%buffers = llvm.getelementptr {buffers}[0] : (!llvm.ptr) -> !llvm.ptr, i8"]
        self._lines = []
        value, end = self._end
        size = self._constant(end + self._slot_bytes)
        if value:
            size = self._sizes.op("addi", value, size)
        workspace = self._module.marks.marked(self._define, self._pointer_in("%buffers", 0), size, "the workspace")
        self._lines.append(f"%workspace = llvm.getelementptr {workspace}[0] : (!llvm.ptr) -> !llvm.ptr, i8")
        last, self._lines = self._lines, []
        return [*first, *self._prologue, *last]


class _Written:
    """Which kernels wrote what buffers hold. ``bases``: the buffers that views are of."""

    def __init__(self) -> None:
        self.bases: dict[Buffer, Buffer] = {}
        self._writers: dict[Buffer, list[int]] = {}
        self._was_read: set[Buffer] = set()

    def by(self, step: LoopNest | TileLoop | OutlinedRegion, number: int) -> tuple[int, ...]:
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


_WRITERS: Mapping[type, Callable[[_FunctionWriter, Any], None]] = {
    LoopNest: _FunctionWriter._call,
    TileLoop: _FunctionWriter._call_tile_loop,
    RepeatLoop: _FunctionWriter._repeat,
    OutlinedRegion: _FunctionWriter._call_region,
    LoadStep: _FunctionWriter._load,
    StoreStep: _FunctionWriter._store,
    ScalarStep: _FunctionWriter._compute,
    AssertStep: _FunctionWriter._assert,
}


def lifetimes(steps: Sequence[Step]) -> dict[Buffer, Lifetime]:
    """Of the steps' temporaries."""
    first, last = first_and_last_uses(steps)
    return {b: Lifetime(b.bytes, first[b], last[b]) for b in first if b.kind == "temporary"}


def plan_workspace(steps: Sequence[Step]) -> tuple[dict[Buffer, int], int]:
    """Byte offsets of the steps' temporaries in one workspace, and its size."""
    used = lifetimes(steps)
    offsets, size = plan(list(used.values()))
    return dict(zip(used, offsets, strict=True)), size


def _declaration(kinds: str) -> str:
    """``(f32) -> f32`` as a declaration's signature; a function without result has none."""
    return kinds.removesuffix(" -> ()").replace("-> ()", "")
