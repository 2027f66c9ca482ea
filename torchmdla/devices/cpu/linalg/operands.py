"""Accesses of a nest to its operands: indices of a tensor's dimensions become indices of a buffer's dimensions.

If an operand merges two dimensions of a buffer into one, the loop along that dimension becomes two loops::

    for d0 in 20: … %1[d0] …        →    for d0 in 4: for d1 in 5: … b[d0, d1] …
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr
from torchmdla.devices.cpu.ir.element_types import storage_type
from torchmdla.devices.cpu.ir.expressions import Expression, contents, numbered_value, substitute
from torchmdla.devices.cpu.linalg.bodies import LOOKUP, OPERAND
from torchmdla.devices.cpu.linalg.views import View


class NoStridesError(Exception):
    """Error for operand ``number``, which must be copied: the elements that its nest uses do not have strides."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class OperandAccesses:
    """Accesses to the operands of a nest.

    Attributes:
        accesses: one access for each operand.
        parts: for each original loop, the sizes of the loops that replace it.
    """

    accesses: list[Access]
    parts: list[tuple[int, ...]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the new loops."""
        return tuple(size for loop in self.parts for size in loop)

    def first(self, loop: int) -> int:
        """Return the number of the first loop that replaces an original loop."""
        return sum(map(len, self.parts[:loop]))


def access_operands(
    operands: Sequence[tuple[View, Sequence[Index]]], sizes: Sequence[int], indexed: Collection[int] = ()
) -> OperandAccesses:
    """Return the accesses of loops of ``sizes`` to operands, which are views with indices.

    ``indexed`` are the loops whose index the body uses. Each of them remains one loop.

    Raises:
        NoStridesError: an operand must be copied.
        NotANestError: the element type of an operand is not supported.
    """
    entries = [_Operand(number, view, indices, sizes) for number, (view, indices) in enumerate(operands)]
    parts = [_parts(entries, loop, size, loop in indexed) for loop, size in enumerate(sizes)]
    return OperandAccesses([operand.access(parts) for operand in entries], parts)


class _Operand:
    """Operand and its indices: for each dimension of the view, the factors of the loops and a constant."""

    def __init__(self, number: int, view: View, indices: Sequence[Index], sizes: Sequence[int]) -> None:
        storage_type(view.buffer.element)
        self._number = number
        self.view = view
        self._indices = indices
        if not all(self._has_digits(d, sizes) for d in range(len(indices))):
            self.use_memory()

    def use_memory(self) -> None:
        """Replace the view by a view of the buffer's memory, which has one dimension."""
        view = self.view.flatten()
        if view is None:
            raise NoStridesError(self._number)
        self.view = view
        self.view.buffer.fixed = True

    def _has_digits(self, dim: int, sizes: Sequence[int]) -> bool:
        """Return whether the index of a dimension can be split into one digit for each of its atoms."""
        atoms = self.view.dims[dim]
        if len(atoms) < 2:
            return True
        factors, constant = self._indices[dim]
        (loop, factor), *others = factors.items() or [(-1, 0)]
        whole = not others and factor == 1 and not constant and sizes[loop] == math.prod(size for size, _ in atoms)
        return whole or not (factors or constant)

    def loop_of(self, dim: int) -> int:
        """Return the loop whose digits a dimension of several atoms needs, or -1."""
        factors, _ = self._indices[dim]
        return next(iter(factors), -1) if len(self.view.dims[dim]) > 1 else -1

    def access(self, parts: Sequence[Sequence[int]]) -> Access:
        """Return the access over loops that are split into ``parts``."""
        total = sum(map(len, parts))
        factors = [[0] * total for _ in self.view.constants]
        constants = list(self.view.constants)
        for dim, atoms in enumerate(self.view.dims):
            for (_, unit), (coefficients, constant) in zip(atoms, self._atom_indices(dim, parts), strict=True):
                for base, scale in enumerate(unit):
                    constants[base] += scale * constant
                    for loop, factor in coefficients.items():
                        factors[base][loop] += scale * factor
        indices = tuple(AffineExpr(tuple(f), c) for f, c in zip(factors, constants, strict=True))
        return Access(self.view.buffer, indices)

    def _atom_indices(self, dim: int, parts: Sequence[Sequence[int]]) -> list[tuple[dict[int, int], int]]:
        """Return the factors of the split loops and a constant, for each atom of a dimension."""
        factors, constant = self._indices[dim]
        first = [sum(map(len, parts[:loop])) for loop in range(len(parts))]
        atoms = self.view.dims[dim]
        if len(atoms) < 2:
            coefficients: dict[int, int] = {}
            for loop, factor in factors.items():
                for k in range(len(parts[loop])):
                    coefficients[first[loop] + k] = factor * math.prod(parts[loop][k + 1 :])
            return [(coefficients, constant)] * len(atoms)
        if not factors:
            return [({}, 0)] * len(atoms)
        loop = self.loop_of(dim)
        digits: list[tuple[dict[int, int], int]] = []
        k = len(parts[loop])
        for size, _ in reversed(atoms):
            coefficients, weight = {}, 1
            while weight < size:
                k -= 1
                coefficients[first[loop] + k] = weight
                weight *= parts[loop][k]
            digits.insert(0, (coefficients, 0))
        return digits


def _parts(operands: Sequence[_Operand], loop: int, size: int, indexed: bool) -> tuple[int, ...]:
    """Return the sizes of the loops that replace ``loop``, so that each operand has a loop for each of its digits.

    If an operand does not permit this, or if the body uses the loop's index, the operand uses its memory instead.
    """
    parts: tuple[int, ...] = (size,)
    for operand in operands:
        for dim in range(len(operand.view.dims)):
            if operand.loop_of(dim) != loop:
                continue
            digits = tuple(length for length, _ in operand.view.dims[dim])
            finer = None if indexed else _common_refinement(parts, digits)
            if finer is None:
                operand.use_memory()
                break
            parts = finer
    return parts


def _common_refinement(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """Return the coarsest digits that can be grouped to each of both lists, or None."""
    weights = {math.prod(sizes[k:]) for sizes in (first, second) for k in range(len(sizes))}
    ordered = sorted(weights | {1}, reverse=True)
    pairs = list(itertools.pairwise(ordered))
    if any(high % low for high, low in pairs):
        return None
    return tuple(high // low for high, low in pairs) or (1,)


# Table lookups at linear indices. Such a lookup (of a flip or a shift) becomes an additional operand of the body.


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


def add_indices(first: Index, second: Index) -> Index:
    """Return the sum of two indices."""
    loops = {**first[0], **second[0]}
    return {loop: first[0].get(loop, 0) + second[0].get(loop, 0) for loop in loops}, first[1] + second[1]


def scale_index(index: Index, factor: int) -> Index:
    """Return an index times a number."""
    return {loop: f * factor for loop, f in index[0].items()}, index[1] * factor


def _product(expression: Expression, operands: Sequence[Index]) -> Index | None:
    number, index = sorted(operands, key=lambda index: bool(index[0]))
    return None if number[0] else scale_index(index, number[1])


_LINEAR: Mapping[str, Callable[[Expression, Sequence[Index]], Index | None]] = {
    "constant": lambda expression, operands: ({}, expression.payload),
    "index": lambda expression, operands: ({expression.payload: 1}, 0),
    "arith.index_cast": lambda expression, operands: operands[0],
    "arith.addi": lambda expression, operands: add_indices(*operands),
    "arith.subi": lambda expression, operands: add_indices(operands[0], scale_index(operands[1], -1)),
    "arith.muli": _product,
}


def _is_inside(place: Sequence[Index], sizes: Sequence[int], shape: Sequence[int]) -> bool:
    for (factors, constant), length in zip(place, shape, strict=True):
        ends = [factor * (sizes[loop] - 1) for loop, factor in factors.items()]
        if constant + sum(min(0, end) for end in ends) < 0 or constant + sum(max(0, end) for end in ends) >= length:
            return False
    return True
