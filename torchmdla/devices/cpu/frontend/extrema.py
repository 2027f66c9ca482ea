"""Maxima and minima that are NaN where an operand is NaN, as PyTorch's are.

Upstream lowers them to a comparison and a select, which drops the NaN of one side and cannot be told from a ``where``
of the user's. So the ops are marked, through their locations, before they are lowered.
"""

from __future__ import annotations

from typing import Any

from torch_mlir import ir

_OPS = frozenset(f"torch.aten.{name}" for name in ("maximum", "minimum", "clamp", "clamp.Tensor"))
_MARK = "mdla.extremum"

# MLIR's numbers of the comparisons "greater" (ogt, oge, ugt, uge) and "less" (olt, ole, ult, ule).
_GREATER, _LESS = {2, 3, 9, 10}, {4, 5, 11, 12}


def mark(module: ir.Module) -> None:
    """Marks the module's maxima, minima and clamps, in the Torch dialect."""
    for op in _collect(module, _OPS):
        location = ir.Location.name(_MARK, op.location)
        with ir.InsertionPoint(op):
            copy = ir.Operation.create(
                op.name, results=[r.type for r in op.results], operands=list(op.operands), loc=location
            )
        op.results[0].replace_all_uses_with(copy.results[0])
        op.erase()


def restore(module: ir.Module) -> None:
    """Turns what marked ops were lowered to into ``arith.maximumf`` and ``arith.minimumf``."""
    for select in _collect(module, {"arith.select"}):
        if f'"{_MARK}"' in str(select.location):
            _replace(select)


def _collect(module: ir.Module, names: frozenset[str] | set[str]) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in names:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _replace(select: Any) -> None:
    condition, first, second = select.operands
    compare = condition.owner.operation if isinstance(condition, ir.OpResult) else None
    if compare is None or compare.name != "arith.cmpf":
        return
    predicate = ir.IntegerAttr(compare.attributes["predicate"]).value
    left, right = compare.operands
    if {first, second} != {left, right} or predicate not in _GREATER | _LESS:
        return
    name = "arith.maximumf" if (predicate in _GREATER) == (first == left) else "arith.minimumf"
    with ir.InsertionPoint(select):
        extremum = ir.Operation.create(name, results=[first.type], operands=[first, second], loc=select.location)
    select.results[0].replace_all_uses_with(extremum.results[0])
