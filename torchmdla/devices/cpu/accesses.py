"""Buffers, and where in them a nest reads and writes: indices that are affine in its loops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Literal

from typing_extensions import TypeVar

from torchmdla.compiler.sizes import AnySize, is_positive
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES, stored

# What sizes and strides are.
Number = TypeVar("Number", bound=AnySize, covariant=True, default=int)

Kind = Literal["input", "parameter", "result", "temporary", "global", "packed", "local", "view"]


@dataclass(eq=False)
class Buffer:
    """Memory of its own. ``element``: MLIR's type of the elements. ``position``: the place among arguments and results
    of what the caller gives. ``symbol``: the name of a global. ``fixed``: something else than nests relies on where
    its elements lie; it has one dimension, its memory. ``bits``: how many of its integers' bits were enough for what a
    parameter held; 0 if all are needed."""

    kind: Kind
    element: str
    sizes: tuple[AnySize, ...]
    position: int = -1
    symbol: str = ""
    fixed: bool = False
    bits: int = 0

    @property
    def count(self) -> AnySize:
        """How many elements it has."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> AnySize:
        return self.count * ELEMENT_BYTES[stored(self.element)]

    @property
    def strides(self) -> tuple[AnySize, ...]:
        """Elements from one index of each dimension to the next."""
        return tuple(math.prod(self.sizes[d + 1 :]) for d in range(len(self.sizes)))


@dataclass(eq=False)
class Scalar:
    """A value of the entry. ``argument``: the place among the arguments of one that the caller gives."""

    type: str
    argument: int = -1


@dataclass(frozen=True)
class AffineExpr:
    """An index: ``constant`` plus each loop's index times its factor."""

    factors: tuple[AnySize, ...]
    constant: AnySize = 0

    @classmethod
    def of_loop(cls, loop: int, loops: int, constant: AnySize = 0) -> AffineExpr:
        """The index of one of ``loops`` loops, and a constant."""
        return cls(tuple(int(loop == k) for k in range(loops)), constant)

    @cached_property
    def loops(self) -> tuple[int, ...]:
        """The loops that it varies with."""
        return tuple(loop for loop, factor in enumerate(self.factors) if factor)

    def is_loop(self) -> bool:
        """Whether it is the index of one loop, and nothing else."""
        return not self.constant and len(self.loops) == 1 and self.factors[self.loops[0]] == 1

    def at(self, loop: int, number: int) -> AffineExpr:
        """The same at one iteration of a loop."""
        factors = (*self.factors[:loop], 0, *self.factors[loop + 1 :])
        return AffineExpr(factors, self.constant + number * self.factors[loop])

    def along(self, indices: Mapping[int, AffineExpr], loops: int) -> AffineExpr:
        """The same over ``loops`` others: ``indices`` say what each of its own is."""
        parts = [(factor, indices[loop]) for loop, factor in enumerate(self.factors) if factor and loop in indices]
        factors = tuple(sum(factor * part.factors[k] for factor, part in parts) for k in range(loops))
        return AffineExpr(factors, self.constant + sum(factor * part.constant for factor, part in parts))

    def range(self, sizes: Sequence[AnySize]) -> tuple[AnySize, AnySize]:
        """The least and the largest value over loops of ``sizes``; a factor of unknown sign counts in both."""
        least = most = self.constant
        for factor, size in zip(self.factors, sizes, strict=True):
            reach = factor * (size - 1)
            if not is_positive(factor + 1):
                least = least + reach
            if not is_positive(1 - factor):
                most = most + reach
        return least, most


@dataclass(frozen=True)
class Access:
    """Which element of ``buffer`` each iteration touches: an index for each of its dimensions. ``word``: the type as
    which it is read together with those behind it in memory, if it is (two bfloat16 as one ``i32``)."""

    buffer: Buffer
    indices: tuple[AffineExpr, ...]
    word: str = ""
    # What `flat` has found, for these sizes of the buffer.
    _flat: tuple[tuple[AnySize, ...], AffineExpr] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of_loops(cls, buffer: Buffer, loops: Iterable[int], count: int) -> Access:
        """At the indices of ``loops``, one for each dimension, among the ``count`` loops of a nest."""
        return cls(buffer, tuple(AffineExpr.of_loop(loop, count) for loop in loops))

    @classmethod
    def whole(cls, buffer: Buffer) -> Access:
        """By a nest that has a loop for each dimension, in order."""
        return cls.of_loops(buffer, range(len(buffer.sizes)), len(buffer.sizes))

    @property
    def element(self) -> str:
        """MLIR's type of what is touched."""
        return self.word or self.buffer.element

    @property
    def width(self) -> int:
        """How many elements of the buffer are touched at once."""
        return ELEMENT_BYTES[stored(self.element)] // ELEMENT_BYTES[stored(self.buffer.element)]

    @cached_property
    def loops(self) -> frozenset[int]:
        """The loops that it varies with."""
        return frozenset(loop for index in self.indices for loop in index.loops)

    def instead(self, old: Buffer, new: Buffer) -> Access:
        """The same access to ``new`` if it is one to ``old``."""
        return replace(self, buffer=new) if self.buffer is old else self

    def at(self, loop: int, number: int) -> Access:
        """The same access at one iteration of a loop."""
        return replace(self, indices=tuple(index.at(loop, number) for index in self.indices))

    def along(self, indices: Mapping[int, AffineExpr], loops: int) -> Access:
        """The same access by a nest of so many loops, of which ``indices`` say where each of this one's loops is. Those
        that they leave out have one iteration."""
        return replace(self, indices=tuple(index.along(indices, loops) for index in self.indices))

    def over(self, loops: Sequence[int]) -> Access:
        """The same access by a step with these loops alone, in this order."""
        indices = [replace(index, factors=tuple(index.factors[loop] for loop in loops)) for index in self.indices]
        return replace(self, indices=tuple(indices))

    def flat(self, loops: int) -> AffineExpr:
        """The element's place in the buffer's memory, by a nest of so many loops. The only index of a buffer of several
        dimensions is that place already."""
        if len(self.indices) < 2:
            return self.indices[0] if self.indices else AffineExpr((0,) * loops)
        known = self._flat
        if known is None or known[0] is not self.buffer.sizes:
            pairs = list(zip(self.indices, self.buffer.strides, strict=True))
            factors = tuple(sum(index.factors[loop] * stride for index, stride in pairs) for loop in range(loops))
            known = self.buffer.sizes, AffineExpr(factors, sum(index.constant * stride for index, stride in pairs))
            object.__setattr__(self, "_flat", known)
        return known[1]


@dataclass(frozen=True)
class Table(Generic[Number]):
    """A buffer that a nest reads at computed indices: the type of its elements in registers, its sizes and element
    strides."""

    element: str
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]


@dataclass(frozen=True)
class TableAccess:
    """A buffer that a nest reads at computed indices, as a table from element ``offset`` on."""

    buffer: Buffer
    table: Table[AnySize]
    offset: AnySize
