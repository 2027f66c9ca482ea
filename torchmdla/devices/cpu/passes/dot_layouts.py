"""Layouts for sums of products of narrow elements, several of which are packed in a word of 32 bits.

This module selects the loop that walks words, and the layouts of the factors in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, quotient
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import Expression, map_loads
from torchmdla.devices.cpu.loop_program import LoopNest, Step

WORD = "i32"
WORD_BYTES = 4


@dataclass(frozen=True)
class Rows:
    """Layout in which words are along the last dimension of a buffer, as elements are."""


@dataclass(frozen=True)
class Interleaved:
    """Layout in which the elements of a word, along ``dimension`` of a buffer, are in an additional last dimension.

    The rest of a word is zero where the buffer has fewer elements.
    """

    dimension: int


Layout = Rows | Interleaved


@dataclass(frozen=True)
class WordProduct:
    """Nest that sums products, those of a word in each iteration of ``loop`` if its factors have ``layouts``.

    ``sizes`` and ``values`` are those of the nest after loops were joined.
    """

    loop: int
    layouts: Mapping[Buffer, Layout]
    sizes: tuple[AnySize, ...]
    values: tuple[Expression, ...]


def product_of_words(step: LoopNest, count: int) -> WordProduct | None:
    """Return the loop and layouts with which a sum of products can read words of ``count`` elements.

    Reduced loops that walk memory as one loop are joined where words would end with each of them. The loops over
    channels and pixels of a flattened image are an example.
    """
    return _choose_product(step, count) or _choose_product(_collapse_loops(step), count)


def _choose_product(step: LoopNest, count: int) -> WordProduct | None:
    """Return the product of words with as many factors in :class:`Rows` as possible."""
    candidates = (_product_along(step, loop, count) for loop, reduces in enumerate(step.reduction) if reduces)
    return max(filter(None, candidates), key=_count_rows, default=None)


def _count_rows(product: WordProduct) -> int:
    return sum(isinstance(layout, Rows) for layout in product.layouts.values())


def _product_along(step: LoopNest, loop: int, count: int) -> WordProduct | None:
    if not _may_form_words(step.sizes[loop], count) or loop in step.indexed_loops:
        return None
    layouts = {access.buffer: layout for access in step.inputs if (layout := _layout(access, loop, count)) is not None}
    return WordProduct(loop, layouts, step.sizes, step.values) if len(layouts) == len(step.inputs) else None


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
    return replace(access, indices=(replace(flat, factors=drop_factor(flat.factors, loop)),))


def drop_factor(factors: tuple[AnySize, ...], loop: int) -> tuple[AnySize, ...]:
    """Return the factors of an index without that of ``loop``."""
    return (*factors[:loop], 0, *factors[loop + 1 :])


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
    return Interleaved(dimension) if index.is_loop() and _may_form_words(sizes[dimension], count) else None


def _may_form_words(size: AnySize, count: int) -> bool:
    """Return whether ``size`` elements are whole words, or a part of a single word."""
    return quotient(size, count) is not None or is_part_of_word(size, count)


def is_part_of_word(size: AnySize, count: int) -> bool:
    """Return whether ``size`` elements are a part of one word.

    Two elements are a full word where words are pairs.
    """
    return isinstance(size, int) and 1 < size < count


def agree_on_layouts(
    products: Iterable[WordProduct], count: int, users: Callable[[Buffer], Sequence[Step]]
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
            if len(choices) > 1 or not may_use_layouts(b, choices, count, users(b))
        }
        if not refused:
            return {buffer: layout for buffer, (layout,) in candidates.items()}
        agreed = [product for product in agreed if refused.isdisjoint(product.layouts)]


def may_use_layouts(buffer: Buffer, layouts: Iterable[Layout], count: int, users: Iterable[Step]) -> bool:
    """Return whether all users of a buffer can use it in any of ``layouts``."""
    nests = [step for step in users if isinstance(step, LoopNest)]
    return all(_may_use_layout(step, buffer, layout, count) for step in nests for layout in layouts)


def _may_use_layout(step: LoopNest, buffer: Buffer, layout: Layout, count: int) -> bool:
    if buffer in [table.buffer for table in step.tables]:
        return False
    if isinstance(layout, Rows):
        return True
    if is_part_of_word(buffer.sizes[layout.dimension], count):
        return True
    indices = [access.indices[layout.dimension] for access in step.accesses if access.buffer is buffer]
    return all(index.is_loop() and quotient(step.sizes[index.loops[0]], count) is not None for index in indices)


def apply_layout(buffer: Buffer, element: str, layout: Layout, count: int) -> Buffer:
    """Return a buffer of another element type in a layout."""
    sizes = list(buffer.sizes)
    if isinstance(layout, Interleaved):
        size = sizes[layout.dimension]
        sizes[layout.dimension] = 1 if is_part_of_word(size, count) else size // count
        sizes.append(count)
    return replace(buffer, element=element, sizes=tuple(sizes))


def word_access(access: Access, inner: int) -> Access:
    """Return an access to all elements along the loop ``inner``, as a word."""
    return replace(access.at_iteration(inner, 0), word=WORD)
