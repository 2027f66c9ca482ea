"""Views of buffers: which element of a base buffer each index of a memref means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_mlir import ir

from torchmdla.devices.cpu.accesses import Buffer
from torchmdla.devices.cpu.linalg.buffers import layout

# A part of a view's dimension that is linear in the base buffer: its size, and the factor that its index has in each
# of the buffer's dimensions.
Atom = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class View:
    """Each dimension of the memref is a list of atoms, outermost first, like the digits of a number. ``constants`` are
    added to the indices of the buffer's dimensions."""

    buffer: Buffer
    constants: tuple[int, ...]
    dims: tuple[tuple[Atom, ...], ...]

    @classmethod
    def whole(cls, buffer: Buffer) -> View:
        rank = len(buffer.sizes)
        units = [tuple(int(k == d) for k in range(rank)) for d in range(rank)]
        dims = tuple(((size, unit),) if size != 1 else () for size, unit in zip(buffer.sizes, units, strict=True))
        return cls(buffer, (0,) * rank, dims)

    @classmethod
    def of_memory(cls, buffer: Buffer, value: Any) -> View:
        """``value`` as strides over the buffer's memory: indices have one dimension, whatever the buffer's are.

        Raises:
            NotANestError: its layout is not known at compile time.
        """
        strides, offset = layout(value)
        shape = ir.MemRefType(value.type).shape
        dims = tuple(((size, (stride,)),) if size != 1 else () for size, stride in zip(shape, strides, strict=True))
        return cls(buffer, (offset,), dims)


def viewed(view: View, op: Any) -> View | None:
    """The view that ``op`` takes of ``view``; None if it is not made of linear parts."""
    function = _READERS.get(op.name)
    empty = 0 in ir.MemRefType(op.results[0].type).shape
    return function(view, op) if function and not empty else None


def regrouped(atoms: Sequence[Atom], sizes: Sequence[int]) -> tuple[tuple[Atom, ...], ...] | None:
    """Distributes the digits ``atoms`` over dimensions of ``sizes``, splitting some; None where they do not fit."""
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
    shape = list(ir.MemRefType(op.results[0].type).shape)
    dims: list[tuple[Atom, ...]] = [] if view.dims else [()] * len(shape)
    for atoms, group in zip(view.dims, _reassociation(op), strict=True):
        parts = regrouped(atoms, [shape[d] for d in group])
        if parts is None:
            return None
        dims += parts
    return replace(view, dims=tuple(dims))


def _reassociation(op: Any) -> list[list[int]]:
    return [[int(i) for i in group] for group in op.attributes["reassociation"]]


def _subview(view: View, op: Any) -> View | None:
    if len(op.operands) != 1:
        return None
    offsets, sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("offsets", "sizes", "strides")
    )
    constants, dims = view.constants, []
    whole = [math.prod(size for size, _ in atoms) for atoms in view.dims]
    for atoms, offset, size, stride, length in zip(view.dims, offsets, sizes, strides, whole, strict=True):
        if (offset, size, stride) == (0, length, 1):
            dims.append(atoms)
            continue
        if len(atoms) != 1:
            return None
        factors = atoms[0][1]
        constants = tuple(c + offset * f for c, f in zip(constants, factors, strict=True))
        dims.append(((size, tuple(f * stride for f in factors)),) if size != 1 else ())
    kept = _kept_dims(sizes, list(ir.MemRefType(op.results[0].type).shape))
    return replace(view, constants=constants, dims=tuple(dims[d] for d in kept))


def _kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dimensions that a subview keeps. Which of several of size 1 it drops makes no difference."""
    kept: list[int] = []
    for d, size in enumerate(sizes):
        if len(kept) < len(shape) and size == shape[len(kept)]:
            kept.append(d)
    return kept


def _reinterpret(view: View, op: Any) -> View | None:
    """Sees all of the base buffer's memory in another shape, whatever view of it the operand is."""
    kind = ir.MemRefType(op.results[0].type)
    if kind != ir.MemRefType.get(kind.shape, kind.element_type) or math.prod(kind.shape) != view.buffer.count:
        return None
    base = View.whole(view.buffer)
    dims = regrouped([atom for atoms in base.dims for atom in atoms], list(kind.shape))
    return replace(base, dims=dims) if dims is not None else None


def _transpose(view: View, op: Any) -> View | None:
    permutation = [e.position for e in ir.AffineMapAttr(op.attributes["permutation"]).value.results]
    return replace(view, dims=tuple(view.dims[d] for d in permutation))


_READERS = {
    "memref.cast": lambda view, op: view,
    "memref.collapse_shape": _collapse,
    "memref.expand_shape": _expand,
    "memref.reinterpret_cast": _reinterpret,
    "memref.subview": _subview,
    "memref.transpose": _transpose,
}
