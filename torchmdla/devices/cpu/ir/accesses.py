"""Buffers and the accesses of a nest to them: indices that are affine in the nest's loops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Literal

from typing_extensions import TypeVar

from torchmdla.compiler.sizes import AnySize, is_positive
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type

# The type of sizes and strides.
Number = TypeVar("Number", bound=AnySize, covariant=True, default=int)

Kind = Literal["input", "parameter", "result", "temporary", "global", "packed", "local", "view"]


@dataclass(eq=False)
class Buffer:
    """Memory that no other buffer shares.

    Attributes:
        kind: the role of the memory.
        element: the MLIR type of the elements.
        sizes: the size of each dimension.
        position: the position among the caller's arguments or results, if the caller provides the memory.
        symbol: the name of a global.
        fixed: whether code other than nests depends on the element order. Such a buffer has one dimension, its memory.
        bits: the number of bits that were sufficient for a parameter's integers; 0 if all bits are needed.
        padding: the number of unused elements after each index of the first dimension.
    """

    kind: Kind
    element: str
    sizes: tuple[AnySize, ...]
    position: int = -1
    symbol: str = ""
    fixed: bool = False
    bits: int = 0
    padding: int = 0

    @property
    def count(self) -> AnySize:
        """Return the number of elements, with the padding."""
        return self.sizes[0] * self.strides[0] if self.padding else math.prod(self.sizes)

    @property
    def bytes(self) -> AnySize:
        return self.count * ELEMENT_BYTES[storage_type(self.element)]

    @property
    def is_free(self) -> bool:
        """Return whether passes may replace the buffer and change its layout."""
        return self.kind == "temporary" and not self.fixed

    def join_dimensions(self, dimension: int) -> AnySize:
        """Join a dimension with the next one, and return the size of that."""
        outer, inner = self.sizes[dimension : dimension + 2]
        self.sizes = (*self.sizes[:dimension], outer * inner, *self.sizes[dimension + 2 :])
        return inner

    @property
    def strides(self) -> tuple[AnySize, ...]:
        """Return the stride of each dimension, in elements."""
        strides = [math.prod(self.sizes[d + 1 :]) for d in range(len(self.sizes))]
        return (strides[0] + self.padding, *strides[1:]) if strides else ()


@dataclass(eq=False)
class Scalar:
    """Scalar value of the entry function.

    ``argument`` is the position among the arguments, if the caller passes the value.
    """

    type: str
    argument: int = -1


@dataclass(frozen=True)
class AffineExpr:
    """Affine index: ``constant`` plus the sum of each loop's index times its factor."""

    factors: tuple[AnySize, ...]
    constant: AnySize = 0

    @classmethod
    def of_loop(cls, loop: int, loops: int, constant: AnySize = 0) -> AffineExpr:
        """Return the index of loop ``loop``, of ``loops`` loops, plus a constant."""
        return cls(tuple(int(loop == k) for k in range(loops)), constant)

    @cached_property
    def loops(self) -> tuple[int, ...]:
        """Return the loops that the index varies with."""
        return tuple(loop for loop, factor in enumerate(self.factors) if factor)

    def is_loop(self) -> bool:
        """Return whether the index is the index of one loop and nothing else."""
        return not self.constant and len(self.loops) == 1 and self.factors[self.loops[0]] == 1

    def at_iteration(self, loop: int, number: int) -> AffineExpr:
        """Return the index at iteration ``number`` of a loop."""
        factors = (*self.factors[:loop], 0, *self.factors[loop + 1 :])
        return AffineExpr(factors, self.constant + number * self.factors[loop])

    def plus_loop(self, loop: int) -> AffineExpr:
        """Return the index plus the index of a loop."""
        return replace(self, factors=(*self.factors[:loop], self.factors[loop] + 1, *self.factors[loop + 1 :]))

    def substitute(self, indices: Mapping[int, AffineExpr], loops: int) -> AffineExpr:
        """Return the index as a function of ``loops`` other loops.

        ``indices`` maps each old loop to its index in terms of the new loops. Other old loops are at iteration 0.
        """
        parts = [(factor, indices[loop]) for loop, factor in enumerate(self.factors) if factor and loop in indices]
        factors = tuple(sum(factor * part.factors[k] for factor, part in parts) for k in range(loops))
        return AffineExpr(factors, self.constant + sum(factor * part.constant for factor, part in parts))

    def range(self, sizes: Sequence[AnySize]) -> tuple[AnySize, AnySize]:
        """Return the minimum and the maximum over loops of ``sizes``.

        A factor of unknown sign contributes to both.
        """
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
    """Element of ``buffer`` that each iteration touches: one index for each dimension of the buffer.

    ``word`` is the type of one load of several neighbouring elements (two bfloat16 as one ``i32``); empty otherwise.
    """

    buffer: Buffer
    indices: tuple[AffineExpr, ...]
    word: str = ""
    # The cached result of `linearise`, and the buffer sizes that it was computed for.
    _linear: tuple[tuple[AnySize, ...], AffineExpr] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of_loops(cls, buffer: Buffer, loops: Iterable[int], count: int) -> Access:
        """Return the access at the indices of ``loops``, one for each dimension, in a nest of ``count`` loops."""
        return cls(buffer, tuple(AffineExpr.of_loop(loop, count) for loop in loops))

    @classmethod
    def identity(cls, buffer: Buffer) -> Access:
        """Return the access of a nest that has one loop for each dimension, in order."""
        return cls.of_loops(buffer, range(len(buffer.sizes)), len(buffer.sizes))

    @property
    def element(self) -> str:
        """Return the MLIR type of the touched value."""
        return self.word or self.buffer.element

    @property
    def width(self) -> int:
        """Return the number of buffer elements that one iteration touches."""
        return ELEMENT_BYTES[storage_type(self.element)] // ELEMENT_BYTES[storage_type(self.buffer.element)]

    @cached_property
    def loops(self) -> frozenset[int]:
        """Return the loops that the access varies with."""
        return frozenset(loop for index in self.indices for loop in index.loops)

    def replace_buffer(self, old: Buffer, new: Buffer) -> Access:
        """Return the access with ``new`` as its buffer if its buffer is ``old``."""
        return replace(self, buffer=new) if self.buffer is old else self

    def join_dimensions(self, buffer: Buffer, dimension: int, size: AnySize) -> Access:
        """Return the access after a dimension of ``buffer`` was joined with the next one, which had ``size`` elements.

        An access to another buffer stays the same.
        """
        if self.buffer is not buffer:
            return self
        first, second = self.indices[dimension : dimension + 2]
        factors = tuple(a * size + b for a, b in zip(first.factors, second.factors, strict=True))
        joined = AffineExpr(factors, first.constant * size + second.constant)
        return replace(self, indices=(*self.indices[:dimension], joined, *self.indices[dimension + 2 :]))

    def at_iteration(self, loop: int, number: int) -> Access:
        """Return the access at iteration ``number`` of a loop."""
        return replace(self, indices=tuple(index.at_iteration(loop, number) for index in self.indices))

    def substitute(self, indices: Mapping[int, AffineExpr], loops: int) -> Access:
        """Return the same access in a nest of ``loops`` loops.

        ``indices`` maps each old loop to its index in terms of the new loops. Old loops that are missing have one
        iteration.
        """
        return replace(self, indices=tuple(index.substitute(indices, loops) for index in self.indices))

    def restrict(self, loops: Sequence[int]) -> Access:
        """Return the access in a step that has only ``loops``, in this order."""
        indices = [replace(index, factors=tuple(index.factors[loop] for loop in loops)) for index in self.indices]
        return replace(self, indices=tuple(indices))

    def linearise(self, loops: int) -> AffineExpr:
        """Return the element's offset in the buffer's memory, in a nest of ``loops`` loops.

        If the access has one index, that index is already the offset, whatever the number of dimensions.
        """
        if len(self.indices) < 2:
            return self.indices[0] if self.indices else AffineExpr((0,) * loops)
        known = self._linear
        if known is None or known[0] is not self.buffer.sizes:
            pairs = list(zip(self.indices, self.buffer.strides, strict=True))
            factors = tuple(sum(index.factors[loop] * stride for index, stride in pairs) for loop in range(loops))
            known = self.buffer.sizes, AffineExpr(factors, sum(index.constant * stride for index, stride in pairs))
            object.__setattr__(self, "_linear", known)
        return known[1]


@dataclass(frozen=True)
class Table(Generic[Number]):
    """Description of a buffer that a nest reads at computed indices.

    Attributes:
        element: the type of the elements in registers.
        sizes: the size of each dimension.
        strides: the stride of each dimension, in elements.
    """

    element: str
    sizes: tuple[Number, ...]
    strides: tuple[Number, ...]


@dataclass(frozen=True)
class TableAccess:
    """Buffer that a nest reads at computed indices, as a table that begins at element ``offset``."""

    buffer: Buffer
    table: Table[AnySize]
    offset: AnySize
