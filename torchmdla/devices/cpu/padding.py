"""Padding without copies: what is to be padded is computed inside of the padded buffer, and its borders are filled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchmdla.devices.cpu.nests import Instruction
from torchmdla.devices.cpu.steps import Access, Buffer, Linear, NestStep, Steps, filled_with, is_copy


def compute_in_place(steps: Steps) -> None:
    """Removes copies into the interior of a filled temporary where the source can be computed there at once."""
    for copy in [s for s in steps.nests() if is_copy(s)]:
        offsets = _offsets(copy)
        if offsets is None:
            continue
        source, padded = copy.inputs[0].buffer, copy.outputs[0].buffer
        fill = _fill_before(steps, padded, copy)
        if fill is not None and _may_move(steps, source, copy):
            _replace(steps, source, padded, offsets)
            steps.steps.remove(copy)
            _fill_borders(steps, fill, padded, source.sizes, offsets)


def _offsets(copy: NestStep) -> tuple[int, ...] | None:
    """Where in the destination the whole source goes; None if it is not moved as one block into a larger one."""
    source, destination = copy.inputs[0], copy.outputs[0]
    kinds = source.buffer.kind, destination.buffer.kind
    if kinds != ("temporary", "temporary") or source.buffer.fixed or destination.buffer.fixed:
        return None
    if len(source.indices) != len(destination.indices) or source.buffer.count >= destination.buffer.count:
        return None
    used: set[int] = set()
    for read, written, size in zip(source.indices, destination.indices, source.buffer.sizes, strict=True):
        whole = size == 1 and not read.loops or read.is_loop() and copy.sizes[read.loops[0]] == size
        if not whole or read.constant or read.factors != written.factors or used & set(read.loops):
            return None
        used.update(read.loops)
    return tuple(index.constant for index in destination.indices)


def _fill_before(steps: Steps, padded: Buffer, copy: NestStep) -> NestStep | None:
    """The fill that comes before the copy, if these two make all of the buffer."""
    users = steps.users(padded)
    fill = users[0]
    made = len(users) > 1 and users[1] is copy and all(padded not in s.writes for s in users[2:])
    return fill if made and isinstance(fill, NestStep) and filled_with(fill) is not None else None


def _may_move(steps: Steps, source: Buffer, copy: NestStep) -> bool:
    """Whether only nests use the source, and none writes it after the copy."""
    users = steps.users(source)
    after = users[users.index(copy) + 1 :]
    nests = all(isinstance(s, NestStep) and all(t.buffer is not source for t in s.tables) for s in users)
    return nests and all(source not in s.writes for s in after)


def _replace(steps: Steps, source: Buffer, padded: Buffer, offsets: tuple[int, ...]) -> None:
    def moved(access: Access) -> Access:
        if access.buffer is not source:
            return access
        pairs = zip(access.indices, offsets, strict=True)
        return Access(padded, tuple(replace(index, constant=index.constant + offset) for index, offset in pairs))

    for step in steps.nests():
        step.map_accesses(moved)


def _fill_borders(
    steps: Steps, fill: NestStep, padded: Buffer, sizes: tuple[int, ...], offsets: tuple[int, ...]
) -> None:
    """Fills what the interior leaves, before the buffer's first use."""
    constant = filled_with(fill)
    assert constant is not None
    steps.steps.remove(fill)
    place = steps.steps.index(steps.users(padded)[0])
    steps.steps[place:place] = list(_borders(constant, padded, sizes, offsets))


def _borders(
    constant: Instruction, padded: Buffer, sizes: tuple[int, ...], offsets: tuple[int, ...]
) -> Iterator[NestStep]:
    """Fills of what lies before and after the interior: of the first dimensions over the whole of those that follow,
    and within the interior of those before."""
    lengths, starts = list(padded.sizes), [0] * len(sizes)
    for d, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        before, after = offset, padded.sizes[d] - size - offset
        if before and before == after:
            yield _block_fill(constant, padded, lengths[:d] + [before] + lengths[d + 1 :], starts, d, offset + size)
        else:
            for start, length in ((0, before), (offset + size, after)):
                if length:
                    corner = starts[:d] + [start] + starts[d + 1 :]
                    yield _block_fill(constant, padded, lengths[:d] + [length] + lengths[d + 1 :], corner)
        lengths[d], starts[d] = size, offset


def _block_fill(
    constant: Instruction, buffer: Buffer, lengths: list[int], starts: list[int], twice: int = -1, distance: int = 0
) -> NestStep:
    """Fills a block; a second one ``distance`` further in dimension ``twice``, if that is given."""
    loops = len(lengths) + 1
    sizes = (*lengths, 2 if twice >= 0 else 1)
    indices = []
    for d, start in enumerate(starts):
        factors = [0] * loops
        factors[d] = 1
        factors[-1] = distance if d == twice else 0
        indices.append(Linear(tuple(factors), start))
    access = Access(buffer, tuple(indices))
    return NestStep(sizes, (False,) * loops, (), (access,), (), (), (constant,), (1,))
