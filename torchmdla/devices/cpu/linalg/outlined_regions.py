"""Computations that are no kernel (loops around computations, upstream's own ops) as one serial function each.

The op moves into a function of bare pointers, which upstream's passes lower to loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.mlir import ops_named
from torchmdla.devices.cpu.kernel_spec import ELEMENT_BYTES, NotANestError, computed, stored
from torchmdla.devices.cpu.linalg.buffers import layout
from torchmdla.errors import CompileError


@dataclass(frozen=True)
class Region:
    """A function ``@symbol`` in MLIR text. It takes pointers to ``buffers``, then pointers to temporaries of
    ``temporaries`` bytes, then the values ``scalars``; it returns values of types ``results``."""

    text: str
    buffers: tuple[Any, ...]
    temporaries: tuple[int, ...]
    scalars: tuple[Any, ...]
    results: tuple[str, ...]


def outline(op: Any, symbol: str) -> Region:
    """The op as a function.

    Raises:
        CompileError: it makes or needs buffers whose layout is not known at compile time.
    """
    results = [str(r.type) for r in op.results]
    if any(isinstance(r.type, (ir.MemRefType, ir.IndexType)) for r in op.results):
        raise CompileError("control flow that makes new buffers or sizes", diagnostic=op.name)
    captured = _captured(op)
    buffers = [v for v in captured if isinstance(v.type, ir.MemRefType)]
    scalars = [v for v in captured if not isinstance(v.type, ir.MemRefType)]
    allocations = _allocations(op)
    kinds = [v.type for v in buffers] + [a.results[0].type for a in allocations]
    module = ir.Module.parse(_skeleton(symbol, kinds, [str(s.type) for s in scalars], results))
    function = module.body.operations[0]
    block = function.regions[0].blocks[0]
    casts = _results_of(block, "builtin.unrealized_conversion_cast")
    indices = iter(_results_of(block, "arith.index_cast"))
    end = block.operations[len(block.operations) - 1].operation
    clone = op.clone(ip=ir.InsertionPoint(end))
    for allocation, buffer in zip(_allocations(clone), casts[len(buffers) :], strict=True):
        allocation.results[0].replace_all_uses_with(buffer)
        allocation.erase()
    plain = list(block.arguments)[len(kinds) :]
    arguments = [next(indices) if isinstance(s.type, ir.IndexType) else v for s, v in zip(scalars, plain, strict=True)]
    _rename(
        clone, {**dict(zip(buffers, casts[: len(buffers)], strict=True)), **dict(zip(scalars, arguments, strict=True))}
    )
    if results:
        with ir.InsertionPoint(end), ir.Location.unknown():
            ir.Operation.create("func.return", operands=list(clone.results))
        end.erase()
    text = function.operation.get_asm(use_local_scope=True)
    temporaries = tuple(memory_bytes(a.results[0]) for a in allocations)
    return Region(text, tuple(buffers), temporaries, tuple(scalars), tuple(results))


def _results_of(block: Any, name: str) -> list[Any]:
    return [op.operation.results[0] for op in block.operations if op.operation.name == name]


def memory_bytes(buffer: Any) -> int:
    """Bytes of a statically shaped, contiguous buffer.

    Raises:
        CompileError: its sizes are not known at compile time.
    """
    kind = ir.MemRefType(buffer.type)
    try:
        layout(buffer)
        return math.prod(int(size) for size in kind.shape) * ELEMENT_BYTES[stored(str(kind.element_type))]
    except NotANestError as error:
        raise CompileError(f"a buffer that cannot be planned: {error}") from None


def _captured(op: Any) -> list[Any]:
    """Values that the op and what it contains take from outside, in order of appearance."""
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


def _allocations(op: Any) -> list[Any]:
    return ops_named(op, {"memref.alloc"})


def _rename(op: Any, names: dict[Any, Any]) -> None:
    def visit(inner: Any) -> Any:
        for old in dict.fromkeys(inner.operands):
            if old in names:
                inner.replace_uses_of_with(old, names[old])
        return ir.WalkResult.ADVANCE

    op.walk(visit)


def _skeleton(symbol: str, kinds: list[Any], scalars: list[str], results: list[str]) -> str:
    """The function without its body: arguments turned into buffers."""
    arguments = [f"%p{k}: !llvm.ptr" for k in range(len(kinds))]
    arguments += [f"%s{k}: {computed(kind)}" for k, kind in enumerate(scalars)]
    lines = [line for k, kind in enumerate(kinds) for line in _buffer_of_pointer(k, kind)]
    lines += [f"%i{k} = arith.index_cast %s{k} : i64 to index" for k, kind in enumerate(scalars) if kind == "index"]
    returned = f" -> ({', '.join(results)})" if results else ""
    tail = "llvm.unreachable" if results else "func.return"
    return (
        f"func.func private @{symbol}({', '.join(arguments)}){returned} "
        f"attributes {{llvm.linkage = #llvm.linkage<internal>}} {{\n" + "\n".join(lines) + f"\n{tail}\n}}"
    )


def _buffer_of_pointer(number: int, kind: Any) -> list[str]:
    """The memref over a pointer to its first element. Its descriptor: two pointers, offset, sizes, strides."""
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
    lines.append(f"%m{number} = builtin.unrealized_conversion_cast %d{number}_{len(values)} : {struct} to {kind}")
    return lines
