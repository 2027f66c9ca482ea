"""Guards of integer quotients and remainders with the divisor -1.

If the dividend is the least integer, processors end the process. Eager mode wraps around. A divisor of zero does not
occur here: the importer makes the call fail first.
"""

from __future__ import annotations

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith

from torchmdla.compiler.mlir import ops_named

_QUOTIENT, _REST = "arith.divsi", "arith.remsi"
_EQUAL = 0


def guard(module: ir.Module) -> None:
    """Replace the divisor -1 of the module's divisions by 1, and negate the quotients."""
    for op in ops_named(module.operation, {_QUOTIENT, _REST}):
        if not _never_minus_one(op.operands[1]):
            _guard(op)


def _never_minus_one(divisor: Any) -> bool:
    """Return whether a divisor is a constant other than -1, or a size, which is not negative."""
    if isinstance(divisor.type, ir.IndexType):
        return True
    constant = divisor.owner.operation if isinstance(divisor, ir.OpResult) else None
    if constant is None or constant.name != "arith.constant":
        return False
    value = constant.attributes["value"]
    return isinstance(value, ir.IntegerAttr) and value.value != -1


def _guard(op: Any) -> None:
    dividend, divisor = op.operands
    kind = divisor.type
    with ir.InsertionPoint(op), op.location:
        is_minus_one = arith.CmpIOp(_EQUAL, divisor, arith.ConstantOp(kind, -1).result).result
        op.operands[1] = arith.SelectOp(is_minus_one, arith.ConstantOp(kind, 1).result, divisor).result
        if op.name == _REST:
            return
        negated = arith.SubIOp(arith.ConstantOp(kind, 0).result, dividend).result
    with ir.InsertionPoint.after(op), op.location:
        chosen = arith.SelectOp(is_minus_one, negated, op.results[0]).result
    op.results[0].replace_all_uses_except(chosen, chosen.owner.operation)
