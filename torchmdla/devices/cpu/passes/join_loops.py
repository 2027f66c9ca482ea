"""Loops that a view split in two, joined again.

Results of a transposed convolution with a stride are interleaved, so that nests walk them with two loops for a
dimension. Their readers have the same two loops, although they walk one dimension. Joined, they may become the loops of
a convolution that the reader is merged into::

    nest d0:28 d1:2 { temporary1[d0 * 2 + d1] = relu temporary0[d0, d1] }    →    nest d0:1 d1:56 { … temporary0[d1] }

Dimensions of temporaries are joined with the loops. Other nests, which walk their elements in another order, compute
the index of the joined dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Users, is_contraction
from torchmdla.devices.cpu.passes.layout import CHANNEL

# Dimensions of buffers, each to join with the next one.
_Dimensions = dict[Buffer, int]


def join_loops(steps: LoopProgram) -> None:
    """Join loops that walk one dimension of some buffer, in place."""
    users = Users(steps.steps)
    for step in steps.nests():
        # Patterns of products with weights in blocks need the blocks.
        while not is_contraction(step) and (joinable := next(_joinable(step, users), None)) is not None:
            outer, inner, dimensions = joinable
            for buffer, dimension in dimensions.items():
                _join_dimensions(users, buffer, dimension)
            step.sizes = tuple(
                1 if loop == outer else size * step.sizes[outer] if loop == inner else size
                for loop, size in enumerate(step.sizes)
            )
            step.map_accesses(lambda access, outer=outer: access.at_iteration(outer, 0))  # type: ignore[misc]


def _joinable(step: LoopNest, users: Users) -> Iterator[tuple[int, int, _Dimensions]]:
    """Yield pairs of an outer and an inner loop to join, with the dimensions to join for them."""
    loops = [loop for loop, size in enumerate(step.sizes) if size != 1 and loop not in step.indexed_loops]
    joint = {index.loops for access in step.accesses for index in access.indices if len(index.loops) > 1}
    for outer in loops:
        for inner in loops:
            is_pair = outer != inner and step.reduction[outer] is step.reduction[inner]
            if is_pair and any({outer, inner} <= {*together} for together in joint):
                dimensions = _dimensions_to_join(step, users, outer, inner)
                if dimensions is not None:
                    yield outer, inner, dimensions


def _dimensions_to_join(step: LoopNest, users: Users, outer: int, inner: int) -> _Dimensions | None:
    """Return the dimensions to join, or None if some access does not walk along one dimension with both loops."""
    size, dimensions = step.sizes[inner], _Dimensions()
    for access in step.accesses:
        flat = access.linearise(len(step.sizes))
        if flat.factors[outer] != flat.factors[inner] * size:
            return None
        places = [[d for d, index in enumerate(access.indices) if loop in index.loops] for loop in (outer, inner)]
        if places[0] == places[1] and len(places[0]) < 2:
            continue
        first = places[0][0] if len(places[0]) == 1 else -1
        if places != [[first], [first + 1]] or dimensions.setdefault(access.buffer, first) != first:
            return None
        if CHANNEL in (first, first + 1) and len(access.buffer.sizes) > CHANNEL + 1:
            return None  # Blocks of an image's channels need a loop over channels alone.
        if not access.buffer.is_free or not all(
            _indexes_dimensions(user, access.buffer) for user in users.of(access.buffer)
        ):
            return None
    return dimensions


def _indexes_dimensions(step: object, buffer: Buffer) -> bool:
    """Return whether a step is a nest with an index for each dimension of a buffer, in all its accesses to it."""
    if not isinstance(step, LoopNest) or any(table.buffer is buffer for table in step.tables):
        return False
    return all(len(access.indices) == len(buffer.sizes) for access in step.accesses if access.buffer is buffer)


def _join_dimensions(users: Users, buffer: Buffer, dimension: int) -> None:
    """Join a dimension of a buffer with the next one, in all accesses."""
    size = buffer.join_dimensions(dimension)
    for step in users.of(buffer):
        if isinstance(step, LoopNest):
            step.map_accesses(partial(Access.join_dimensions, buffer=buffer, dimension=dimension, size=size))
