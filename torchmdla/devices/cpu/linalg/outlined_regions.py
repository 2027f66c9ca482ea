"""Outlining of ops that are not nests (scans, sorts, loops around computations) into serial functions.

The op moves into its own function. Upstream bufferises the function, which then receives bare pointers::

    %7:2 = tm_tensor.scan … ins(%1) outs(%4, %6)    →    func.func private @region_0(%in: !llvm.ptr, …) {
                                                           %0 = … : memref<4x5xf32>
                                                           scf.for … }
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, func, memref, scf

from torchmdla.compiler.mlir import convert_errors, ops_named, run
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, NotANestError, register_type, storage_type
from torchmdla.errors import CompileError

# Upstream's tensor-matching ops have their own bufferisation pass, which does not know about changes in place.
_BUFFERIZE = (
    "func.func(tm-tensor-bufferize)",
    "one-shot-bufferize{bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map "
    "copy-before-write=1}",
    "func.func(linalg-generalize-named-ops)",
    "lower-affine",
    "canonicalize",
    "cse",
)


@dataclass(frozen=True)
class Region:
    """Function ``@symbol`` in MLIR text.

    Its arguments are pointers to the inputs ``tensors``, to the op's results that are tensors, and to temporaries of
    ``temporaries`` bytes, then the values ``scalars``. It returns the other results.
    """

    symbol: str
    text: str
    tensors: tuple[Any, ...]
    temporaries: tuple[int, ...]
    scalars: tuple[Any, ...]


def outline(op: Any, symbol: str) -> Region:
    """Return the op as a function.

    Raises:
        CompileError: upstream cannot bufferise it, or it needs buffers whose sizes are not known at compile time.
    """
    if any(isinstance(result.type, ir.IndexType) for result in op.results):
        raise CompileError("control flow that makes new sizes", diagnostic=op.name)
    captured = [value for value in _captured_values(op) if not _is_rematerialised(value)]
    tensors = [value for value in captured if isinstance(value.type, ir.RankedTensorType)]
    scalars = [value for value in captured if not isinstance(value.type, ir.RankedTensorType)]
    module = _module(op, symbol, tensors + scalars)
    with convert_errors("bufferisation failed"):
        run(module, *_BUFFERIZE)
    function = _function(module)
    _write_scans(function)
    _results_to_arguments(function)
    temporaries = _temporaries_to_arguments(function)
    text = _lower_to_pointers(function, symbol, [str(s.type) for s in scalars])
    return Region(symbol, text, tuple(tensors), temporaries, tuple(scalars))


def _captured_values(op: Any) -> list[Any]:
    """Return the values from outside that the op and its regions use, in order of appearance."""
    outer: dict[Any, None] = {}
    inside = set()

    def visit(inner: Any) -> Any:
        inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        outer.update(dict.fromkeys(inner.operands))
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return [v for v in outer if v not in inside]


def _is_rematerialised(value: Any) -> bool:
    """Return whether the function recreates a value: a number, or a tensor that is empty or filled with a number."""
    owner = value.owner.operation if isinstance(value, ir.OpResult) else None
    if owner is None:
        return False
    if owner.name == "arith.constant":
        return not isinstance(value.type, ir.RankedTensorType)
    is_fill = owner.name == "linalg.generic" and len(owner.operands) == 1 and len(owner.results) == 1
    return owner.name == "tensor.empty" or (is_fill and all(map(_is_rematerialised, _captured_values(owner))))


def _module(op: Any, symbol: str, captured: list[Any]) -> ir.Module:
    """Return a module whose only function computes ``op`` from ``captured`` values."""
    module = ir.Module.create()
    kinds = [value.type for value in captured]
    with ir.InsertionPoint(module.body):
        function = func.FuncOp(symbol, (kinds, [result.type for result in op.results]))
    block = function.add_entry_block()
    names = dict(zip(captured, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        func.ReturnOp(list(_clone(op, names).results))
    is_tensor = [isinstance(kind, ir.RankedTensorType) for kind in kinds]
    read_only = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False)})
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([read_only if t else ir.DictAttr.get({}) for t in is_tensor])
    return module


def _clone(op: Any, names: dict[Any, Any]) -> Any:
    """Clone the op and the producers of its operands, except values in ``names``, at the current insertion point."""
    for value in _captured_values(op):
        if value not in names:
            owner = value.owner.operation
            names.update(zip(owner.results, _clone(owner, names).results, strict=True))
    copy = op.clone()
    _rename(copy, names)
    return copy


def _rename(op: Any, names: Mapping[Any, Any]) -> None:
    def visit(inner: Any) -> Any:
        for old in dict.fromkeys(inner.operands):
            if old in names:
                inner.replace_uses_of_with(old, names[old])
        return ir.WalkResult.ADVANCE

    op.walk(visit)


def _function(module: ir.Module) -> Any:
    return module.body.operations[0].operation


def _results_to_arguments(function: Any) -> None:
    """Replace each buffer that the function returns by an argument. The function still returns numbers."""
    block = function.regions[0].blocks[0]
    last = block.operations[len(block.operations) - 1].operation
    numbers = []
    for value in list(last.operands):
        if not isinstance(value.type, ir.MemRefType):
            numbers.append(value)
            continue
        place = block.add_argument(_contiguous(value), last.location)
        owner = value.owner.operation if isinstance(value, ir.OpResult) else None
        if owner is not None and owner.name == "memref.alloc" and value.type == place.type:
            value.replace_all_uses_with(place)
            owner.erase()
        else:
            with ir.InsertionPoint(last), last.location:
                memref.CopyOp(value, place)
    with ir.InsertionPoint(last), last.location:
        func.ReturnOp(numbers)
    last.erase()


def _contiguous(value: Any) -> Any:
    kind = ir.MemRefType(value.type)
    if not kind.has_static_shape:
        raise CompileError("control flow that makes tensors of new sizes", diagnostic=str(kind))
    return ir.MemRefType.get(kind.shape, kind.element_type)


def _temporaries_to_arguments(function: Any) -> tuple[int, ...]:
    """Replace each buffer that the function allocates by an argument; return the sizes in bytes."""
    allocations = ops_named(function, {"memref.alloc", "memref.alloca"})
    for allocation in allocations:
        place = function.regions[0].blocks[0].add_argument(allocation.results[0].type, allocation.location)
        allocation.results[0].replace_all_uses_with(place)
    sizes = tuple(_memory_bytes(allocation.results[0]) for allocation in allocations)
    for op in [*ops_named(function, {"memref.dealloc"}), *allocations]:
        op.erase()
    return sizes


def _memory_bytes(buffer: Any) -> int:
    """Return the size in bytes of a statically shaped, contiguous buffer.

    Raises:
        CompileError: its sizes are not known at compile time, or its element type is not supported.
    """
    kind = _contiguous(buffer)
    try:
        return math.prod(int(size) for size in kind.shape) * ELEMENT_BYTES[storage_type(str(kind.element_type))]
    except NotANestError as error:
        raise CompileError(f"a buffer that cannot be planned: {error}") from None


def _lower_to_pointers(function: Any, symbol: str, scalars: list[str]) -> str:
    """Return the text of the function with bare pointers as buffers, followed by ``scalars``."""
    old = function.regions[0].blocks[0]
    buffers = [value for value in old.arguments if isinstance(value.type, ir.MemRefType)]
    numbers = [value for value in old.arguments if not isinstance(value.type, ir.MemRefType)]
    *ops, last = (op.operation for op in old.operations)
    results = [str(value.type) for value in last.operands]
    skeleton = ir.Module.parse(_skeleton(symbol, [b.type for b in buffers], scalars, results))
    target = _function(skeleton)
    block = target.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    casts = [op.operation.results[0] for op in block.operations if op.operation.name == _CAST]
    indices = (op.operation.results[0] for op in block.operations if op.operation.name == "arith.index_cast")
    plain = list(block.arguments)[len(buffers) :]
    arguments = [next(indices) if kind == "index" else value for kind, value in zip(scalars, plain, strict=True)]
    names = {**dict(zip(buffers, casts, strict=True)), **dict(zip(numbers, arguments, strict=True))}
    with ir.InsertionPoint(end), ir.Location.unknown():
        for op in ops:
            copy = op.clone()
            _rename(copy, names)
            names.update(zip(op.results, copy.results, strict=True))
        func.ReturnOp([names[value] for value in last.operands])
    end.erase()
    return str(target.get_asm(use_local_scope=True))


_CAST = "builtin.unrealized_conversion_cast"


def _skeleton(symbol: str, kinds: list[Any], scalars: list[str], results: list[str]) -> str:
    """Return the function without its body: only the conversions of arguments to buffers."""
    arguments = [f"%p{k}: !llvm.ptr" for k in range(len(kinds))]
    arguments += [f"%s{k}: {register_type(kind)}" for k, kind in enumerate(scalars)]
    lines = [line for k, kind in enumerate(kinds) for line in _buffer_of_pointer(k, kind)]
    lines += [f"%i{k} = arith.index_cast %s{k} : i64 to index" for k, kind in enumerate(scalars) if kind == "index"]
    returned = f" -> ({', '.join(results)})" if results else ""
    return (
        f"func.func private @{symbol}({', '.join(arguments)}){returned} "
        f"attributes {{llvm.linkage = #llvm.linkage<internal>}} {{\n" + "\n".join(lines) + "\nllvm.unreachable\n}"
    )


def _buffer_of_pointer(number: int, kind: Any) -> list[str]:
    """Return lines that create a memref from a pointer to its first element.

    The memref's descriptor contains two pointers, the offset, the sizes and the strides.
    """
    strides, offset = ir.MemRefType(kind).get_strides_and_offset()
    rank = len(strides)
    arrays = f", array<{rank} x i64>, array<{rank} x i64>" if rank else ""
    struct = f"!llvm.struct<(ptr, ptr, i64{arrays})>"
    lines = [f"%d{number}_0 = llvm.mlir.poison : {struct}"]
    fields = [("[2]", offset)]
    fields += [(f"[3, {d}]", size) for d, size in enumerate(ir.MemRefType(kind).shape)]
    fields += [(f"[4, {d}]", stride) for d, stride in enumerate(strides)]
    values = [("[0]", f"%p{number}"), ("[1]", f"%p{number}")]
    for k, (position, constant) in enumerate(fields):
        lines.append(f"%c{number}_{k} = llvm.mlir.constant({constant} : i64) : i64")
        values.append((position, f"%c{number}_{k}"))
    for k, (position, value) in enumerate(values):
        lines.append(f"%d{number}_{k + 1} = llvm.insertvalue {value}, %d{number}_{k}{position} : {struct}")
    lines.append(f"%m{number} = {_CAST} %d{number}_{len(values)} : {struct} to {kind}")
    return lines


# Running sums and products as loops that accumulate floats in double precision, as eager mode does. Upstream's loops
# continue from each rounded result, which they read back from memory.

_SCAN = "tm_tensor.scan"

# The ops that combine two values, with the initial value.
_STARTS: Mapping[str, int] = {"arith.addf": 0, "arith.addi": 0, "arith.mulf": 1, "arith.muli": 1}
_EQUAL = 0


def _write_scans(function: Any) -> None:
    """Replace the scans in a function on buffers by loops."""
    for op in ops_named(function, {_SCAN}):
        combine, *rest = (inner.operation for inner in op.regions[0].blocks[0].operations)
        if len(rest) == 1 and combine.name in _STARTS:
            _Scan(op, combine.name).write()
            op.erase()


class _Scan:
    def __init__(self, op: Any, combine: str) -> None:
        self._op = op
        self._combine = combine
        self._source, self._result, _ = op.operands
        kind = ir.MemRefType(self._source.type)
        self._sizes = list(kind.shape)
        self._dim = ir.IntegerAttr(op.attributes["dimension"]).value
        self._element = kind.element_type
        self._is_float = isinstance(self._element, ir.FloatType)
        self._wide: Any = ir.F64Type.get() if self._is_float else self._element

    def write(self) -> None:
        with ir.InsertionPoint(self._op), self._op.location:
            self._step = _index(1)
            start = _STARTS[self._combine]
            self._start = arith.ConstantOp(self._wide, float(start) if self._is_float else start).result
            along = self._sizes[self._dim + 1 :]
            kind = ir.MemRefType.get(along, self._wide)
            # One register is enough if the scan is along the innermost dimension.
            self._running = memref.AllocOp(kind, [], []).result if along else None
            self._loops([])

    def _loops(self, place: Sequence[Any]) -> None:
        """Write the loops over the dimensions from ``len(place)`` on."""
        if len(place) == len(self._sizes):
            self._accumulate(place)
            return
        carries = self._running is None and len(place) == self._dim
        loop = scf.ForOp(_index(0), _index(self._sizes[len(place)]), self._step, [self._start] if carries else [])
        with ir.InsertionPoint(loop.body):
            inner = [*place, loop.induction_variable]
            if carries:
                scf.YieldOp([self._combine_at(inner, loop.inner_iter_args[0])])
            else:
                self._loops(inner)
                scf.YieldOp([])

    def _accumulate(self, place: Sequence[Any]) -> None:
        """Combine one value with the running value in memory."""
        along = list(place[self._dim + 1 :])
        is_first = arith.CmpIOp(_EQUAL, place[self._dim], _index(0)).result
        before = arith.SelectOp(is_first, self._start, memref.LoadOp(self._running, along).result).result
        memref.StoreOp(self._combine_at(place, before), self._running, along)

    def _combine_at(self, place: Sequence[Any], before: Any) -> Any:
        """Combine ``before`` with the value at ``place``, store the result there, and return it."""
        value = memref.LoadOp(self._source, place).result
        narrow = self._wide != self._element
        wide = arith.ExtFOp(self._wide, value).result if narrow else value
        total = ir.Operation.create(self._combine, results=[self._wide], operands=[before, wide]).results[0]
        memref.StoreOp(arith.TruncFOp(self._element, total).result if narrow else total, self._result, place)
        return total


def _index(value: int) -> Any:
    return arith.ConstantOp(ir.IndexType.get(), value).result
