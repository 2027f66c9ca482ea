"""Layouts for sums of products of narrow elements, several of which are packed in a word of 32 bits.

This module selects the loop that walks words, and the layouts of the factors in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, quotient
from torchmdla.devices.cpu.ir.accesses import Access, Buffer
from torchmdla.devices.cpu.ir.expressions import Expression, constant, map_loads, operation
from torchmdla.devices.cpu.ir.loop_program import LoopNest

WORD = "i32"
WORD_BYTES = 4


@dataclass(frozen=True)
class Rows:
    """Layout in which words are along the last dimension of a buffer, as elements are."""


@dataclass(frozen=True)
class Interleaved:
    """Layout in which the elements of a word, along ``dimension`` of a buffer, are in an additional last dimension.

    Words have ``count`` elements. The first ``used`` ones are in use: all, or as many as there are if these are fewer
    than a word. The rest of the word is zero.
    """

    dimension: int
    count: int
    used: int

    @property
    def is_part(self) -> bool:
        """Return whether the elements are a part of one word."""
        return self.used < self.count


Layout = Rows | Interleaved


@dataclass(frozen=True)
class WordProduct:
    """Sum of products in ``nest``, those of a word in each iteration of ``loop`` if its factors have ``layouts``."""

    nest: LoopNest
    loop: int
    layouts: Mapping[Buffer, Layout]


def product_of_words(step: LoopNest, count: int) -> WordProduct | None:
    """Return the loop and layouts with which a sum of products can read words of ``count`` elements.

    Reduced loops that walk memory as one loop are joined where words would end with each of them. The loops over
    channels and pixels of a flattened image are an example.
    """
    for nest in (step, _collapse_loops(step)):
        candidates = (_product_along(nest, loop, count) for loop, reduces in enumerate(nest.reduction) if reduces)
        products = [product for product in candidates if product is not None]
        if products:  # The one with as many factors in rows as possible.
            return max(products, key=lambda product: [*product.layouts.values()].count(Rows()))
    return None


def _product_along(step: LoopNest, loop: int, count: int) -> WordProduct | None:
    if not _elements_in_use(step.sizes[loop], count) or loop in step.indexed_loops:
        return None
    layouts = {access.buffer: layout for access in step.inputs if (layout := _layout(access, loop, count)) is not None}
    return WordProduct(step, loop, layouts) if len(layouts) == len(step.inputs) else None


def _collapse_loops(step: LoopNest) -> LoopNest:
    """Return a copy in which reduced loops that walk memory as one loop are joined."""
    joined = replace(step)
    while (pair := _find_collapsible_loops(joined)) is not None:
        outer, inner = pair
        sizes = list(joined.sizes)
        sizes[inner], sizes[outer] = sizes[outer] * sizes[inner], 1
        joined.sizes = tuple(sizes)
        joined.map_body(partial(map_loads, function=partial(_drop_loop, loop=outer, inner=inner)))
    return joined


def _find_collapsible_loops(step: LoopNest) -> tuple[int, int] | None:
    loops = [
        d for d, entry in enumerate(step.reduction) if entry and step.sizes[d] != 1 and d not in step.indexed_loops
    ]
    flats = [access.linearise(len(step.sizes)).factors for access in step.inputs]
    for outer, inner in itertools.permutations(loops, 2):
        if all(entry[outer] == entry[inner] * step.sizes[inner] and entry[inner] for entry in flats):
            return outer, inner
    return None


def _drop_loop(access: Access, loop: int, inner: int) -> Access:
    """Return ``access`` without ``loop``, whose iterations the loop ``inner`` covers in addition.

    If the loops index different dimensions, the access is by its place in memory.
    """
    dimensions = [d for d, index in enumerate(access.indices) if index.factors[loop] or index.factors[inner]]
    if len(dimensions) == 1:
        return access.at_iteration(loop, 0)
    flat = access.linearise(len(access.indices[0].factors))
    return replace(access, indices=(flat.at_iteration(loop, 0),))


def _layout(access: Access, loop: int, count: int) -> Layout | None:
    """Return the layout of words for an access whose words are along ``loop``."""
    dimensions = [d for d, index in enumerate(access.indices) if index.factors[loop]]
    if len(dimensions) != 1 or access.width != 1:
        return None
    (dimension,) = dimensions
    index, sizes = access.indices[dimension], access.buffer.sizes
    if dimension == len(access.indices) - 1:
        size = sizes[dimension] if len(sizes) == len(access.indices) else access.buffer.count
        others = [factor for k, factor in enumerate(index.factors) if k != loop]
        in_words = all(quotient(number, count) is not None for number in (size, index.constant, *others))
        return Rows() if index.factors[loop] == 1 and in_words else None
    used = _elements_in_use(sizes[dimension], count) if index.is_loop() else 0
    return Interleaved(dimension, count, used) if used else None


def _elements_in_use(size: AnySize, count: int) -> int:
    """Return the elements in use of each word if ``size`` elements are whole words or a part of one, else 0."""
    if quotient(size, count) is not None:
        return count
    return size if isinstance(size, int) and 1 < size < count else 0


def agree_on_layouts(
    products: Iterable[WordProduct], users: Callable[[Buffer], list[LoopNest]]
) -> dict[Buffer, Layout]:
    """Return the layouts of factors that all their products agree on, and that all other steps support."""
    agreed = list(products)
    while True:
        candidates: dict[Buffer, set[Layout]] = {}
        for product in agreed:
            for buffer, layout in product.layouts.items():
                candidates.setdefault(buffer, set()).add(layout)
        refused = {
            b
            for b, choices in candidates.items()
            if len(choices) > 1 or not all(_may_use_layout(step, b, *choices) for step in users(b))
        }
        if not refused:
            return {buffer: layout for buffer, (layout,) in candidates.items()}
        agreed = [product for product in agreed if refused.isdisjoint(product.layouts)]


def _may_use_layout(step: LoopNest, buffer: Buffer, layout: Layout) -> bool:
    if isinstance(layout, Rows) or layout.is_part:
        return True
    indices = [access.indices[layout.dimension] for access in step.accesses if access.buffer is buffer]
    return all(index.is_loop() and quotient(step.sizes[index.loops[0]], layout.count) is not None for index in indices)


def apply_layout(buffer: Buffer, element: str, layout: Layout) -> Buffer:
    """Return a buffer of another element type in a layout."""
    sizes = list(buffer.sizes)
    if isinstance(layout, Interleaved):
        sizes[layout.dimension] = 1 if layout.is_part else sizes[layout.dimension] // layout.count
        sizes.append(layout.count)
    return replace(buffer, element=element, sizes=tuple(sizes))


def shift(name: str, word: Expression, bits: int) -> Expression:
    """Return a word after the op ``name`` shifted it by ``bits``."""
    return operation(name, [word, constant(bits, WORD)], WORD) if bits else word


def word_access(access: Access, inner: int) -> Access:
    """Return an access to all elements along the loop ``inner``, as a word."""
    return replace(access.at_iteration(inner, 0), word=WORD)
