"""The entry of an executable: which kernels run on which buffers, in what order, and where buffers lie."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.program import Program
from torchmdla.devices.cpu.buffers import ALIGNMENT, VIEWS, Lifetime, plan, uses
from torchmdla.devices.cpu.kernels import write_kernel
from torchmdla.devices.cpu.nests import (
    ELEMENT_BYTES,
    BoundNest,
    Instruction,
    NotANestError,
    computed,
    filled_with,
    from_copy,
    from_generic,
    layout,
    overwrites,
    starting_from,
    stored,
)
from torchmdla.devices.cpu.regions import Region, memory_bytes, outline
from torchmdla.devices.cpu.schedule import Machine, Schedule, choose
from torchmdla.errors import CompileError

ENTRY = "mdla_forward"
PARALLEL_FOR = "mdla_parallel_for"

# Scalars that a kernel takes are passed in slots of the workspace.
_SLOT_BYTES = 8


@dataclass(frozen=True)
class Code:
    """The whole module as MLIR text, what it needs, and how many kernels it runs and holds."""

    text: str
    workspace_bytes: int
    externals: tuple[str, ...]
    has_regions: bool
    kernels: int
    distinct_kernels: int


@dataclass
class _Functions:
    """The functions of the module: equal kernels are held once."""

    kernels: dict[str, str] = field(default_factory=dict)
    regions: list[str] = field(default_factory=list)
    globals: dict[str, str] = field(default_factory=dict)
    externals: dict[str, str] = field(default_factory=dict)

    def kernel(self, text: str) -> str:
        return self.kernels.setdefault(text, f"kernel_{len(self.kernels)}")


def write_module(function: Any, program: Program) -> Code:
    """The module that computes the bufferised ``function`` (see :func:`buffers.bufferize`) by the ABI.

    Raises:
        CompileError: something in it cannot be laid out at compile time.
    """
    writer = _EntryWriter(function, program)
    return writer.write()


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


class _EntryWriter:
    """Walks the function's ops in order; each becomes a call of a kernel or region, or scalar code of the entry."""

    def __init__(self, function: Any, program: Program) -> None:
        self._program = program
        self._machine = Machine.of(program.target)
        self._attributes = function_attributes(program)
        self._block = function.regions[0].blocks[0]
        self._ops = [op.operation for op in self._block.operations]
        self._functions = _Functions()
        self._lines: list[str] = []
        self._counter = 0
        self._scalars: dict[Any, str] = {}
        self._slots: dict[Any, int] = {}
        self._calls = 0
        self._most_operands = 1
        self._uses_status = False
        self._asserts = False
        self._regions: dict[Any, Region] = {}
        self._initial: dict[Any, Instruction] = {}
        self._handlers = {
            "linalg.generic": self._call,
            "memref.copy": self._call,
            "memref.load": self._load,
            "memref.store": self._store,
            "memref.alloc": self._nothing,
            "memref.dealloc": self._nothing,
            "memref.get_global": self._global,
            "memref.assume_alignment": self._nothing,
            "cf.assert": self._assert,
            "func.return": self._nothing,
            **dict.fromkeys(VIEWS, self._nothing),
        }

    def write(self) -> Code:
        self._outline_regions()
        self._plan_workspace()
        self._bind_arguments()
        for op in self._ops:
            self._handlers.get(op.name, self._other)(op)
        return self._assemble()

    # Regions and buffers.

    def _outline_regions(self) -> None:
        for op in self._ops:
            if self._needs_region(op):
                region = outline(op, f"region_{len(self._regions)}")
                self._regions[op] = region
                self._functions.regions.append(region.text)

    def _needs_region(self, op: Any) -> bool:
        if op.name in ("linalg.generic", "memref.copy"):
            try:
                self._bound(op)
            except NotANestError:
                return True
            return False
        if op.name in self._handlers:
            return False
        return bool(len(op.regions)) or not op.name.startswith(("arith.", "math."))

    def _bound(self, op: Any) -> BoundNest:
        return from_generic(op) if op.name == "linalg.generic" else from_copy(*op.operands)

    def _plan_workspace(self) -> None:
        """Offsets of every buffer, of the regions' temporaries, then of the scalars' slots."""
        position = {op: k for k, op in enumerate(self._ops)}
        owners: list[Any] = []
        lifetimes: list[Lifetime] = []
        for step, op in enumerate(self._ops):
            if op.name == "memref.alloc":
                owners.append(op.results[0])
                last = max((k for k, _ in uses(op.results[0], position)), default=step)
                lifetimes.append(Lifetime(memory_bytes(op.results[0]), step, last))
            for number, size in enumerate(self._regions[op].temporaries if op in self._regions else ()):
                owners.append((op, number))
                lifetimes.append(Lifetime(size, step, step))
        offsets, self._workspace_bytes = plan(lifetimes)
        self._offsets = dict(zip(owners, offsets, strict=True))

    def _slot(self, key: Any) -> int:
        """The byte offset in the workspace of a slot for one scalar."""
        if key not in self._slots:
            self._slots[key] = self._workspace_bytes + _SLOT_BYTES * len(self._slots)
        return self._slots[key]

    def _bind_arguments(self) -> None:
        arguments = list(self._block.arguments)
        self._bases = {value: k + 2 for k, value in enumerate(arguments) if isinstance(value.type, ir.MemRefType)}
        for k, value in enumerate(arguments):
            if value not in self._bases:
                pointer = self._buffer(k + 2)
                self._scalars[value] = self._define(f"llvm.load {pointer} {{alignment = 8 : i64}} : !llvm.ptr -> f64")

    # Text.

    def _define(self, text: str) -> str:
        self._counter += 1
        name = f"%e{self._counter}"
        self._lines.append(f"{name} = {text}")
        return name

    def _constant(self, number: int, kind: str = "i64") -> str:
        return self._define(f"llvm.mlir.constant({number} : {kind}) : {kind}")

    def _buffer(self, position: int) -> str:
        slot = self._define(f"llvm.getelementptr %buffers[{position}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        return self._define(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def _at(self, pointer: str, offset: int) -> str:
        if not offset:
            return pointer
        return self._define(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8")

    def _workspace(self, offset: int) -> str:
        return self._at(self._buffer(0), offset)

    def _pointer(self, value: Any, with_offset: bool = True) -> str:
        """The address of a buffer's first element (or of what its offset counts from)."""
        offset = layout(value)[1] * ELEMENT_BYTES[stored(_element(value))] if with_offset else 0
        while isinstance(value, ir.OpResult) and value.owner.operation.name in VIEWS:
            value = value.owner.operation.operands[0]
        if value in self._bases:
            return self._at(self._buffer(self._bases[value]), offset)
        if value in self._offsets:
            return self._workspace(self._offsets[value] + offset)
        if isinstance(value, ir.OpResult) and value.owner.operation.name == "memref.get_global":
            symbol = ir.FlatSymbolRefAttr(value.owner.operation.attributes["name"]).value
            return self._at(self._define(f"llvm.mlir.addressof @{symbol} : !llvm.ptr"), offset)
        raise CompileError(f"a buffer of unknown origin: {value}")

    # Calls.

    def _call(self, op: Any) -> None:
        if op in self._regions:
            self._call_region(op)
            return
        bound = self._bound(op)
        if op in self._initial:
            bound = starting_from(bound, self._initial[op])
        if 0 in bound.nest.sizes or self._moves_into_next(op, bound):
            return
        schedule = choose(bound.nest, self._machine)
        code = write_kernel(bound.nest, schedule, self._machine, self._attributes)
        self._functions.externals.update(code.externals)
        pointers = [self._pointer(v) for v in bound.buffers + bound.tables]
        pointers += [self._spilled(v) for v in bound.scalars]
        if bound.nest.may_fail:
            pointers.append(self._workspace(self._slot("status")))
            self._uses_status = True
        self._call_kernel(self._functions.kernel(code.text), pointers, schedule)

    def _moves_into_next(self, op: Any, bound: BoundNest) -> bool:
        """Whether a fill is left to the reduction that follows it."""
        constant = filled_with(bound)
        following = self._ops[self._ops.index(op) + 1 :]
        user = next((o for o in following if self._handlers.get(o.name) != self._nothing), None)
        if constant is None or user is None or user.name != "linalg.generic" or user in self._regions:
            return False
        if not overwrites(self._bound(user), bound.buffers[-1]):
            return False
        self._initial[user] = constant
        return True

    def _call_kernel(self, symbol: str, pointers: Sequence[str], schedule: Schedule) -> None:
        self._calls += 1
        self._most_operands = max(self._most_operands, len(pointers))
        for k, pointer in enumerate(pointers):
            slot = self._define(f"llvm.getelementptr %operands[{k}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
            self._lines.append(f"llvm.store {pointer}, {slot} : !llvm.ptr, !llvm.ptr")
        begin, end = self._constant(0), self._constant(schedule.iterations)
        if not schedule.grain:
            self._lines.append(f"llvm.call @{symbol}(%operands, {begin}, {end}) : (!llvm.ptr, i64, i64) -> ()")
            return
        kernel, grain = self._define(f"llvm.mlir.addressof @{symbol} : !llvm.ptr"), self._constant(schedule.grain)
        kinds = "(!llvm.ptr, !llvm.ptr, i64, i64, i64) -> ()"
        self._functions.externals[PARALLEL_FOR] = kinds
        self._lines.append(f"llvm.call @{PARALLEL_FOR}({kernel}, %operands, {begin}, {end}, {grain}) : {kinds}")

    def _spilled(self, value: Any) -> str:
        """The address of a slot that holds a scalar."""
        known = value in self._slots
        pointer = self._workspace(self._slot(value))
        if not known:
            kind = computed(str(value.type))
            name = self._scalars[value]
            if stored(kind) != kind:
                name = self._define(f"llvm.zext {name} : {kind} to {stored(kind)}")
            self._lines.append(f"llvm.store {name}, {pointer} : {stored(kind)}, !llvm.ptr")
        return pointer

    def _call_region(self, op: Any) -> None:
        region = self._regions[op]
        operands = [self._pointer(v, with_offset=False) for v in region.buffers]
        operands += [self._workspace(self._offsets[op, k]) for k in range(len(region.temporaries))]
        kinds = ["!llvm.ptr"] * len(operands) + [computed(str(v.type)) for v in region.scalars]
        operands += [self._scalars[v] for v in region.scalars]
        symbol = f"region_{list(self._regions).index(op)}"
        call = f"func.call @{symbol}({', '.join(operands)}) : ({', '.join(kinds)}) -> ({', '.join(region.results)})"
        if not region.results:
            self._lines.append(call)
            return
        self._counter += 1
        self._lines.append(f"%e{self._counter}:{len(region.results)} = {call}")
        for k, result in enumerate(op.results):
            self._scalars[result] = f"%e{self._counter}#{k}"

    # Scalar code.

    def _nothing(self, op: Any) -> None:
        """Views and allocations are resolved where they are used."""

    def _global(self, op: Any) -> None:
        symbol = ir.FlatSymbolRefAttr(op.attributes["name"]).value
        if symbol not in self._functions.globals:
            self._functions.globals[symbol] = _global_text(symbol, op)

    def _element_address(self, buffer: Any, indices: Sequence[Any]) -> tuple[str, str]:
        pointer, kind = self._pointer(buffer), stored(_element(buffer))
        for index, stride in zip(indices, layout(buffer)[0], strict=True):
            step = self._define(f"llvm.mul {self._scalars[index]}, {self._constant(stride)} : i64")
            pointer = self._define(f"llvm.getelementptr {pointer}[{step}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")
        return pointer, kind

    def _load(self, op: Any) -> None:
        buffer, *indices = op.operands
        pointer, kind = self._element_address(buffer, indices)
        align = ELEMENT_BYTES[kind]
        name = self._define(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {kind}")
        own = computed(_element(buffer))
        if own != kind:
            name = self._define(f"llvm.trunc {name} : {kind} to {own}")
        self._scalars[op.results[0]] = name

    def _store(self, op: Any) -> None:
        value, buffer, *indices = op.operands
        pointer, kind = self._element_address(buffer, indices)
        name, own = self._scalars[value], computed(_element(buffer))
        if own != kind:
            name = self._define(f"llvm.zext {name} : {own} to {kind}")
        align = ELEMENT_BYTES[kind]
        self._lines.append(f"llvm.store {name}, {pointer} {{alignment = {align} : i64}} : {kind}, !llvm.ptr")

    def _assert(self, op: Any) -> None:
        """A failed check ends the call with an error, so that PyTorch can run the group and raise its own."""
        self._asserts = True
        self._counter += 1
        following = f"^next{self._counter}"
        self._lines.append(f"llvm.cond_br {self._scalars[op.operands[0]]}, {following}, ^failed")
        self._lines.append(f"{following}:")

    def _other(self, op: Any) -> None:
        if op in self._regions:
            self._call_region(op)
            return
        if len(op.results) != 1:
            raise CompileError("a scalar op with several results", diagnostic=str(op))
        kind = computed(str(op.results[0].type))
        operands = [self._scalars[v] for v in op.operands]
        if op.name in ("arith.index_cast", "arith.index_castui"):
            self._scalars[op.results[0]] = self._cast(operands[0], computed(str(op.operands[0].type)), kind, op.name)
            return
        types = ", ".join(computed(str(v.type)) for v in op.operands)
        items = ", ".join(f"{name} = {op.attributes[name]}" for name in op.attributes)
        items = re.sub(r": index\b", ": i64", items)
        name = self._define(f'"{op.name}"({", ".join(operands)}) {{{items}}} : ({types}) -> {kind}')
        self._scalars[op.results[0]] = name

    def _cast(self, name: str, source: str, target: str, op: str) -> str:
        if source == target:
            return name
        widen = "arith.extui" if op.endswith("ui") else "arith.extsi"
        resize = widen if int(source[1:]) < int(target[1:]) else "arith.trunci"
        return self._define(f"{resize} {name} : {source} to {target}")

    # The module.

    def _assemble(self) -> Code:
        functions = self._functions
        parts = [f"llvm.func @{name}{_declaration(kinds)}" for name, kinds in sorted(functions.externals.items())]
        parts += list(functions.globals.values())
        parts += [text.replace("{symbol}", symbol) for text, symbol in functions.kernels.items()]
        parts += functions.regions
        parts.append(self._entry())
        size = self._workspace_bytes + _SLOT_BYTES * len(self._slots)
        return Code(
            text="\n".join(parts),
            workspace_bytes=-(-size // ALIGNMENT) * ALIGNMENT,
            externals=tuple(sorted(functions.externals)),
            has_regions=bool(functions.regions),
            kernels=self._calls + len(self._regions),
            distinct_kernels=len(functions.kernels) + len(functions.regions),
        )

    def _entry(self) -> str:
        count = f"llvm.mlir.constant({self._most_operands} : i64) : i64"
        head = [f"%count = {count}", "%operands = llvm.alloca %count x !llvm.ptr : (i64) -> !llvm.ptr"]
        body, self._lines = self._lines, []
        if self._uses_status:
            zero, pointer = self._constant(0, "i32"), self._workspace(self._slot("status"))
            self._lines.append(f"llvm.store {zero}, {pointer} : i32, !llvm.ptr")
            head += self._lines
        self._lines = []
        status = self._constant(0, "i32")
        if self._uses_status:
            pointer = self._workspace(self._slot("status"))
            status = self._define(f"llvm.load {pointer} : !llvm.ptr -> i32")
        self._lines.append(f"llvm.return {status} : i32")
        if self._asserts:
            self._lines.append("^failed:")
            self._lines.append(f"llvm.return {self._constant(1, 'i32')} : i32")
        lines = "\n".join(head + body + self._lines)
        return f"llvm.func @{ENTRY}(%buffers: !llvm.ptr) -> i32 {self._attributes} {{\n{lines}\n}}"


def _element(buffer: Any) -> str:
    return str(ir.MemRefType(buffer.type).element_type)


def _declaration(kinds: str) -> str:
    """``(f32) -> f32`` as a declaration's signature; a function without result has none."""
    return kinds.removesuffix(" -> ()").replace("-> ()", "")


def _global_text(symbol: str, op: Any) -> str:
    """A constant buffer as an LLVM global."""
    module = op
    while module.parent is not None:
        module = module.parent.operation
    table = ir.SymbolTable(module)
    value = table[symbol].operation.attributes["initial_value"]
    if str(value).startswith("dense_resource"):
        raise CompileError("a constant that lies outside of the program's text")
    kind = ir.MemRefType(op.results[0].type)
    sizes = list(kind.shape) or [1]
    array = str(kind.element_type)
    for size in reversed(sizes):
        array = f"array<{size} x {array}>"
    array = f"!llvm.{array}"
    if not kind.shape:
        value = str(value).replace("tensor<", "tensor<1x")
    return f"llvm.mlir.global internal constant @{symbol}({value}) {{alignment = 64 : i64}} : {array}"
