"""Removal of quantisation whose result is read as a float at once.

The value stays a float. Rounded and within bounds, it equals the integer. An addition of 0 removes -0.0, which integers
do not have.

::

    v0 : f32 = arith.minimumf (arith.maximumf x, -58.0), 197.0
    v1 : f32 = math.roundeven v0                                     v1 : f32 = math.roundeven v0
    v2 : i8 = arith.trunci (arith.addi (arith.fptosi v1), 58)
    v3 : i32 = arith.andi (arith.extsi v2), 255               →
    v4 : f32 = arith.subf (arith.sitofp v3), 58.0                    v4 : f32 = arith.addf v1, 0.0
    v5 : f32 = arith.mulf v4, 0.0577                                 v5 : f32 = arith.mulf v4, 0.0577
"""

from __future__ import annotations

import math

from torchmdla.devices.cpu.expressions import Expression, constant, operation, rewrite
from torchmdla.devices.cpu.loop_program import LoopProgram
from torchmdla.devices.cpu.passes.quantised import match_quantised


def keep_floats(steps: LoopProgram) -> None:
    """Replace conversions to integers and back by the rounded floats, in place."""
    for step in steps.nests():
        step.map_expressions(lambda roots: rewrite(roots, _match_float))


def _match_float(value: Expression) -> Expression | None:
    parts = match_quantised(value) if value.op in ("arith.subf", "arith.sitofp") else None
    if parts is None or parts.integer.op != "arith.trunci" or parts.zero.op != "constant":
        return None
    integer, moved = _split_constant(parts.integer.operands[0], "arith.addi", 0)
    if integer.op != "arith.fptosi" or integer.type != "i32" or moved != parts.zero.payload:
        return None
    (rounded,) = integer.operands
    if rounded.op != "math.roundeven" or rounded.type != "f32":
        return None
    least, most = _bounds(rounded.operands[0])
    lowest = -128 if parts.is_signed else 0
    if not lowest <= least + moved <= most + moved <= lowest + 255:
        return None
    return operation("arith.addf", [rounded, constant(0.0, "f32")], "f32")


def _split_constant(value: Expression, op: str, otherwise: float) -> tuple[Expression, float]:
    """Return the other operand and the constant of operation ``op``, else ``value`` and ``otherwise``."""
    if value.op != op:
        return value, otherwise
    other, number = sorted(value.operands, key=lambda operand: operand.op == "constant")
    return (other, number.payload) if number.op == "constant" else (value, otherwise)


# MLIR's comparisons ogt and uge; rectifiers use the second one.
_GREATER = ("{predicate = 2 : i64}", "{predicate = 10 : i64}")


def _is_above(value: Expression) -> bool:
    """Return whether a value is the larger one of another value and a constant, with either result for NaN."""
    if value.op != "arith.select" or value.operands[2].op != "constant":
        return False
    condition, *chosen = value.operands
    return condition.attributes in _GREATER and condition.operands == tuple(chosen)


def _bounds(value: Expression) -> tuple[float, float]:
    """Return the bounds that a maximum and a minimum around a value specify."""
    bounds = {"arith.maximumf": -math.inf, "arith.minimumf": math.inf}
    for _ in bounds:
        op = value.op
        if _is_above(value):
            value, bounds["arith.maximumf"] = value.operands[1], value.operands[2].payload
            continue
        if op not in bounds or math.isfinite(bounds[op]):
            break
        value, bounds[op] = _split_constant(value, op, bounds[op])
    least, most = bounds.values()
    return least, most
