"""Search for the nest that computes a buffer, and for the operands of its reduction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.loop_program import LoopNest, Step, Users, is_elementwise, is_found_by_index
from torchmdla.devices.cpu.passes.rematerialise import through
from torchmdla.devices.cpu.patterns import Pattern


def writers_of(users: Users, buffer: Buffer) -> list[Step]:
    """Return the steps that write to a buffer."""
    return [step for step in users.of(buffer) if buffer in step.writes]


def writer_of(users: Users, access: Access) -> LoopNest | None:
    """Return the first step that writes to a buffer, if it is a nest that writes to nothing else."""
    writer = next(iter(writers_of(users, access.buffer)), None)
    if not isinstance(writer, LoopNest) or len(writer.outputs) > 1:
        return None
    return writer if len(writer.outputs[0].indices) == len(access.indices) else None


def maker_of(users: Users, access: Access) -> LoopNest | None:
    """Return the nest that alone writes a buffer, and computes each element at the indices of its loops."""
    maker = writer_of(users, access)
    if maker is None or writers_of(users, access.buffer) != [maker] or maker.epilogue or maker.checks:
        return None
    return maker if is_found_by_index(maker, maker.outputs[0]) else None


def elementwise_maker(users: Users, access: Access) -> LoopNest | None:
    """Return the nest that computes a temporary, if a reader of an element can compute it instead."""
    maker, buffer = maker_of(users, access), access.buffer
    return maker if maker and is_elementwise(maker) and buffer.kind == "temporary" and not buffer.fixed else None


class MadeElsewhere(Protocol):
    """Value that ``maker`` computes and another nest reads as ``read``."""

    @property
    def users(self) -> Users: ...
    @property
    def maker(self) -> LoopNest: ...
    @property
    def read(self) -> Access: ...


# Conditions under which a nest can read its maker's operands in the place of the maker's result.
CAN_LOOK_THROUGH: Mapping[str, Callable[[MadeElsewhere], bool]] = {
    "one nest writes what is read": lambda case: writers_of(case.users, case.read.buffer) == [case.maker],
    "it writes each element at the indices of its loops": lambda case: is_found_by_index(
        case.maker, case.maker.outputs[0]
    ),
    "it computes each element on its own": lambda case: is_elementwise(case.maker),
}


def reduces(users: Users, reduction: Pattern, start: float, result: Access, row: Access) -> bool:
    """Return whether a reduction from ``start`` on computes ``result`` from the row of ``row``."""
    maker = maker_of(users, result)
    if maker is None or maker.initial is None or maker.initial.payload != start:
        return False
    term = next((match["term"].payload for match in reduction.matches(maker.values[0])), None)
    if term is None or term.buffer is not row.buffer:
        return False
    indices = zip(row.indices, through(term, maker, result).indices, term.indices, strict=True)
    return all(index == mapped or any(maker.reduction[loop] for loop in i.loops) for index, mapped, i in indices)
