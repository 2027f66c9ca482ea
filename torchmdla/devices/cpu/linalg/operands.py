"""How a nest finds the elements of its operands: indices of a tensor's dimensions become indices of a buffer's.

Where an operand sees the two dimensions of a buffer as one, the loop along that becomes two::

    for d0 in 20: … %1[d0] …        →    for d0 in 4: for d1 in 5: … b[d0, d1] …
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torchmdla.devices.cpu.accesses import Access, AffineExpr
from torchmdla.devices.cpu.element_types import stored
from torchmdla.devices.cpu.linalg.lookups import Index
from torchmdla.devices.cpu.linalg.views import View


class NoStridesError(Exception):
    """An operand, by its ``number``, has to be copied: what its nest needs of it has no strides in its buffer."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class Placed:
    """Where the operands of a nest are.

    Attributes:
        accesses: one for each operand.
        parts: the sizes of the loops that each loop has become.
    """

    accesses: list[Access]
    parts: list[tuple[int, ...]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the loops that there are now."""
        return tuple(size for loop in self.parts for size in loop)

    def first(self, loop: int) -> int:
        """The first of the loops that a loop has become."""
        return sum(map(len, self.parts[:loop]))


def placed(
    operands: Sequence[tuple[View, Sequence[Index]]], sizes: Sequence[int], indexed: Collection[int] = ()
) -> Placed:
    """Where operands are that loops of ``sizes`` touch at these indices of views. ``indexed``: loops whose index the
    body uses, which stay one loop each.

    Raises:
        NoStridesError: an operand is not to be had without a copy.
        NotANestError: nor are elements of its type.
    """
    own = [_Operand(number, view, indices, sizes) for number, (view, indices) in enumerate(operands)]
    parts = [_parts(own, loop, size, loop in indexed) for loop, size in enumerate(sizes)]
    return Placed([operand.access(parts) for operand in own], parts)


class _Operand:
    """An operand and its indices: for each dimension of the view the factors of the loops and a constant."""

    def __init__(self, number: int, view: View, indices: Sequence[Index], sizes: Sequence[int]) -> None:
        stored(view.buffer.element)
        self._number = number
        self.view = view
        self._indices = indices
        if not all(self._has_digits(d, sizes) for d in range(len(indices))):
            self.use_memory()

    def use_memory(self) -> None:
        """Gives up the view's dimensions: the buffer is its memory."""
        view = self.view.strided()
        if view is None:
            raise NoStridesError(self._number)
        self.view = view
        self.view.buffer.fixed = True

    def _has_digits(self, dim: int, sizes: Sequence[int]) -> bool:
        """Whether the index of a dimension has digits to give to each of its atoms."""
        atoms = self.view.dims[dim]
        if len(atoms) < 2:
            return True
        factors, constant = self._indices[dim]
        (loop, factor), *others = factors.items() or [(-1, 0)]
        whole = not others and factor == 1 and not constant and sizes[loop] == math.prod(size for size, _ in atoms)
        return whole or not (factors or constant)

    def loop_of(self, dim: int) -> int:
        """The loop whose digits a dimension of several needs; -1 if there is none."""
        factors, _ = self._indices[dim]
        return next(iter(factors), -1) if len(self.view.dims[dim]) > 1 else -1

    def access(self, parts: Sequence[Sequence[int]]) -> Access:
        """The access over loops split into ``parts``."""
        total = sum(map(len, parts))
        factors = [[0] * total for _ in self.view.constants]
        constants = list(self.view.constants)
        for dim, atoms in enumerate(self.view.dims):
            for (_, unit), (own, constant) in zip(atoms, self._atom_indices(dim, parts), strict=True):
                for base, scale in enumerate(unit):
                    constants[base] += scale * constant
                    for loop, factor in own.items():
                        factors[base][loop] += scale * factor
        indices = tuple(AffineExpr(tuple(f), c) for f, c in zip(factors, constants, strict=True))
        return Access(self.view.buffer, indices)

    def _atom_indices(self, dim: int, parts: Sequence[Sequence[int]]) -> list[tuple[dict[int, int], int]]:
        """For each atom of a dimension, the factors of the split loops and a constant."""
        factors, constant = self._indices[dim]
        first = [sum(map(len, parts[:loop])) for loop in range(len(parts))]
        atoms = self.view.dims[dim]
        if len(atoms) < 2:
            own: dict[int, int] = {}
            for loop, factor in factors.items():
                for k in range(len(parts[loop])):
                    own[first[loop] + k] = factor * math.prod(parts[loop][k + 1 :])
            return [(own, constant)] * len(atoms)
        if not factors:
            return [({}, 0)] * len(atoms)
        loop = self.loop_of(dim)
        digits: list[tuple[dict[int, int], int]] = []
        k = len(parts[loop])
        for size, _ in reversed(atoms):
            own, weight = {}, 1
            while weight < size:
                k -= 1
                own[first[loop] + k] = weight
                weight *= parts[loop][k]
            digits.insert(0, (own, 0))
        return digits


def _parts(operands: Sequence[_Operand], loop: int, size: int, indexed: bool) -> tuple[int, ...]:
    """The loops that replace ``loop``, so that each operand finds its digits. One that cannot is given up as memory, as
    is any if the body uses the loop's index."""
    parts: tuple[int, ...] = (size,)
    for operand in operands:
        for dim in range(len(operand.view.dims)):
            if operand.loop_of(dim) != loop:
                continue
            digits = tuple(length for length, _ in operand.view.dims[dim])
            finer = None if indexed else _refined(parts, digits)
            if finer is None:
                operand.use_memory()
                break
            parts = finer
    return parts


def _refined(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """The coarsest digits of which both lists are groups; None if there are none."""
    weights = {math.prod(sizes[k:]) for sizes in (first, second) for k in range(len(sizes))}
    ordered = sorted(weights | {1}, reverse=True)
    pairs = list(itertools.pairwise(ordered))
    if any(high % low for high, low in pairs):
        return None
    return tuple(high // low for high, low in pairs) or (1,)
