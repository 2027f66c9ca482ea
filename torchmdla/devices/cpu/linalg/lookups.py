"""Table lookups at linear indices. Such a lookup (of a flip or a shift) becomes an additional operand of the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchmdla.devices.cpu.expressions import Expression, contents, numbered_value, substitute
from torchmdla.devices.cpu.linalg.bodies import LOOKUP, OPERAND

# An index: the factor of each loop, and a constant.
Index = tuple[dict[int, int], int]


def replace_lookups(
    roots: Sequence[Expression], operands: int, sizes: Sequence[int], shapes: Sequence[Sequence[int]]
) -> tuple[tuple[Expression, ...], list[tuple[int, tuple[Index, ...]]]]:
    """Replace lookups by operands if their indices are linear in the loops' indices and never out of bounds.

    Args:
        roots: the expressions that contain lookups.
        operands: the number of operands that exist already.
        sizes: the sizes of the loops.
        shapes: the shapes of the tables.

    Returns:
        The new roots, and the table and the indices of each additional operand.
    """
    known: dict[Expression, Index] = {}
    replaced: dict[Expression, Expression] = {}
    lookups: list[tuple[int, tuple[Index, ...]]] = []
    for expression in contents(tuple(roots)).expressions:
        if (linear := _linear(expression, known)) is not None:
            known[expression] = linear
        elif expression.op == LOOKUP and all(operand in known for operand in expression.operands):
            table, place = expression.payload, tuple(known[operand] for operand in expression.operands)
            if _is_inside(place, sizes, shapes[table]):
                replaced[expression] = numbered_value(OPERAND, expression.type, operands + len(lookups))
                lookups.append((table, place))
    return substitute(roots, replaced), lookups


def _linear(expression: Expression, known: Mapping[Expression, Index]) -> Index | None:
    """Return the linear index that an expression computes from ``known`` indices, or None."""
    write = _LINEAR.get(expression.op)
    if write is None or expression.type != "i64" or not all(operand in known for operand in expression.operands):
        return None
    return write(expression, [known[operand] for operand in expression.operands])


def _sum(first: Index, second: Index, sign: int) -> Index:
    loops = {**first[0], **second[0]}
    factors = {loop: first[0].get(loop, 0) + sign * second[0].get(loop, 0) for loop in loops}
    return factors, first[1] + sign * second[1]


def _product(expression: Expression, operands: Sequence[Index]) -> Index | None:
    numbers = sorted(operands, key=lambda index: bool(index[0]))
    if numbers[0][0]:
        return None
    factor, (factors, constant) = numbers[0][1], numbers[1]
    return {loop: f * factor for loop, f in factors.items()}, constant * factor


_LINEAR: Mapping[str, Callable[[Expression, Sequence[Index]], Index | None]] = {
    "constant": lambda expression, operands: ({}, expression.payload),
    "index": lambda expression, operands: ({expression.payload: 1}, 0),
    "arith.index_cast": lambda expression, operands: operands[0],
    "arith.addi": lambda expression, operands: _sum(operands[0], operands[1], 1),
    "arith.subi": lambda expression, operands: _sum(operands[0], operands[1], -1),
    "arith.muli": _product,
}


def _is_inside(place: Sequence[Index], sizes: Sequence[int], shape: Sequence[int]) -> bool:
    for (factors, constant), length in zip(place, shape, strict=True):
        ends = [factor * (sizes[loop] - 1) for loop, factor in factors.items()]
        if constant + sum(min(0, end) for end in ends) < 0 or constant + sum(max(0, end) for end in ends) >= length:
            return False
    return True
