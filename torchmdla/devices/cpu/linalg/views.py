"""Views of buffers: the map from the indices of a tensor to the elements of a base buffer.

A tensor that is a reshape or a slice of another tensor is not a copy, but a view of the same buffer::

    %1 = tensor.collapse_shape %0 [[0, 1]] : tensor<4x5xf32> into tensor<20xf32>
    %2 = tensor.extract_slice %0[0, 2] [4, 1] [1, 1] : tensor<4x5xf32> to tensor<4xf32>

    %0: b[d0, d1]        dims ((4, (1, 0)),), ((5, (0, 1)),)
    %1: b[d0 / 5, d0 % 5]     ((4, (1, 0)), (5, (0, 1))),
    %2: b[d0, 2]              ((4, (1, 0)),),                  constants (0, 2)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_mlir import ir

from torchmdla.compiler.sizes import static
from torchmdla.devices.cpu.ir.accesses import Buffer
from torchmdla.errors import CompileError

# A part of a view's dimension that is linear in the base buffer: its size, and the factor of its index in each of the
# buffer's dimensions.
Atom = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class View:
    """View of a buffer as a tensor.

    Each dimension of the tensor is a list of atoms, outermost first, like the digits of a number. ``constants`` are
    added to the indices of the buffer's dimensions.
    """

    buffer: Buffer
    constants: tuple[int, ...]
    dims: tuple[tuple[Atom, ...], ...]

    @classmethod
    def whole(cls, buffer: Buffer) -> View:
        rank = len(buffer.sizes)
        units = [tuple(int(k == d) for k in range(rank)) for d in range(rank)]
        sizes = map(static, buffer.sizes)
        dims = tuple(((size, unit),) if size != 1 else () for size, unit in zip(sizes, units, strict=True))
        return cls(buffer, (0,) * rank, dims)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(size for size, _ in atoms) for atoms in self.dims)

    @property
    def is_linear(self) -> bool:
        """Return whether the indices of the buffer are linear in the index of each dimension."""
        return all(len(atoms) < 2 for atoms in self.dims)

    @property
    def joined_dimension(self) -> int | None:
        """Return the first dimension of the buffer that a dimension of the view joins with the next one, or None."""
        sizes = self.buffer.sizes
        units = View.whole(self.buffer).dims
        pairs = {pair for atoms in self.dims for pair in itertools.pairwise(atoms)}
        return next((d for d in range(len(sizes) - 1) if (*units[d], *units[d + 1]) in pairs), None)

    def join(self, dimension: int, size: int) -> View:
        """Return the view after a dimension of its buffer was joined with the next one, which had ``size`` elements."""

        def joined(numbers: tuple[int, ...]) -> tuple[int, ...]:
            first, second = numbers[dimension : dimension + 2]
            return (*numbers[:dimension], first * size + second, *numbers[dimension + 2 :])

        dims = tuple(_merge((length, joined(factors)) for length, factors in atoms) for atoms in self.dims)
        return replace(self, constants=joined(self.constants), dims=dims)

    def flatten(self) -> View | None:
        """Return the same view of the buffer's memory, which has one dimension.

        Return None if a dimension does not have a single stride there.
        """
        is_whole = len(self.constants) == len(self.buffer.sizes)
        strides = list(map(static, self.buffer.strides)) if is_whole else [1]
        dims: list[tuple[Atom, ...]] = []
        for atoms in self.dims:
            places = [(size, sum(f * s for f, s in zip(factors, strides, strict=True))) for size, factors in atoms]
            if any(outer != size * inner for (_, outer), (size, inner) in itertools.pairwise(places)):
                return None
            dims.append(((math.prod(size for size, _ in places), (places[-1][1],)),) if places else ())
        offset = sum(c * s for c, s in zip(self.constants, strides, strict=True))
        return View(self.buffer, (offset,), tuple(dims))

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the stride of each dimension in elements. The view must be a view of memory."""
        return tuple(atoms[0][1][0] if atoms else 0 for atoms in self.dims)

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements are all elements of the buffer, in the order of memory."""
        row = replace(self, dims=(tuple(itertools.chain(*self.dims)),)).flatten()
        return row is not None and row.constants == (0,) and row.shape == (self.buffer.count,)


def _merge(atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    """Return atoms after neighbours that are linear together were joined."""
    merged: list[Atom] = []
    for length, factors in atoms:
        is_linear = bool(merged) and merged[-1][1] == tuple(factor * length for factor in factors)
        merged.append((length * merged.pop()[0] if is_linear else length, factors))
    return tuple(merged)


def apply_view_op(view: View, op: Any) -> View | None:
    """Return the view that is the result of ``op`` on ``view``, or None if it does not consist of linear parts."""
    return VIEWS[op.name](view, op)


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor.

    Raises:
        CompileError: they are not known at compile time.
    """
    kind = ir.RankedTensorType(value.type)
    if not kind.has_static_shape:
        raise CompileError(f"a tensor whose sizes are known only at run time: {kind}")
    return tuple(kind.shape)


def block(view: View, op: Any, shape: Sequence[int]) -> View | None:
    """Return the block of ``view`` that ``op`` accesses, in the shape ``shape``.

    ``op`` is a ``tensor.extract_slice``, which reads the block, or a ``tensor.insert_slice``, which writes it. Return
    None if the block is known only at run time, or does not consist of linear parts.
    """
    dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
    offsets, sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("offsets", "sizes", "strides")
    )
    if dynamic in (*offsets, *sizes, *strides):
        return None
    constants, dims = view.constants, []
    for atoms, offset, size, stride, length in zip(view.dims, offsets, sizes, strides, view.shape, strict=True):
        if (offset, size, stride) == (0, length, 1):
            dims.append(atoms)
            continue
        if len(atoms) > 1 and size != 1:
            return None
        for place, factors in _digits(atoms, offset):
            constants = tuple(c + place * f for c, f in zip(constants, factors, strict=True))
        dims.append(((size, tuple(f * stride for f in atoms[0][1])),) if size != 1 else ())
    return replace(view, constants=constants, dims=tuple(dims[d] for d in _kept_dims(sizes, shape)))


def _digits(atoms: Sequence[Atom], place: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each atom's part of an index, with its factors."""
    for length, factors in reversed(atoms):
        place, digit = divmod(place, length)
        yield digit, factors


def _kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the dimensions that a slice keeps. Dimensions of size 1 are interchangeable."""
    dims: list[int] = []
    for d, size in enumerate(sizes):
        if len(dims) < len(shape) and size == shape[len(dims)]:
            dims.append(d)
    return dims


def regroup(atoms: Sequence[Atom], sizes: Sequence[int]) -> tuple[tuple[Atom, ...], ...] | None:
    """Distribute the digits ``atoms`` over dimensions of ``sizes``. Split digits if needed.

    Return None if they do not fit.
    """
    rest = list(atoms)
    dims: list[tuple[Atom, ...]] = []
    for size in reversed(sizes):
        taken: list[Atom] = []
        while size != 1:
            if not rest:
                return None
            length, factors = rest.pop()
            if size % length == 0:
                size //= length
            elif length % size == 0:
                rest.append((length // size, tuple(f * size for f in factors)))
                length, size = size, 1
            else:
                return None
            taken.append((length, factors))
        dims.append(tuple(reversed(taken)))
    return tuple(reversed(dims)) if not rest else None


def _collapse(view: View, op: Any) -> View | None:
    groups = _reassociation(op)
    return replace(view, dims=tuple(tuple(atom for d in group for atom in view.dims[d]) for group in groups))


def _expand(view: View, op: Any) -> View | None:
    shape = shape_of(op.results[0])
    dims: list[tuple[Atom, ...]] = [] if view.dims else [()] * len(shape)
    for atoms, group in zip(view.dims, _reassociation(op), strict=True):
        parts = regroup(atoms, [shape[d] for d in group])
        if parts is None:
            return None
        dims += parts
    return replace(view, dims=tuple(dims))


def _reassociation(op: Any) -> list[list[int]]:
    return [[int(i) for i in group] for group in op.attributes["reassociation"]]


# Ops whose result is a view of (a part of) their first operand.
VIEWS: Mapping[str, Callable[[View, Any], View | None]] = {
    "tensor.cast": lambda view, op: view,
    "tensor.collapse_shape": _collapse,
    "tensor.expand_shape": _expand,
    "tensor.extract_slice": lambda view, op: block(view, op, shape_of(op.results[0])),
}
