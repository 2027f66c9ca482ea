"""Every access lies inside of its buffer, at all sizes: shown here, or checked by each call.

An access is linear in the loops of its step, so the least and the largest place that it touches are polynomials of the
symbols, as is the number of elements of its buffer. Indices that are data are checked by the kernels that use them
(:class:`~torchmdla.devices.cpu.kernel_spec.Table`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from torchmdla.compiler.sizes import AnySize, Size, is_positive
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, RepeatLoop, Step, TileLoop, View
from torchmdla.errors import CompileError


def conditions_of_bounds(steps: LoopProgram) -> list[Size]:
    """The numbers that have to be 0 or larger in a call, so that nothing is touched outside of its buffer.

    Raises:
        CompileError: an access does not lie inside of its buffer, whatever the sizes: a fault of a pass.
    """
    everything = [*steps.steps, *(step for packing in steps.packings for step in packing.steps)]
    found: dict[Size, None] = {}
    for room in (room for step in everything for room in _rooms(step)):
        if is_positive(room + 1):
            continue
        if not isinstance(room, Size):
            raise CompileError(f"internal error: an access is {-room} elements outside of its buffer")
        found[room] = None
    return list(found)


# The view that a buffer is in a repeated step, and how often the step is repeated.
_Views = Mapping[Buffer, tuple[View, AnySize]]


def _rooms(step: Step, views: _Views = MappingProxyType({})) -> Iterator[AnySize]:
    """For each access how many elements are in front of its least place, and how many behind its largest; and how often
    steps are repeated: some iterations of a loop that was written out are steps of their own, so that there may be no
    others, but not fewer."""
    if isinstance(step, LoopNest):
        for access in (*step.accesses, *step.read_accesses):
            yield from _room(access, step.sizes, views)
    elif isinstance(step, TileLoop):
        for member, nest in enumerate(step.members):
            whole = step.part(member, step.extents)
            for access in (*nest.accesses, *nest.read_accesses):
                yield from _room(access, nest.sizes if access.buffer.kind == "local" else whole.sizes, views)
    elif isinstance(step, RepeatLoop):
        yield step.count
        own = {view.buffer: (view, step.count) for view in step.views}
        for part in step.steps:
            yield from _rooms(part, own)


def _room(access: Access, sizes: Sequence[AnySize], views: _Views) -> tuple[AnySize, AnySize]:
    flat = access.flat(len(sizes))
    if access.buffer not in views:
        least, most = flat.range(sizes)
        return least, access.buffer.count - access.width - most
    view, count = views[access.buffer]
    seen = AffineExpr((*flat.factors, view.distance), flat.constant + view.offset)
    least, most = seen.range((*sizes, count))
    return least, view.base.count - access.width - most
