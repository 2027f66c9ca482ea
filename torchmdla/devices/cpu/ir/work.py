"""Amount of work of a loop program's kernels: floating-point operations, and bytes read and written.

The counts are for humans, as in a roofline. Costs for schedules are in ``schedule/``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchmdla.compiler.sizes import Size
from torchmdla.devices.cpu.ir.accesses import Access
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.expressions import Contents
from torchmdla.devices.cpu.ir.loop_program import KernelStep, LoopNest, OutlinedRegion, Scatter, TileLoop

# MLIR's operations on floats that only choose, compare or convert.
_FREE = frozenset(("arith.select", "arith.cmpf", "arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp"))
_FLOATS = frozenset(("f32", "f64", "f16", "bf16"))
_OPERATIONS = {"math.fma": 2, "dot": 3}


@dataclass(frozen=True)
class Work:
    """Work of a step.

    Attributes:
        loops: the sizes of its nests, for example ``2x64 reduce 128``.
        flops: the number of floating-point operations.
        bytes: the number of bytes that are read and written.
        nodes: the group's nodes that the step computes.
    """

    loops: str
    flops: int | Size
    bytes: int | Size
    nodes: tuple[int, ...]


def work_of(step: KernelStep, repeats: int | Size = 1) -> Work:
    """Return the work of a step that runs ``repeats`` times in a call of the entry.

    For a region, only the bytes are counted, since its loops are unknown.
    """
    if isinstance(step, OutlinedRegion):
        moved = _sum(buffer.bytes for buffer in (*step.inputs, *step.outputs))
        return Work("", 0, moved * repeats, tuple(sorted(step.nodes)))
    nests = [step.nest] if isinstance(step, Scatter) else _whole_nests(step)
    return Work(
        loops="; ".join(_loops(nest) for nest in nests),
        flops=_sum(_flops(nest) for nest in nests) * repeats,
        bytes=_sum(_bytes(nest) for nest in nests) * repeats,
        nodes=tuple(sorted(frozenset[int]().union(*(nest.nodes for nest in nests)))),
    )


def _whole_nests(step: LoopNest | TileLoop) -> Sequence[LoopNest]:
    """Return the nests of a step. Those of a tile loop are over all tiles."""
    if isinstance(step, LoopNest):
        return [step]
    return [step.part(member, step.extents) for member in range(len(step.members))]


def _loops(nest: LoopNest) -> str:
    parallel = "x".join(str(n) for n, reduces in zip(nest.sizes, nest.reduction, strict=True) if not reduces and n != 1)
    reduced = "x".join(str(n) for n, reduces in zip(nest.sizes, nest.reduction, strict=True) if reduces and n != 1)
    return " ".join([parallel or "1", *(["reduce", reduced] if reduced else [])])


def _flops(nest: LoopNest) -> int | Size:
    stored_once = [n for n, reduces in zip(nest.sizes, nest.reduction, strict=True) if not reduces]
    epilogue = _operations(nest.epilogue.body) if nest.epilogue else 0
    return _operations(nest.body) * math.prod(nest.sizes) + epilogue * math.prod(stored_once)


def _operations(body: Contents) -> int:
    computed = (e.op for e in body.expressions if e.type in _FLOATS and e.op not in _FREE)
    return sum(_OPERATIONS.get(op, 1) for op in computed if op.startswith(("arith.", "math.", "dot")))


def _bytes(nest: LoopNest) -> int | Size:
    """Return the bytes of all accesses. Elements are counted once for each access."""
    touched = [_accessed_bytes(nest, access) for access in (*nest.read_accesses, *nest.written_accesses)]
    return _sum([*touched, *(table.buffer.bytes for table in nest.tables)])


def _accessed_bytes(nest: LoopNest, access: Access) -> int | Size:
    if access.buffer.kind == "local":
        return 0
    elements = math.prod(nest.sizes[loop] for loop in access.loops)
    if isinstance(elements, int) and isinstance(access.buffer.count, int):
        elements = min(elements, access.buffer.count)
    return elements * ELEMENT_BYTES[storage_type(access.element)]


def _sum(numbers: Iterable[int | Size]) -> int | Size:
    total: int | Size = 0
    for number in numbers:
        total = total + number
    return total
