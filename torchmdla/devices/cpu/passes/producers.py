"""Search for the nest that computes a buffer, and for the operands of its reduction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.loop_program import LoopNest, Step, Users, is_elementwise, is_permutation
from torchmdla.devices.cpu.ir.patterns import Pattern
from torchmdla.devices.cpu.passes.rematerialise import operand_access


def find_writers(users: Users, buffer: Buffer) -> list[Step]:
    """Return the steps that write to a buffer."""
    return [step for step in users.of(buffer) if buffer in step.writes]


def find_writer(users: Users, access: Access) -> LoopNest | None:
    """Return the first step that writes to a buffer, if it is a nest that writes to nothing else."""
    writer = next(iter(find_writers(users, access.buffer)), None)
    if not isinstance(writer, LoopNest) or len(writer.outputs) > 1:
        return None
    return writer if len(writer.outputs[0].indices) == len(access.indices) else None


def find_producer(users: Users, access: Access) -> LoopNest | None:
    """Return the nest that alone writes a buffer, and computes each element at the indices of its loops."""
    producer = find_writer(users, access)
    if producer is None or find_writers(users, access.buffer) != [producer] or producer.epilogue or producer.checks:
        return None
    return producer if is_permutation(producer, producer.outputs[0]) else None


def find_elementwise_producer(users: Users, access: Access) -> LoopNest | None:
    """Return the nest that computes a temporary, if a reader of an element can compute it instead."""
    producer = find_producer(users, access)
    return producer if producer and is_elementwise(producer) and access.buffer.is_free else None


class ProducedValue(Protocol):
    """Value that ``producer`` computes and another nest reads as ``read``."""

    @property
    def users(self) -> Users: ...
    @property
    def producer(self) -> LoopNest: ...
    @property
    def read(self) -> Access: ...


# Conditions under which a nest can read its producer's operands in the place of the producer's result.
INLINING_REQUIREMENTS: Mapping[str, Callable[[ProducedValue], bool]] = {
    "one nest writes what is read": lambda case: find_writers(case.users, case.read.buffer) == [case.producer],
    "it writes each element at the indices of its loops": lambda case: is_permutation(
        case.producer, case.producer.outputs[0]
    ),
    "it computes each element on its own": lambda case: is_elementwise(case.producer),
}


def is_reduced_from(users: Users, reduction: Pattern, start: float, result: Access, row: Access) -> bool:
    """Return whether a reduction from ``start`` on computes ``result`` from the row of ``row``."""
    producer = find_producer(users, result)
    if producer is None or producer.initial is None or producer.initial.payload != start:
        return False
    term = next((match["term"].payload for match in reduction.matches(producer.values[0])), None)
    if term is None or term.buffer is not row.buffer:
        return False
    indices = zip(row.indices, operand_access(term, producer, result).indices, term.indices, strict=True)
    return all(index == mapped or any(producer.reduction[loop] for loop in i.loops) for index, mapped, i in indices)
