"""Expressions as a kernel's instructions: in an order, with a number each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchmdla.devices.cpu.accesses import TableAccess
from torchmdla.devices.cpu.expressions import Contents, Expression, contents
from torchmdla.devices.cpu.kernel_spec import Instruction


@dataclass(frozen=True)
class Linearised:
    """Instructions, and the numbers of the values that the roots are."""

    body: tuple[Instruction, ...]
    yields: tuple[int, ...]


@lru_cache(maxsize=8192)
def linearised(values: tuple[Expression, ...], checks: tuple[Expression, ...], outputs: int) -> Linearised:
    """The body of a nest of ``outputs``. Its values are numbered as
    :class:`~torchmdla.devices.cpu.kernel_spec.Instruction` says: inputs, outputs, scalars, then the results of
    instructions."""
    found = contents((*values, *checks))
    leaves = [*_each("load", found.loads), *_each("accumulator", range(outputs)), *_each("scalar", found.scalars)]
    return _numbered(found, values, checks, leaves)


@lru_cache(maxsize=8192)
def linearised_epilogue(values: tuple[Expression, ...], results: int) -> Linearised:
    """An epilogue of a nest of ``results``. Its values are numbered as those of
    :class:`~torchmdla.devices.cpu.kernel_spec.KernelEpilogue`: what was reduced, inputs, scalars, then the results of
    instructions."""
    found = contents(values)
    leaves = [*_each("reduced", range(results)), *_each("load", found.loads), *_each("scalar", found.scalars)]
    return _numbered(found, values, (), leaves)


# A leaf, by its op and its payload.
_Leaf = tuple[str, object]


def _each(op: str, payloads: Iterable[object]) -> list[_Leaf]:
    return [(op, payload) for payload in payloads]


def _numbered(
    found: Contents,
    values: Sequence[Expression],
    checks: Sequence[Expression],
    leaves: Sequence[_Leaf],
) -> Linearised:
    """``leaves`` are the values with the first numbers."""
    given = {leaf: number for number, leaf in enumerate(leaves)}
    numbers: dict[Expression, int] = {}
    body: list[Instruction] = []
    for expression in found.expressions:
        number = given.get((expression.op, expression.payload))
        if number is None:
            number = len(leaves) + len(body)
            operands = tuple(numbers[operand] for operand in expression.operands)
            body.append(instruction_of(expression, operands, found.tables))
        numbers[expression] = number
    body += [Instruction("assert", (numbers[check],), "i1") for check in checks]
    return Linearised(tuple(body), tuple(numbers[value] for value in values))


def instruction_of(
    expression: Expression, operands: tuple[int, ...] = (), tables: Sequence[TableAccess] = ()
) -> Instruction:
    """The instruction that computes an expression of values of these numbers."""
    kind, payload = expression.type, expression.payload
    if expression.op == "constant":
        typed = "" if kind == "i1" else f" : {kind}"
        return Instruction("arith.constant", (), kind, f"{{value = {constant_text(payload, kind)}{typed}}}")
    if expression.op == "size":
        return Instruction("size", (), kind, size=payload)
    if expression.op == "gather":
        return Instruction("load", operands, kind, payload=tables.index(payload))
    if expression.op == "index":
        return Instruction("index", (), kind, payload=payload)
    return Instruction(expression.op, operands, kind, expression.attributes)


# How MLIR writes what is not finite: by its bits.
NOT_FINITE: Mapping[str, Mapping[str, str]] = {
    "f16": {"inf": "0x7C00", "-inf": "0xFC00", "nan": "0x7E00"},
    "bf16": {"inf": "0x7F80", "-inf": "0xFF80", "nan": "0x7FC0"},
    "f32": {"inf": "0x7F800000", "-inf": "0xFF800000", "nan": "0x7FC00000"},
    "f64": {"inf": "0x7FF0000000000000", "-inf": "0xFFF0000000000000", "nan": "0x7FF8000000000000"},
}


def constant_text(number: float | int, type: str) -> str:
    """A number as MLIR writes it; of a floating type exactly."""
    if type == "i1":
        return "true" if number else "false"
    if type.startswith("i"):
        return str(int(number))
    if not math.isfinite(number):
        return NOT_FINITE[type][str(float(number))]
    text = repr(float(number))
    mantissa, exponent, power = text.partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power
