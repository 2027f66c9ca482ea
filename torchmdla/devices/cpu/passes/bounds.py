"""Bounds of accesses: each is proved here for all sizes, or checked by each call.

An access is linear in the loops of its step. Its least and its largest place are therefore polynomials of the symbols,
as is the number of elements of its buffer. Kernels check indices that are data themselves
(:class:`~torchmdla.devices.cpu.ir.kernel_spec.Table`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from torchmdla.compiler.sizes import AnySize, Size, is_positive
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, RepeatLoop, Scatter, Step, TileLoop, View
from torchmdla.errors import CompileError


def conditions_of_bounds(steps: LoopProgram) -> list[Size]:
    """Return the numbers that must not be negative in a call, so that no access is outside of its buffer.

    Raises:
        CompileError: an access is outside of its buffer for all sizes, which is a bug of a pass.
    """
    everything = [*steps.steps, *(step for packing in steps.packings for step in packing.steps)]
    conditions: dict[Size, None] = {}
    for room in (room for step in everything for room in _margins(step)):
        if is_positive(room + 1):
            continue
        if not isinstance(room, Size):
            raise CompileError(f"internal error: an access is {-room} elements outside of its buffer")
        conditions[room] = None
    return list(conditions)


# The view of each buffer of a repeated step, and the number of repetitions.
_Views = Mapping[Buffer, tuple[View, AnySize]]


def _margins(step: Step, views: _Views = MappingProxyType({})) -> Iterator[AnySize]:
    """Yield the number of elements before the least and after the largest place of each access.

    Also yield the repetition count of repeated steps. Peeled iterations are separate steps, so the count may be 0, but
    not negative.
    """
    if isinstance(step, Scatter):
        # The entry checks the place by the program's own checks of indices.
        yield from _margins(step.nest, views)
    elif isinstance(step, LoopNest):
        for access in (*step.accesses, *step.read_accesses):
            yield from _margins_of_access(access, step.sizes, views)
    elif isinstance(step, TileLoop):
        for member, nest in enumerate(step.members):
            whole = step.part(member, step.extents)
            for access in (*nest.accesses, *nest.read_accesses):
                sizes = nest.sizes if access.buffer.kind == "local" else whole.sizes
                yield from _margins_of_access(access, sizes, views)
    elif isinstance(step, RepeatLoop):
        yield step.count
        inner_views = {view.buffer: (view, step.count) for view in step.views}
        for part in step.steps:
            yield from _margins(part, inner_views)


def _margins_of_access(access: Access, sizes: Sequence[AnySize], views: _Views) -> tuple[AnySize, AnySize]:
    flat = access.linearise(len(sizes))
    if access.buffer not in views:
        least, most = flat.range(sizes)
        return least, access.buffer.count - access.width - most
    view, count = views[access.buffer]
    seen = AffineExpr((*flat.factors, view.distance), flat.constant + view.offset)
    least, most = seen.range((*sizes, count))
    return least, view.base.count - access.width - most
