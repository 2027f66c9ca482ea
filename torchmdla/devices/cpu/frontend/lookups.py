"""Table lookups at linear indices: a body that reads another buffer so has one more operand (a flip, a shift)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchmdla.devices.cpu.nests import Instruction, constant_number, renumbered

# An index: the factor of each loop, and a constant.
Index = tuple[dict[int, int], int]


@dataclass(frozen=True)
class Lookups:
    """A body with operands in the place of lookups. ``operands``: the table and indices of each, new inputs behind the
    nest's own; ``tables``: the tables that are still looked up, by what their number was."""

    instructions: tuple[Instruction, ...]
    yields: tuple[int, ...]
    operands: tuple[tuple[int, tuple[Index, ...]], ...]
    tables: tuple[int, ...]


def as_operands(
    body: Sequence[Instruction],
    yields: Sequence[int],
    inputs: int,
    first: int,
    sizes: Sequence[int],
    shapes: Sequence[Sequence[int]],
) -> Lookups:
    """Makes operands of the lookups of a ``body`` whose indices are linear in the loops' indices and never out of
    bounds, and drops what nothing needs then.

    Args:
        inputs: how many values of the body are inputs; they come first.
        first: the number of the first instruction's value.
        sizes: of the loops.
        shapes: of the tables.
    """
    indices = _linear_values(body, first)
    found: dict[int, tuple[int, tuple[Index, ...]]] = {}
    for number, instruction in enumerate(body, first):
        if instruction.name == "load" and all(v in indices for v in instruction.operands):
            place = tuple(indices[v] for v in instruction.operands)
            if _is_inside(place, sizes, shapes[instruction.payload]):
                found[number] = instruction.payload, place
    kept = _needed(body, yields, first, found)
    tables = tuple(sorted({body[n - first].payload for n in kept if body[n - first].name == "load"}))
    moved = {number: inputs + k for k, number in enumerate(found)}
    moved.update({number: first + len(found) + k for k, number in enumerate(kept)})

    def renumber(value: int) -> int:
        return value if value < inputs else moved.get(value, value + len(found))

    instructions = renumbered((body[number - first] for number in kept), renumber)
    return Lookups(
        tuple(replace(i, payload=tables.index(i.payload)) if i.name == "load" else i for i in instructions),
        tuple(map(renumber, yields)),
        tuple(found.values()),
        tables,
    )


def _linear_values(body: Sequence[Instruction], first: int) -> dict[int, Index]:
    """The values of a body that are linear in the loops' indices, by number."""
    known: dict[int, Index] = {}
    for number, instruction in enumerate(body, first):
        write = _LINEAR.get(instruction.name)
        if write is not None and instruction.result == "i64" and all(v in known for v in instruction.operands):
            index = write(instruction, [known[v] for v in instruction.operands])
            if index is not None:
                known[number] = index
    return known


def _constant(instruction: Instruction, operands: Sequence[Index]) -> Index | None:
    value = constant_number(instruction.attributes)
    return ({}, value) if isinstance(value, int) else None


def _sum(first: Index, second: Index, sign: int) -> Index:
    loops = {**first[0], **second[0]}
    factors = {loop: first[0].get(loop, 0) + sign * second[0].get(loop, 0) for loop in loops}
    return factors, first[1] + sign * second[1]


def _product(instruction: Instruction, operands: Sequence[Index]) -> Index | None:
    numbers = sorted(operands, key=lambda index: bool(index[0]))
    if numbers[0][0]:
        return None
    factor, (factors, constant) = numbers[0][1], numbers[1]
    return {loop: f * factor for loop, f in factors.items()}, constant * factor


_LINEAR: Mapping[str, Callable[[Instruction, Sequence[Index]], Index | None]] = {
    "arith.constant": _constant,
    "index": lambda instruction, operands: ({instruction.payload: 1}, 0),
    "arith.index_cast": lambda instruction, operands: operands[0],
    "arith.addi": lambda instruction, operands: _sum(operands[0], operands[1], 1),
    "arith.subi": lambda instruction, operands: _sum(operands[0], operands[1], -1),
    "arith.muli": _product,
}


def _is_inside(place: Sequence[Index], sizes: Sequence[int], shape: Sequence[int]) -> bool:
    for (factors, constant), length in zip(place, shape, strict=True):
        ends = [factor * (sizes[loop] - 1) for loop, factor in factors.items()]
        if constant + sum(min(0, end) for end in ends) < 0 or constant + sum(max(0, end) for end in ends) >= length:
            return False
    return True


def _needed(body: Sequence[Instruction], yields: Sequence[int], first: int, found: Mapping[int, object]) -> list[int]:
    """The numbers of the instructions that results and assertions need where the lookups ``found`` are operands."""
    needed = set(yields)
    for number, instruction in reversed(list(enumerate(body, first))):
        if number not in found and (number in needed or instruction.name == "assert"):
            needed.update([number, *instruction.operands])
    return [number for number in range(first, first + len(body)) if number in needed and number not in found]
