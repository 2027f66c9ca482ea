"""Quotients and rests of integers by -1, for which processors end the process where the dividend is the least integer.

Eager's wrap around. A divisor of zero never comes here: the importer has the call fail first.
"""

from __future__ import annotations

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith

from torchmdla.compiler.mlir import ops_named

_QUOTIENT, _REST = "arith.divsi", "arith.remsi"
_EQUAL = 0


def guard(module: ir.Module) -> None:
    """Lets the module's divisions divide by 1 in the place of -1, and negates what they give."""
    for op in ops_named(module.operation, {_QUOTIENT, _REST}):
        if not _never_minus_one(op.operands[1]):
            _guard(op)


def _never_minus_one(divisor: Any) -> bool:
    """Whether it is a constant that is something else; sizes, too, are not negative."""
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
