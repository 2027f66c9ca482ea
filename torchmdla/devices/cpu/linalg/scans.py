"""Running sums and products as loops that accumulate floats in double precision, as eager mode does.

Upstream's loops continue from each rounded result, which they read back from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith, memref, scf

from torchmdla.compiler.mlir import ops_named

_SCAN = "tm_tensor.scan"

# The ops that combine two values, with the initial value.
_STARTS: Mapping[str, int] = {"arith.addf": 0, "arith.addi": 0, "arith.mulf": 1, "arith.muli": 1}
_EQUAL = 0


def write_loops(function: Any) -> None:
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
        is_float = isinstance(self._element, ir.FloatType)
        self._wide: Any = ir.F64Type.get() if is_float else self._element

    def write(self) -> None:
        with ir.InsertionPoint(self._op), self._op.location:
            self._step = _index(1)
            self._start = arith.ConstantOp(self._wide, float(self._number) if self._is_float else self._number).result
            along = self._sizes[self._dim + 1 :]
            kind = ir.MemRefType.get(along, self._wide)
            # One register is enough if the scan is along the innermost dimension.
            self._running = memref.AllocOp(kind, [], []).result if along else None
            self._loops([])

    @property
    def _number(self) -> int:
        return _STARTS[self._combine]

    @property
    def _is_float(self) -> bool:
        return isinstance(self._wide, ir.FloatType)

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
