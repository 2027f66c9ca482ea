"""Maxima and minima that propagate NaN, and rectifiers that keep a zero's sign, as in PyTorch.

Upstream lowers them to a comparison and a select. This drops the NaN of one side, and cannot be distinguished from a
``where`` in the user's program. The ops are therefore marked, by their locations, before they are lowered.
"""

from __future__ import annotations

from typing import Any

from torch_mlir import ir

from torchmdla.compiler.mlir import ops_named

_EXTREMUM, _RECTIFIER = "mdla.extremum", "mdla.rectifier"

_MARKS = {
    **{f"torch.aten.{name}": _EXTREMUM for name in ("maximum", "minimum", "clamp", "clamp.Tensor")},
    **{f"torch.aten.{name}": _RECTIFIER for name in ("relu", "relu6")},
}

# MLIR's numbers of the comparisons "greater" (ogt, oge, ugt, uge) and "less" (olt, ole, ult, ule).
_GREATER, _LESS = {2, 3, 9, 10}, {4, 5, 11, 12}
_UNORDERED_GREATER, _UNORDERED_GREATER_OR_EQUAL = 9, 10


def mark(module: ir.Module) -> None:
    """Mark the module's maxima, minima, clamps and rectifiers, in the Torch dialect."""
    for op in ops_named(module.operation, _MARKS):
        location = ir.Location.name(_MARKS[op.name], op.location)
        with ir.InsertionPoint(op):
            copy = ir.Operation.create(
                op.name, results=[r.type for r in op.results], operands=list(op.operands), loc=location
            )
        op.results[0].replace_all_uses_with(copy.results[0])
        op.erase()


def restore(module: ir.Module) -> None:
    """Replace lowered extrema by ``arith.maximumf`` and ``arith.minimumf``; make rectifiers keep zeros.

    A rectifier chooses its operand if that is equal to zero. This is also one instruction of x86.
    """
    for select in ops_named(module.operation, {"arith.select"}):
        location = str(select.location)
        if f'"{_EXTREMUM}"' in location:
            _replace_by_extremum(select)
        elif f'"{_RECTIFIER}"' in location:
            _keep_zero(select)


def _comparison(select: Any) -> tuple[Any, int]:
    """Return the comparison of floats that is a select's condition, and its predicate; otherwise None and 0."""
    condition = select.operands[0]
    compare = condition.owner.operation if isinstance(condition, ir.OpResult) else None
    if compare is None or compare.name != "arith.cmpf":
        return None, 0
    return compare, ir.IntegerAttr(compare.attributes["predicate"]).value


def _keep_zero(select: Any) -> None:
    compare, predicate = _comparison(select)
    if predicate == _UNORDERED_GREATER and list(compare.operands) == list(select.operands)[1:]:
        kind = compare.attributes["predicate"].type
        compare.attributes["predicate"] = ir.IntegerAttr.get(kind, _UNORDERED_GREATER_OR_EQUAL)


def _replace_by_extremum(select: Any) -> None:
    _, first, second = select.operands
    compare, predicate = _comparison(select)
    if compare is None:
        return
    left, right = compare.operands
    if {first, second} != {left, right} or predicate not in _GREATER | _LESS:
        return
    name = "arith.maximumf" if (predicate in _GREATER) == (first == left) else "arith.minimumf"
    with ir.InsertionPoint(select):
        extremum = ir.Operation.create(name, results=[first.type], operands=[first, second], loc=select.location)
    select.results[0].replace_all_uses_with(extremum.results[0])
