"""Where a value comes from: the nest that makes a buffer, and what it reduces."""

from __future__ import annotations

from torchmdla.devices.cpu.accesses import Access
from torchmdla.devices.cpu.loop_program import LoopNest, Users, is_elementwise, is_found_by_index
from torchmdla.devices.cpu.passes.rematerialise import through
from torchmdla.devices.cpu.patterns import Pattern


def maker_of(users: Users, access: Access) -> LoopNest | None:
    """The nest that computes all of a buffer, each element by the indices of loops, if nothing else writes it."""
    writers = [step for step in users.of(access.buffer) if access.buffer in step.writes]
    maker = writers[0] if len(writers) == 1 else None
    if not isinstance(maker, LoopNest) or len(maker.outputs) > 1 or maker.epilogue or maker.checks:
        return None
    return maker if is_found_by_index(maker, maker.outputs[0]) else None


def elementwise_maker(users: Users, access: Access) -> LoopNest | None:
    """The nest that makes a temporary, if whoever reads an element can compute it instead."""
    maker, buffer = maker_of(users, access), access.buffer
    return maker if maker and is_elementwise(maker) and buffer.kind == "temporary" and not buffer.fixed else None


def reduces(users: Users, reduction: Pattern, start: float, result: Access, row: Access) -> bool:
    """Whether ``result`` is made by a reduction, from ``start`` on, of the row that ``row`` lies in."""
    maker = maker_of(users, result)
    if maker is None or maker.initial is None or maker.initial.payload != start:
        return False
    term = next((found["term"].payload for found in reduction.matches(maker.values[0])), None)
    if term is None or term.buffer is not row.buffer:
        return False
    indices = zip(row.indices, through(term, maker, result).indices, term.indices, strict=True)
    return all(own == its or any(maker.reduction[loop] for loop in i.loops) for own, its, i in indices)
