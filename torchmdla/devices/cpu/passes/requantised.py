"""What is quantised and read as a float at once stays a float: rounded and within bounds, it is the integer that it
would be made to. An integer has no -0.

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

from torchmdla.devices.cpu.expressions import Expression, constant, operation, rewritten
from torchmdla.devices.cpu.loop_program import LoopProgram
from torchmdla.devices.cpu.passes.quantised import quantised


def keep_floats(steps: LoopProgram) -> None:
    """Lets such values stay floats, in place."""
    for step in steps.nests():
        step.map_expressions(lambda roots: rewritten(roots, _as_float))


def _as_float(value: Expression) -> Expression | None:
    found = quantised(value) if value.op in ("arith.subf", "arith.sitofp") else None
    if found is None or found.integer.op != "arith.trunci" or found.zero.op != "constant":
        return None
    integer, moved = _and_constant(found.integer.operands[0], "arith.addi", 0)
    if integer.op != "arith.fptosi" or integer.type != "i32" or moved != found.zero.payload:
        return None
    (rounded,) = integer.operands
    if rounded.op != "math.roundeven" or rounded.type != "f32":
        return None
    least, most = _bounds(rounded.operands[0])
    lowest = -128 if found.is_signed else 0
    if not lowest <= least + moved <= most + moved <= lowest + 255:
        return None
    return operation("arith.addf", [rounded, constant(0.0, "f32")], "f32")


def _and_constant(value: Expression, op: str, otherwise: float) -> tuple[Expression, float]:
    """An operand of ``op`` beside a constant, and this; what is no such operation and ``otherwise``."""
    if value.op != op:
        return value, otherwise
    other, number = sorted(value.operands, key=lambda operand: operand.op == "constant")
    return (other, number.payload) if number.op == "constant" else (value, otherwise)


# MLIR's comparisons ogt and uge, the second of which rectifiers have.
_GREATER = ("{predicate = 2 : i64}", "{predicate = 10 : i64}")


def _is_above(value: Expression) -> bool:
    """Return whether a value is the larger one of another and a constant, whichever it is of a NaN."""
    if value.op != "arith.select" or value.operands[2].op != "constant":
        return False
    condition, *chosen = value.operands
    return condition.attributes in _GREATER and condition.operands == tuple(chosen)


def _bounds(value: Expression) -> tuple[float, float]:
    """What a value is kept between by a maximum and a minimum around each other."""
    found = {"arith.maximumf": -math.inf, "arith.minimumf": math.inf}
    for _ in found:
        op = value.op
        if _is_above(value):
            value, found["arith.maximumf"] = value.operands[1], value.operands[2].payload
            continue
        if op not in found or math.isfinite(found[op]):
            break
        value, found[op] = _and_constant(value, op, found[op])
    least, most = found.values()
    return least, most
