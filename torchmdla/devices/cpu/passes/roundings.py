"""Removal of redundant roundings to 16-bit floats, which are computed in 32 bits.

PyTorch rounds the result of each operator. An operator that only selects among rounded values does not need its own
rounding::

    v0 : bf16 = arith.truncf i0                 v0 : bf16 = arith.truncf i0
    v1 : f32 = arith.extf v0                    v1 : f32 = arith.extf v0
    v2 : f32 = arith.maximumf v1, 0.0     →     v2 : f32 = arith.maximumf v1, 0.0
    v3 : bf16 = arith.truncf v2                 v3 : f32 = math.exp v2
    v4 : f32 = arith.extf v3
    v5 : f32 = math.exp v4
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.expressions import Expression, constant, operation, rewrite
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, Users

WIDE = "f32"

# Ops whose value is, up to its sign, one of their operands from this position on.
_SELECTING: Mapping[str, int] = {
    "arith.select": 1,
    "arith.maximumf": 0,
    "arith.minimumf": 0,
    "arith.maxnumf": 0,
    "arith.minnumf": 0,
    "arith.negf": 0,
    "math.absf": 0,
}


def drop_roundings(steps: LoopProgram) -> None:
    """Remove roundings of values that are already rounded, in place."""
    for step in steps.nests():
        step.map_expressions(lambda roots: rewrite(roots, _drop_rounding))


def _drop_rounding(expression: Expression) -> Expression | None:
    if expression.op != "arith.extf" or expression.operands[0].op != "arith.truncf":
        return None
    (rounded,) = expression.operands
    (value,) = rounded.operands
    return value if value.type == expression.type and is_half(value, rounded.type) else None


def is_half(value: Expression, kind: str, is_known: Callable[[Expression], bool] = lambda expression: False) -> bool:
    """Return whether a float32 is a widened float of 16 bits, of type ``kind``.

    ``is_known`` returns whether another expression, such as a load, is one.
    """
    if value.op in _SELECTING:
        return all(is_half(operand, kind, is_known) for operand in value.operands[_SELECTING[value.op] :])
    if value.op == "constant":
        return value.type == WIDE and _is_representable(value.payload, kind)
    widens = value.op == "arith.extf" and value.type == WIDE and value.operands[0].type == kind
    return widens or is_known(value)


def _is_representable(number: float, kind: str) -> bool:
    if kind == "bf16":
        return not struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF
    try:
        return number != number or struct.unpack("<e", struct.pack("<e", number))[0] == number
    except OverflowError:
        return False


def truncate(value: Expression, kind: str) -> Expression:
    """Return a float32 as a float of 16 bits."""
    if value.op == "arith.extf" and value.operands[0].type == kind:
        return value.operands[0]
    return constant(value.payload, kind) if value.op == "constant" else operation("arith.truncf", [value], kind)


class HalfBuffers:
    """Set of the temporaries of float32 all of whose values are floats of 16 bits, of type ``kind``."""

    def __init__(self, steps: LoopProgram, kind: str) -> None:
        self._kind = kind
        self._users = Users(steps.steps)
        self._known: dict[Buffer, bool] = {}

    def users(self, buffer: Buffer) -> list[Step]:
        return self._users.of(buffer)

    def __contains__(self, buffer: Buffer) -> bool:
        if buffer not in self._known:
            self._known[buffer] = False  # The result for a buffer that is computed from itself.
            self._known[buffer] = self._holds_halves(buffer)
        return self._known[buffer]

    def _holds_halves(self, buffer: Buffer) -> bool:
        if buffer.kind != "temporary" or buffer.element != WIDE or buffer.fixed:
            return False
        return all(isinstance(step, LoopNest) for step in self.users(buffer)) and all(
            is_half(value, self._kind, self._is_read)
            for step in self.users(buffer)
            if buffer in step.writes
            for value in _written_values(step, buffer)
        )

    def _is_read(self, value: Expression) -> bool:
        return value.op == "load" and value.payload.buffer in self


def _written_values(step: Step, buffer: Buffer) -> list[Expression]:
    """Return the values that a step writes to a buffer."""
    assert isinstance(step, LoopNest)
    values = step.epilogue.values if step.epilogue else step.values
    return [value for access, value in zip(step.written_accesses, values, strict=True) if access.buffer is buffer]
