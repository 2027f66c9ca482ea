"""The values of a nest and of its epilogue in one numbering, and what each varies with.

First come the values of the nest's body as :class:`~torchmdla.devices.cpu.kernel_spec.Instruction` counts them, then
the epilogue's inputs, scalars and results. The reduced outputs that an epilogue starts from are the numbers of the
nest's outputs: within the reduction these hold what is accumulated, after it the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic

from torchmdla.devices.cpu.kernel_spec import AnyNest, Instruction, KernelEpilogue, KernelSpec, Number, Operand

# Stands for the reduction among the loops that a value varies with, also where no loop is left of it.
ACCUMULATION = -1


@dataclass(frozen=True)
class Numbering(Generic[Number]):
    """``sources``: the operand that a value is loaded from. ``scalars``: the types of the values that are passed as
    scalars, in order. ``instructions``: the instruction that computes a value, its operands in this numbering.
    ``results``: the value that each stored operand gets. ``varies``: for each value the loops that it varies with,
    and ``ACCUMULATION`` if it depends on what is accumulated.
    ``first_output`` and ``first_epilogue``: the first number of the nest's outputs, and of the epilogue's values."""

    operands: tuple[Operand[Number], ...]
    sources: dict[int, int]
    scalars: dict[int, str]
    instructions: dict[int, Instruction]
    results: tuple[tuple[int, int], ...]
    varies: tuple[frozenset[int], ...]
    first_output: int
    first_epilogue: int

    def is_used(self, number: int) -> bool:
        """Whether an instruction reads the value or an operand gets it."""
        stored = any(number == value for value, _ in self.results)
        return stored or any(number in i.operands for i in self.instructions.values())


def numbering(nest: KernelSpec[Number]) -> Numbering[Number]:
    """The values of ``nest``."""
    outputs = len(nest.inputs)
    scalars = outputs + len(nest.outputs)
    body = scalars + len(nest.scalars)
    end = body + len(nest.body)
    sources = {number: number for number in range(outputs if nest.epilogue else scalars)}
    types = {scalars + k: element for k, element in enumerate(nest.scalars)}
    instructions = {body + k: instruction for k, instruction in enumerate(nest.body)}
    results = tuple((value, outputs + k) for k, value in enumerate(nest.yields))
    if nest.epilogue is not None:
        first_result = outputs + len(nest.epilogue.inputs)
        sources.update({end + k: outputs + k for k in range(len(nest.epilogue.inputs))})
        types.update({end + len(nest.epilogue.inputs) + k: t for k, t in enumerate(nest.epilogue.scalars)})
        moved, yields = _moved(nest.epilogue, len(nest.outputs), outputs, end)
        instructions.update(moved)
        results = tuple((value, first_result + k) for k, value in enumerate(yields))
    varies = _varies(nest, sources, instructions, end)
    return Numbering(nest.operands, sources, types, instructions, results, varies, outputs, end)


def multiply_adds(nest: AnyNest, values: Numbering[Number]) -> dict[int, int]:
    """Additions to what is accumulated, each with the product that it adds and that nothing else reads: one instruction
    can do both, with one rounding."""
    outputs = range(values.first_output, values.first_output + len(nest.outputs))
    found = {}
    for product, instruction in values.instructions.items():
        if instruction.name != "arith.mulf" or instruction.result not in ("f32", "f64"):
            continue
        readers = [(n, i) for n, i in values.instructions.items() if product in i.operands]
        stored = any(product == value for value, _ in values.results)
        if len(readers) != 1 or stored or product in nest.yields:
            continue
        addition, reader = readers[0]
        if reader.name == "arith.addf" and any(v in outputs for v in reader.operands):
            found[addition] = product
    return found


def _moved(
    epilogue: KernelEpilogue[Number], reduced: int, outputs: int, end: int
) -> tuple[dict[int, Instruction], tuple[int, ...]]:
    """The epilogue's instructions and results in the common numbering."""

    def renumbered(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(outputs + v if v < reduced else end + v - reduced for v in values)

    first = end + len(epilogue.inputs) + len(epilogue.scalars)
    instructions = {
        first + k: replace(instruction, operands=renumbered(instruction.operands))
        for k, instruction in enumerate(epilogue.body)
    }
    return instructions, renumbered(epilogue.yields)


def _varies(
    nest: AnyNest, sources: dict[int, int], instructions: dict[int, Instruction], end: int
) -> tuple[frozenset[int], ...]:
    every = frozenset(range(len(nest.sizes)))
    outputs = range(len(nest.inputs), len(nest.inputs) + len(nest.outputs))
    found: list[frozenset[int]] = []
    for number in range(max([end - 1, *sources, *instructions]) + 1):
        if number in outputs and nest.accumulates:
            found.append(every | {ACCUMULATION})
        elif number in sources:
            strides = nest.operands[sources[number]].strides
            found.append(frozenset(d for d, stride in enumerate(strides) if stride != 0))
        elif number in instructions:
            instruction = instructions[number]
            own = frozenset([instruction.payload]) if instruction.name == "index" else frozenset()
            found.append(own.union(*(found[v] for v in instruction.operands)))
        else:
            found.append(frozenset())
    return tuple(found)
