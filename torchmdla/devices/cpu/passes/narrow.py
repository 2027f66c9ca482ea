"""Narrow elements whose products a processor can sum by words of 32 bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES
from torchmdla.devices.cpu.expressions import Expression
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dot_layouts import WORD_BYTES, WordProduct
from torchmdla.devices.cpu.passes.precompute import IsKnown
from torchmdla.devices.cpu.patterns import SUM_OF_INTEGER_PRODUCTS, SUM_OF_PRODUCTS

# A function that returns an access in the new layout of its buffer.
AccessMap = Callable[[Access], Access]


def factors_of(step: LoopNest) -> tuple[Access, Access] | None:
    """Return the two factors of a step that only sums their products, else None."""
    for pattern in (SUM_OF_PRODUCTS, SUM_OF_INTEGER_PRODUCTS):
        for match in pattern.matches(step.values[0]) if len(step.values) == 1 else ():
            return match["left"].payload, match["right"].payload
    return None


class NarrowBuffers(ABC):
    """Set of the buffers of float32, or of 32-bit integers, that can hold narrow elements of type ``element``."""

    element: str

    @abstractmethod
    def __contains__(self, buffer: Buffer) -> bool:
        """Return whether all values written to a buffer can be narrow, and only nests use it."""

    @abstractmethod
    def users(self, buffer: Buffer) -> list[Step]:
        """Return the steps that read or write a buffer."""

    @abstractmethod
    def may_multiply(self, step: LoopNest, product: WordProduct) -> bool:
        """Return whether a product of these buffers can be summed from narrow elements, and is faster that way."""

    def sources(self, buffer: Buffer) -> Collection[Buffer]:
        """Return the buffers that are narrow if ``buffer`` is, since they are copied to it."""
        return ()

    @abstractmethod
    def profitable_buffers(self, steps: LoopProgram, has_products: bool) -> Iterable[Buffer]:
        """Return the buffers that are faster to write and read if narrow, although their words are not multiplied.

        ``has_products`` specifies whether words of other buffers are multiplied.
        """

    @abstractmethod
    def simplify(self, step: LoopNest) -> list[LoopNest]:
        """Simplify the computation on widened values in a step, and return the steps that have to run before it."""

    @abstractmethod
    def widen_load(self, access: Access, map_access: AccessMap) -> Expression:
        """Return the value read at ``access``, widened to 32 bits."""

    @abstractmethod
    def narrow_value(self, value: Expression, access: Access, map_access: AccessMap) -> Expression:
        """Return the narrow form of a 32-bit value for the store at ``access``.

        Buffers that the value reads are narrow already.
        """

    @abstractmethod
    def sum_words(self, step: LoopNest, map_access: AccessMap, words: AccessMap) -> list[LoopNest]:
        """Rewrite a step to sum the products in words of its factors.

        Args:
            step: The step, with loops over the words and over the elements of a word. Its factors are still in 32 bits.
            map_access: Returns the access to an element of a factor.
            words: Returns the access to a word.

        Returns:
            The steps that have to run before the step.
        """


def streamed_weights(
    steps: LoopProgram, narrow: NarrowBuffers, is_known: IsKnown, machine: Machine, decoding: int
) -> list[Buffer]:
    """Return the weights that are read from memory for so few rows that fetching is slower than computing.

    Fewer bytes are then faster, although each vector needs ``decoding`` additional operations.
    """
    gains_by_buffer: dict[Buffer, bool] = {}
    for step in steps.nests():
        for access in factors_of(step) or ():
            if is_known(access) and access.buffer in narrow:
                gains = _gains(step, access, narrow.element, machine, decoding)
                gains_by_buffer[access.buffer] = gains_by_buffer.get(access.buffer, True) and gains
    return [buffer for buffer, gains in gains_by_buffer.items() if gains]


def _gains(step: LoopNest, access: Access, element: str, machine: Machine, decoding: int) -> bool:
    others = [d for d, reduces in enumerate(step.reduction) if not reduces and d not in access.loops]
    rows = math.prod(estimate(step.sizes[d]) for d in others)
    if not machine.is_streamed(estimate(access.buffer.bytes)):
        return False
    lanes = machine.vector_bytes // WORD_BYTES
    wide = max(rows * machine.operation, machine.vector_bytes / machine.memory_bytes)
    read = lanes * ELEMENT_BYTES[element] / machine.memory_bytes
    return max((rows + decoding) * machine.operation, read) < wide
