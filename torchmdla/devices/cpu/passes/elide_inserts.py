"""Padding and concatenation without copies: values are computed in their block of the larger buffer.

A padded image is a fill and a copy into its interior; a concatenation is one copy for each part. The copies are
removed, all steps use the larger buffer, and fills are reduced to the borders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchmdla.compiler.sizes import AnySize, estimate, is_positive
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.expressions import Expression
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Step, Users, fill_value, is_copy


def elide_insert_copies(steps: LoopProgram) -> None:
    """Remove copies of temporaries into blocks of other buffers where the source can be computed in the block."""
    users, cache = Users(steps.steps), _BlockCache()
    order = {step: k for k, step in enumerate(steps.steps)}
    for copy in [s for s in steps.nests() if is_copy(s)]:
        block = _block(copy)
        source, whole = copy.inputs[0].buffer, copy.outputs[0].buffer
        if block is None or not _may_move(users.of(source), source, copy):
            continue
        if not _has_exclusive_block(users.of(whole), whole, copy, cache):
            continue
        fill = next((s for s in users.of(whole) if fill_value(s) is not None), None)
        _replace(users.of(source), source, whole, block)
        cache.forget(users.of(source))
        steps.steps.remove(copy)
        if isinstance(fill, LoopNest):
            _fill_first(steps, fill, whole, source.sizes, block)
            users = Users(steps.steps)
            order = {step: k for k, step in enumerate(steps.steps)}
        else:
            both = {*users.of(source), *users.of(whole)} - {copy}
            users.set(source, [])
            users.set(whole, sorted(both, key=order.__getitem__))


# Selection of copies.


def _block(copy: LoopNest) -> tuple[AffineExpr, ...] | None:
    """Return the indices of the destination for each element of the source, over the source's dimensions.

    Return None if the copy moves only a part of the source, moves an element to several places, or reorders elements.
    """
    source, destination = copy.inputs[0], copy.outputs[0]
    if source.buffer.kind != "temporary" or destination.buffer.kind not in ("temporary", "result"):
        return None
    if source.buffer is destination.buffer or source.buffer.fixed or destination.buffer.fixed:
        return None
    if not source.buffer.sizes:  # It has no index that specifies its place.
        return None
    dims: dict[int, int] = {}
    for d, (index, size) in enumerate(zip(source.indices, source.buffer.sizes, strict=True)):
        if size == 1 and not index.loops and not index.constant:
            continue
        if not index.is_loop() or copy.sizes[index.loops[0]] != size or index.loops[0] in dims:
            return None
        dims[index.loops[0]] = d
    if any(size != 1 and loop not in dims for loop, size in enumerate(copy.sizes)):
        return None
    flat = destination.linearise(len(copy.sizes))
    factors = [flat.factors[loop] for loop in dims if copy.sizes[loop] != 1]
    is_falling = factors == sorted(factors, key=estimate, reverse=True) and len(set(factors)) == len(factors)
    if not is_falling or (factors and factors[-1] != 1):
        return None
    rank = len(source.buffer.sizes)
    loops = {d: loop for loop, d in dims.items()}
    return tuple(
        AffineExpr(tuple(index.factors[loops[d]] if d in loops else 0 for d in range(rank)), index.constant)
        for index in destination.indices
    )


def _may_move(users: Sequence[Step], source: Buffer, copy: LoopNest) -> bool:
    """Return whether only nests use the source, and no step writes it after the copy."""
    after = users[users.index(copy) + 1 :]
    nests = all(isinstance(s, LoopNest) and all(t.buffer is not source for t in s.tables) for s in users)
    return nests and all(source not in s.writes for s in after)


# The least and the largest value of each index of an access.
_Spans = list[tuple[AnySize, AnySize]]


class _BlockCache:
    """Cache of the blocks of buffers that steps touch, shared by all copies."""

    def __init__(self) -> None:
        self._found: dict[Step, dict[Buffer, tuple[list[_Spans], list[_Spans]]]] = {}

    def find(self, step: LoopNest, buffer: Buffer) -> tuple[list[_Spans], list[_Spans]]:
        """Return the blocks of a buffer that a step writes, and those that it reads."""
        blocks = self._found.setdefault(step, {})
        if buffer not in blocks:
            written = [_spans(step.sizes, a) for a in step.written_accesses if a.buffer is buffer]
            blocks[buffer] = written, [_spans(step.sizes, a) for a in step.read_accesses if a.buffer is buffer]
        return blocks[buffer]

    def forget(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._found.pop(step, None)


def _has_exclusive_block(users: Sequence[Step], whole: Buffer, copy: LoopNest, cache: _BlockCache) -> bool:
    """Return whether no other step touches the copy's block before the copy, or writes it afterwards.

    A fill of the whole buffer that comes first is permitted.
    """
    position = users.index(copy)
    block = _spans(copy.sizes, copy.outputs[0])
    for k, step in enumerate(users):
        if step is copy or (k == 0 and fill_value(step) is not None):
            continue
        if not isinstance(step, LoopNest) or (k < position and any(t.buffer is whole for t in step.tables)):
            return False
        written, read = cache.find(step, whole)
        if not all(_are_disjoint(spans, block) for spans in (*written, *(read if k < position else []))):
            return False
    return True


def are_disjoint(step: LoopNest, access: Access, other_step: LoopNest, other: Access) -> bool:
    """Return whether no element is touched by both accesses; the ranges of a single dimension have to prove it."""
    return _are_disjoint(_spans(step.sizes, access), _spans(other_step.sizes, other))


def _are_disjoint(spans: _Spans, others: _Spans) -> bool:
    return any(
        is_positive(its_first - last) or is_positive(first - its_last)
        for (first, last), (its_first, its_last) in zip(spans, others, strict=True)
    )


def _spans(sizes: Sequence[AnySize], access: Access) -> _Spans:
    return [index.range(sizes) for index in access.indices]


# Rewriting.


def _replace(users: Sequence[Step], source: Buffer, whole: Buffer, block: Sequence[AffineExpr]) -> None:

    def map_access(access: Access) -> Access:
        if access.buffer is not source:
            return access
        indices, loops = dict(enumerate(access.indices)), len(access.indices[0].factors)
        return Access(whole, tuple(index.substitute(indices, loops) for index in block))

    for step in users:
        if isinstance(step, LoopNest):
            step.map_accesses(map_access)


def _fill_first(
    steps: LoopProgram, fill: LoopNest, whole: Buffer, sizes: tuple[AnySize, ...], block: tuple[AffineExpr, ...]
) -> None:
    """Fill the borders around a block before the buffer's first use.

    The whole buffer is filled where there may be other blocks.
    """
    constant = fill_value(fill)
    assert constant is not None
    steps.steps.remove(fill)
    first = steps.users(whole)[0]
    place = steps.steps.index(first)
    dense = all(index.loops == () or (index.loops == (d,) and index.factors[d] == 1) for d, index in enumerate(block))
    if dense and len(block) == len(sizes):
        offsets = tuple(index.constant for index in block)
        steps.steps[place:place] = list(_borders(constant, whole, sizes, offsets))
    else:
        steps.steps.insert(place, fill)


def _borders(
    constant: Expression, padded: Buffer, sizes: tuple[AnySize, ...], offsets: tuple[AnySize, ...]
) -> Iterator[LoopNest]:
    """Yield fills of the elements before and after the interior, one dimension after the other.

    A dimension's fills cover the whole of the dimensions that follow, and the interior of those before.
    """
    lengths = list(padded.sizes)
    starts: list[AnySize] = [0] * len(sizes)
    for d, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        before, after = offset, padded.sizes[d] - size - offset
        if before and before == after:
            yield _block_fill(constant, padded, [*lengths[:d], before, *lengths[d + 1 :]], starts, d, offset + size)
        else:
            for start, length in ((0, before), (offset + size, after)):
                if length:
                    corner = [*starts[:d], start, *starts[d + 1 :]]
                    yield _block_fill(constant, padded, [*lengths[:d], length, *lengths[d + 1 :]], corner)
        lengths[d], starts[d] = size, offset


def _block_fill(
    constant: Expression,
    buffer: Buffer,
    lengths: list[AnySize],
    starts: list[AnySize],
    twice: int = -1,
    distance: AnySize = 0,
) -> LoopNest:
    """Return a fill of a block, and of a second one ``distance`` further in dimension ``twice`` if given."""
    loops = len(lengths) + 1
    sizes = (*lengths, 2 if twice >= 0 else 1)
    indices = []
    for d, start in enumerate(starts):
        factors: list[AnySize] = [0] * loops
        factors[d] = 1
        factors[-1] = distance if d == twice else 0
        indices.append(AffineExpr(tuple(factors), start))
    return LoopNest.elementwise(sizes, Access(buffer, tuple(indices)), constant)
