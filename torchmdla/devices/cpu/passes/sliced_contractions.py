"""Tile-by-tile fusion of a product with the steps that read slices of its result, as in recurrent cells.

A step of an LSTM is one product of the hidden state with the weights of all gates. Elementwise nests then read the
gates as slices of it. Both walk the hidden units. A tile computes the product of all gates for a few units, and then
the elementwise steps while these gates are in the first-level cache. The whole is one
:class:`~torchmdla.devices.cpu.ir.loop_program.TileLoop`, whose range threads share. The pass is not specific to
recurrent networks: it requires only a product and equal slices of one of its loops.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from torchmdla.compiler.sizes import AnySize, estimate, is_positive, quotient, static
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES, storage_type
from torchmdla.devices.cpu.ir.loop_program import (
    LoopNest,
    LoopProgram,
    Step,
    TileLoop,
    Users,
    is_bijective,
    is_elementwise,
    split_loop,
)
from torchmdla.devices.cpu.passes.elide_inserts import are_disjoint
from torchmdla.devices.cpu.target.machine import Machine

# The share of the first-level cache that one tile's slices may fill, as their readers need room, too.
_LOCAL_PART = 0.5

# Adjacent vectors in a tile if the layout of weights does not specify the width, best first.
_VECTORS = (2, 3, 1)


def separate_slices(steps: LoopProgram) -> None:
    """Split dimensions that are read in equal slices into slices and places, and the loops that write them, in place.

    Layouts of weights then keep the slices apart.
    """
    users = Users(steps.steps)
    for buffer in steps.buffers():
        _, *readers = users.of(buffer)
        nests = [s for s in readers if isinstance(s, LoopNest) and not s.tables and buffer not in s.writes]
        if buffer.is_free and readers and len(nests) == len(readers):
            slicing = _sliced_dimension(buffer, nests)
            if slicing is not None:
                _separate(users, buffer, *slicing)


def _separate(users: Users, buffer: Buffer, dimension: int, extent: AnySize) -> None:
    """Reshape a buffer, and the sources of an elementwise step that computes it, up to the product."""
    writer = users.of(buffer)[0]
    if not isinstance(writer, LoopNest) or not _split_writer(writer, buffer, dimension, extent):
        return
    _reshape(buffer, [s for s in users.of(buffer) if isinstance(s, LoopNest)], dimension, extent)
    if not is_elementwise(writer):
        return
    for source in dict.fromkeys(a.buffer for a in writer.inputs):
        whole = [d for d, size in enumerate(source.sizes) if size == math.prod(buffer.sizes[dimension : dimension + 2])]
        if source.is_free and len(users.of(source)) == 2 and len(whole) == 1:
            indices = [a.indices[whole[0]] for a in writer.inputs if a.buffer is source]
            if all(
                sorted((f for f in i.factors if f), key=estimate) == [1, extent] and not i.constant for i in indices
            ):
                _separate(users, source, whole[0], extent)


def _sliced_dimension(buffer: Buffer, readers: Sequence[LoopNest]) -> tuple[int, AnySize] | None:
    """Return the dimension of which every access of the readers walks one slice, and the extent of a slice.

    The readers have to walk the other dimensions completely.
    """
    accesses = [(s, a) for s in readers for a in s.accesses if a.buffer is buffer]
    for d, size in enumerate(buffer.sizes):
        extents = {_slice_extent(s, a.indices[d]) for s, a in accesses}
        extent = next(iter(extents))
        if len(extents) != 1 or extent is None or extent == 1 or size == extent or quotient(size, extent) is None:
            continue
        starts = {a.indices[d].constant for _, a in accesses}
        others = [k for k in range(len(buffer.sizes)) if k != d]
        whole = all(_slice_extent(s, a.indices[k]) == buffer.sizes[k] for s, a in accesses for k in others)
        if whole and len(starts) > 1 and all(quotient(start, extent) is not None for start in starts):
            return d, extent
    return None


def _slice_extent(step: LoopNest, index: AffineExpr) -> AnySize | None:
    """Return the number of adjacent places that an index walks with at most one loop; None for other indices."""
    if not index.loops:
        return 1
    loop = index.loops[0]
    return step.sizes[loop] if len(index.loops) == 1 and index.factors[loop] == 1 else None


def _split_writer(writer: LoopNest, buffer: Buffer, dimension: int, extent: AnySize) -> bool:
    """Split the loop over ``dimension`` of the step that writes a buffer, and return whether it could be split."""
    access = next(a for a in writer.written_accesses if a.buffer is buffer)
    index = access.indices[dimension]
    if buffer in [a.buffer for a in writer.inputs] or not is_bijective(writer, access) or not index.is_loop():
        return False
    loop = index.loops[0]
    if loop in writer.indexed_loops or any(loop in i.loops for k, i in enumerate(access.indices) if k != dimension):
        return False
    split_loop(writer, loop, (writer.sizes[loop] // extent, extent))
    return True


def _reshape(buffer: Buffer, users: Sequence[LoopNest], dimension: int, extent: AnySize) -> None:
    """Replace a dimension of a buffer by a dimension of blocks and one of places within a block.

    Each index has one loop for either of these, or is a constant block.
    """
    sizes = buffer.sizes
    buffer.sizes = (*sizes[:dimension], sizes[dimension] // extent, extent, *sizes[dimension + 1 :])

    def map_access(access: Access) -> Access:
        if access.buffer is not buffer:
            return access
        index = access.indices[dimension]
        blocks = [quotient(factor, extent) for factor in index.factors]
        block = AffineExpr(tuple(number or 0 for number in blocks), quotient(index.constant, extent) or 0)
        places = zip(blocks, index.factors, strict=True)
        place = AffineExpr(tuple(factor if number is None else 0 for number, factor in places))
        return replace(access, indices=(*access.indices[:dimension], block, place, *access.indices[dimension + 1 :]))

    for step in users:
        step.map_accesses(map_access)


def fuse_slices(steps: LoopProgram, machine: Machine) -> None:
    """Replace products and the elementwise steps that read their results in slices by chains, in place."""
    places: dict[Buffer, list[int]] = defaultdict(list)
    for position, step in enumerate(steps.steps):
        for buffer in {*step.reads, *step.writes}:
            places[buffer].append(position)
    result: list[Step] = []
    position = 0
    while position < len(steps.steps):
        end = _end_of_readers(steps, position, places)
        chain = _match_chain(steps.steps[position:end], machine) if end else None
        result.append(chain or steps.steps[position])
        position = end if chain else position + 1
    steps.steps = result


def _end_of_readers(steps: LoopProgram, position: int, places: Mapping[Buffer, Sequence[int]]) -> int:
    """Return the position after the steps that read the product at ``position``, or 0.

    It is 0 if the step is not a product with a local result, or if unrelated steps are between it and its readers.
    Whether a result of varying size fits in the cache depends on that size, so such products are left unchanged.
    """
    product = steps.steps[position]
    if not isinstance(product, LoopNest) or not any(product.reduction) or len(product.written_accesses) != 1:
        return 0
    (buffer,) = product.writes
    is_local = buffer.is_free and not any(map(steps.is_varying, buffer.sizes))
    if product.tables or not is_local or buffer in product.reads:
        return 0
    users = places[buffer]
    end = position + len(users) - bisect_left(users, position)
    return end if end - position > 1 and users[-1] == end - 1 else 0


def _match_chain(candidates: Sequence[Step], machine: Machine) -> TileLoop | None:
    """Return a chain of a product and all the steps that read its result, or None."""
    product, *readers = [s for s in candidates if isinstance(s, LoopNest)]
    (buffer,) = product.writes
    if len(readers) + 1 != len(candidates) or not all(map(is_elementwise, readers)):
        return None
    if any(buffer in s.writes or buffer not in s.reads for s in readers):
        return None
    tiling = _axis(product, readers, machine)
    if tiling is None:
        return None
    dimension, width = tiling
    if static(buffer.bytes) // static(buffer.sizes[dimension]) * width > _LOCAL_PART * machine.first_level:
        return None
    members, loops = zip(*(_split_axis(s, buffer, dimension, width) for s in (product, *readers)), strict=True)
    if not _may_tile(members, loops, buffer):
        return None
    return _build_chain(members, loops, buffer, dimension, width)


def _axis(product: LoopNest, readers: Sequence[LoopNest], machine: Machine) -> tuple[int, int] | None:
    """Return the tiled dimension of the product's result and the width of a tile, or None.

    The dimension is the innermost one, which all readers walk completely. Another dimension must consist of slices, of
    which each reader uses one.
    """
    output = product.written_accesses[0]
    buffer, dimension = output.buffer, len(output.buffer.sizes) - 1
    accesses = [(s, a) for s in readers for a in s.accesses if a.buffer is buffer]
    slices = [
        d for d, size in enumerate(buffer.sizes) if size != 1 and all(not a.indices[d].loops for _, a in accesses)
    ]
    if not accesses or not slices:
        return None
    size = static(buffer.sizes[dimension])
    whole = all(_slice_extent(s, a.indices[dimension]) == size and _has_own_loops(a, dimension) for s, a in accesses)
    if not whole or not _has_own_loops(output, dimension):
        return None
    factors = sorted(static(f) for f in output.indices[dimension].factors if f)
    lanes = machine.vector_bytes // ELEMENT_BYTES[storage_type(buffer.element)]
    widths = [factors[1]] if len(factors) == 2 else [lanes * n for n in _VECTORS if size % (lanes * n) == 0]
    return (dimension, widths[0]) if widths and len(factors) < 3 and factors[0] == 1 and widths[0] < size else None


def _has_own_loops(access: Access, dimension: int) -> bool:
    """Return whether other indices do not use the loops of a dimension's index."""
    loops = set(access.indices[dimension].loops)
    return all(loops.isdisjoint(index.loops) for d, index in enumerate(access.indices) if d != dimension)


def _split_axis(step: LoopNest, buffer: Buffer, dimension: int, width: int) -> tuple[LoopNest, int]:
    """Return a copy of a step with a loop over tiles of ``width`` along a dimension of ``buffer``, and that loop."""
    copy = replace(step)
    index = next(a for a in copy.accesses if a.buffer is buffer).indices[dimension]
    loop = next((d for d, factor in enumerate(index.factors) if factor == width), None)
    if loop is None:
        (loop,) = index.loops
        split_loop(copy, loop, (copy.sizes[loop] // width, width))
    return copy, loop


# The part of a buffer that one tile touches: the first element, and for each loop, innermost first, its stride, its
# iterations and whether it is the loop over tiles.
_Part = tuple[AnySize, list[tuple[AnySize, AnySize, bool]]]


def _may_tile(members: Sequence[LoopNest], loops: Sequence[int], result: Buffer) -> bool:
    """Return whether tiles of the members are independent.

    Each tile has to write its own part of a buffer. Other accesses of that buffer must touch the same part in the same
    tile, or nothing that is written.
    """
    operands = [(m, loop, a) for m, loop in zip(members, loops, strict=True) for a in m.accesses]
    touched = [(m, loop, a) for m, loop, a in operands if a.buffer is not result]
    for writer, axis, written in touched:
        if written not in writer.written_accesses:
            continue
        part = _part(writer, axis, written)
        if part is None:
            return False
        for member, loop, access in touched:
            same = member is not members[0] and _part(member, loop, access) == part
            if access.buffer is written.buffer and not same and not are_disjoint(writer, written, member, access):
                return False
    return True


def _part(step: LoopNest, axis: int, access: Access) -> _Part | None:
    """Return the part of a buffer that one tile touches; None if parts of tiles may overlap."""
    flat = access.linearise(len(step.sizes))
    loops = ((flat.factors[d], size, d == axis) for d, size in enumerate(step.sizes) if size != 1)
    walked = sorted(loops, key=lambda loop: (estimate(loop[0]), estimate(loop[1]), loop[2]))
    apart = all(is_positive(outer - inner * size + 1) for (inner, size, _), (outer, _, _) in pairwise(walked))
    return (flat.constant, walked) if apart and walked and is_positive(walked[0][0]) else None


def _build_chain(
    members: Sequence[LoopNest], loops: Sequence[int], buffer: Buffer, dimension: int, width: int
) -> TileLoop:
    """Return the chain of members over tiles along ``loops``; one tile of ``buffer`` is local."""
    sizes = buffer.sizes
    local = Buffer("local", buffer.element, (*sizes[:dimension], width, *sizes[dimension + 1 :]))
    tiles = sizes[dimension] // width
    for member, loop in zip(members, loops, strict=True):
        member.sizes = tuple(1 if d == loop else size for d, size in enumerate(member.sizes))
        member.map_accesses(partial(Access.replace_buffer, old=buffer, new=local))
    return TileLoop(tuple(members), tuple((loop,) for loop in loops), (tiles,), (1,), (local,))
