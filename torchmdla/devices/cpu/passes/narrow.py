"""Kinds of narrow elements of which a processor sums the products that lie in a word of 32 bits."""

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
from torchmdla.devices.cpu.passes.dot_layouts import WORD_BYTES, Product
from torchmdla.devices.cpu.passes.precompute import IsKnown
from torchmdla.devices.cpu.patterns import SUM_OF_INTEGER_PRODUCTS, SUM_OF_PRODUCTS

# An access in the layout of its buffer.
Moved = Callable[[Access], Access]


def factors_of(step: LoopNest) -> tuple[Access, Access] | None:
    """What a step with one value reads to sum the products of, if that is all it does."""
    for pattern in (SUM_OF_PRODUCTS, SUM_OF_INTEGER_PRODUCTS):
        for match in pattern.matches(step.values[0]) if len(step.values) == 1 else ():
            return match["left"].payload, match["right"].payload
    return None


class NarrowBuffers(ABC):
    """The buffers of float32, or of integers of 32 bits, that may hold narrow elements instead. ``element``: their
    type."""

    element: str

    @abstractmethod
    def __contains__(self, buffer: Buffer) -> bool:
        """Whether all that is written to a buffer can be narrow, and nests alone use it."""

    @abstractmethod
    def users(self, buffer: Buffer) -> list[Step]:
        """The steps that read or write a buffer."""

    @abstractmethod
    def multiplies(self, step: LoopNest, product: Product) -> bool:
        """Whether a sum of products of such buffers is one of narrow elements, and takes less time so."""

    def sources(self, buffer: Buffer) -> Collection[Buffer]:
        """What is narrow if ``buffer`` is, since it is copied to it."""
        return ()

    @abstractmethod
    def worth_storing(self, steps: LoopProgram, has_products: bool) -> Iterable[Buffer]:
        """What takes less time to write and read if it is narrow, although no word of it is multiplied.
        ``has_products``: whether words of others are."""

    @abstractmethod
    def simplify(self, step: LoopNest) -> list[LoopNest]:
        """Simplifies what a step computes of what it has widened; returns what has to come before it."""

    @abstractmethod
    def widened(self, access: Access, moved: Moved) -> Expression:
        """What is read, in 32 bits."""

    @abstractmethod
    def narrowed(self, value: Expression, access: Access, moved: Moved) -> Expression:
        """What is stored at ``access`` of a value of 32 bits; of what is read, its buffer is narrow already."""

    @abstractmethod
    def sum_words(self, step: LoopNest, moved: Moved, words: Moved) -> list[LoopNest]:
        """Lets a step sum the products in words of its factors; returns what has to come before it.

        Args:
            step: has loops for the words and for the elements of a word; its factors are in 32 bits still.
            moved: gives the access to an element of them.
            words: gives the access to a word.
        """


def streamed_weights(
    steps: LoopProgram, narrow: NarrowBuffers, is_known: IsKnown, machine: Machine, decoding: int
) -> list[Buffer]:
    """Weights that come from memory for so few rows that to fetch them takes longer than to compute with them: fewer
    bytes are faster, although a vector takes ``decoding`` operations more."""
    found: dict[Buffer, bool] = {}
    for step in steps.nests():
        for access in factors_of(step) or ():
            if is_known(access) and access.buffer in narrow:
                gains = _gains(step, access, narrow.element, machine, decoding)
                found[access.buffer] = found.get(access.buffer, True) and gains
    return [buffer for buffer, gains in found.items() if gains]


def _gains(step: LoopNest, access: Access, element: str, machine: Machine, decoding: int) -> bool:
    others = [d for d, reduces in enumerate(step.reduction) if not reduces and d not in access.loops]
    rows = math.prod(estimate(step.sizes[d]) for d in others)
    if not machine.streams(estimate(access.buffer.bytes)):
        return False
    lanes = machine.vector_bytes // WORD_BYTES
    wide = max(rows * machine.operation, machine.vector_bytes / machine.memory_bytes)
    read = lanes * ELEMENT_BYTES[element] / machine.memory_bytes
    return max((rows + decoding) * machine.operation, read) < wide
