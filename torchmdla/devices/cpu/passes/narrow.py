"""Kinds of narrow elements of which a processor sums the products that lie in a word of 32 bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar

from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import Expression
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step
from torchmdla.devices.cpu.passes.dot_layouts import Product
from torchmdla.devices.cpu.patterns import SUM_OF_INTEGER_PRODUCTS, SUM_OF_PRODUCTS

WORD = "i32"
WORD_BYTES = 4

# An access in the layout of its buffer.
Moved = Callable[[Access], Access]


def factors_of(step: LoopNest) -> tuple[Access, Access] | None:
    """What a step with one value reads to sum the products of, if that is all it does."""
    for pattern in (SUM_OF_PRODUCTS, SUM_OF_INTEGER_PRODUCTS):
        for match in pattern.matches(step.values[0]):
            return match["left"].payload, match["right"].payload
    return None


class NarrowBuffers(ABC):
    """The buffers of float32, or of integers of 32 bits, that may hold narrow elements instead. ``element``: their
    type."""

    element: ClassVar[str]

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

    def worth_storing(self, steps: LoopProgram) -> Iterable[Buffer]:
        """What takes less time to write and read if it is narrow, whether it is multiplied or not."""
        return ()

    @abstractmethod
    def simplify(self, step: LoopNest) -> None:
        """Simplifies what a step computes of what it has widened."""

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
