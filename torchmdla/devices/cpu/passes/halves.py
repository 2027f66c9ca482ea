"""Narrow buffers of 16-bit floats.

PyTorch computes these in float32, so a factor is a float32 that some step has widened.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import Expression, accumulator, load, operation
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dot_layouts import Product
from torchmdla.devices.cpu.passes.narrow import Moved, NarrowBuffers, factors_of, streamed_weights
from torchmdla.devices.cpu.passes.precompute import known_accesses
from torchmdla.devices.cpu.passes.roundings import WIDE, HalfBuffers, rounded
from torchmdla.devices.cpu.passes.winograd import takes_less

# The time of a sum of pairs, relative to that of as many single products.
_PART = 0.5


# The cost of widening a vector.
_DECODING = 1


class NarrowHalves(NarrowBuffers):
    """Set of the buffers all of whose values are widened floats of 16 bits, of type ``element``."""

    def __init__(self, steps: LoopProgram, machine: Machine, element: str) -> None:
        self.element = element
        self._steps, self._machine = steps, machine
        self._halves = HalfBuffers(steps, element)
        self._is_known = known_accesses(steps)

    def __contains__(self, buffer: Buffer) -> bool:
        return buffer in self._halves

    def users(self, buffer: Buffer) -> list[Step]:
        return self._halves.users(buffer)

    def multiplies(self, step: LoopNest, product: Product) -> bool:
        if self.element != "bf16" or not self._machine.dots_bf16:
            return False
        return not takes_less(self._steps, step, self._is_known, self._machine, _PART)

    def worth_storing(self, steps: LoopProgram, has_products: bool) -> Iterable[Buffer]:
        return streamed_weights(steps, self, self._is_known, self._machine, _DECODING)

    def simplify(self, step: LoopNest) -> list[LoopNest]:
        return []

    def widened(self, access: Access, moved: Moved) -> Expression:
        return operation("arith.extf", [load(moved(access))], WIDE)

    def narrowed(self, value: Expression, access: Access, moved: Moved) -> Expression:
        return rounded(value, self.element)

    def sum_words(self, step: LoopNest, moved: Moved, words: Moved) -> list[LoopNest]:
        products = operation("dot", [load(words(factor)) for factor in factors_of(step) or ()], WIDE)
        step.values = (operation("arith.addf", [accumulator(0, WIDE), products], WIDE),)
        return []
