"""Merge of equal factors of products.

Several layers with fewer products may each compute the sums of one image, or of one left factor. These sums are
computed once.

::

    nest d0:64 d1:32 { x[0..6, d0, d1] = … input0 }        nest d0:64 d1:32 { x[0..6, d0, d1] = … input0 }
    nest d0:7 d1:64 d2:48 d3:32+ { … x * query }      →    nest d0:7 d1:64 d2:48 d3:32+ { … x * query }
    nest d0:64 d1:32 { y[0..6, d0, d1] = … input0 }        nest d0:7 d1:64 d2:48 d3:32+ { … x * key }
    nest d0:7 d1:64 d2:48 d3:32+ { … y * key }
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, TileLoop, Users, contracts


def merge_equal(steps: LoopProgram) -> None:
    """Replace buffers with equal contents by one buffer in the products that read them, in place."""
    users, position = Users(steps.steps), {step: k for k, step in enumerate(steps.steps)}
    known: dict[Hashable, tuple[Buffer, int]] = {}
    removed: set[Step] = set()
    for buffer in steps.buffers():
        makers, readers = _makers_and_readers(users.of(buffer), buffer)
        if not makers or not readers:
            continue
        key = (buffer.element, buffer.sizes, tuple(map(_computed, makers)))
        first, since = known.setdefault(key, (buffer, position[makers[0]]))
        read = {other for maker in makers for other in maker.reads}
        is_stable = all(position[step] < since for other in read for step in users.of(other) if other in step.writes)
        if first is not buffer and is_stable:
            for reader in readers:
                reader.map_accesses(partial(Access.instead, old=buffer, new=first))
            removed.update(makers)
    steps.steps = [step for step in steps.steps if step not in removed]


def _makers_and_readers(
    users: Sequence[Step], buffer: Buffer
) -> tuple[Sequence[LoopNest], Sequence[LoopNest | TileLoop]]:
    """Return the steps that write only a temporary, and the later steps that read it, if these are all products."""
    makers = [step for step in users if isinstance(step, LoopNest) and _only_writes(step, buffer)]
    readers = [step for step in users if isinstance(step, LoopNest | TileLoop) and _multiplies(step, buffer)]
    is_free = buffer.kind == "temporary" and not buffer.fixed
    return (makers, readers) if is_free and [*makers, *readers] == list(users) else ((), ())


def _only_writes(step: LoopNest, buffer: Buffer) -> bool:
    return set(step.writes) == {buffer} and buffer not in step.reads and not (step.checks or step.tables)


def _multiplies(step: LoopNest | TileLoop, buffer: Buffer) -> bool:
    nests = step.members if isinstance(step, TileLoop) else (step,)
    return buffer not in step.writes and all(contracts(nest) for nest in nests if buffer in nest.reads)


def _computed(step: LoopNest) -> Hashable:
    """Return the computation of a step, independent of the buffer that it writes."""
    places = tuple(access.indices for access in step.written_accesses)
    return step.sizes, step.reduction, step.values, step.initial, step.epilogue and step.epilogue.values, places
