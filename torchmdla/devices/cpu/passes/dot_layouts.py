"""Sums of products of narrow elements, several of which lie in a word of 32 bits: which loop walks words, and how their
factors lie in memory for this."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, quotient
from torchmdla.devices.cpu.accesses import Access, Buffer
from torchmdla.devices.cpu.expressions import Expression, accessing
from torchmdla.devices.cpu.loop_program import LoopNest, Step

WORD = "i32"
WORD_BYTES = 4


@dataclass(frozen=True)
class Rows:
    """Words lie along the last dimension of a buffer, as elements do."""


@dataclass(frozen=True)
class Interleaved:
    """The elements of a word, along ``dimension`` of a buffer, lie in one more dimension, the last one. The rest of a
    word is zero where the buffer has fewer."""

    dimension: int


Layout = Rows | Interleaved


@dataclass(frozen=True)
class Product:
    """A nest that sums products, those of a word in each iteration of ``loop`` if its factors are laid out so; its
    ``sizes`` and ``values``, with joined loops."""

    loop: int
    layouts: Mapping[Buffer, Layout]
    sizes: tuple[AnySize, ...]
    values: tuple[Expression, ...]


def product_of_words(step: LoopNest, count: int) -> Product | None:
    """How a sum of products may read words of ``count`` elements. Loops that reduce and walk memory as one become one
    where words would end with each of them: those over channels and pixels of what is flattened."""
    return _by_rows(step, count) or _by_rows(_joined(step), count)


def _by_rows(step: LoopNest, count: int) -> Product | None:
    """How a nest may read words, with as many factors by rows as possible."""
    found = (_along(step, loop, count) for loop, reduces in enumerate(step.reduction) if reduces)
    return max(filter(None, found), key=_count_rows, default=None)


def _count_rows(found: Product) -> int:
    return sum(isinstance(layout, Rows) for layout in found.layouts.values())


def _along(step: LoopNest, loop: int, count: int) -> Product | None:
    if not _in_words(step.sizes[loop], count) or loop in step.indexed_loops:
        return None
    layouts = {access.buffer: layout for access in step.inputs if (layout := _layout(access, loop, count)) is not None}
    return Product(loop, layouts, step.sizes, step.values) if len(layouts) == len(step.inputs) else None


def _joined(step: LoopNest) -> LoopNest:
    """A copy in which loops that reduce and walk memory as one are one."""
    joined = replace(step)
    while (pair := _joinable(joined)) is not None:
        outer, inner = pair
        sizes = list(joined.sizes)
        sizes[inner], sizes[outer] = sizes[outer] * sizes[inner], 1
        joined.sizes = tuple(sizes)
        joined.map_body(partial(accessing, function=partial(_by_place, loop=outer, inner=inner)))
    return joined


def _joinable(step: LoopNest) -> tuple[int, int] | None:
    loops = [d for d, own in enumerate(step.reduction) if own and step.sizes[d] != 1 and d not in step.indexed_loops]
    flats = [access.flat(len(step.sizes)).factors for access in step.inputs]
    for outer, inner in itertools.permutations(loops, 2):
        if all(own[outer] == own[inner] * step.sizes[inner] and own[inner] for own in flats):
            return outer, inner
    return None


def _by_place(access: Access, loop: int, inner: int) -> Access:
    """Without ``loop``, which the loop ``inner`` goes on to walk: where both are not of one dimension by its place in
    memory."""
    dimensions = [d for d, index in enumerate(access.indices) if index.factors[loop] or index.factors[inner]]
    if len(dimensions) == 1:
        return access.at(loop, 0)
    flat = access.flat(len(access.indices[0].factors))
    return replace(access, indices=(replace(flat, factors=without(flat.factors, loop)),))


def without(factors: tuple[AnySize, ...], loop: int) -> tuple[AnySize, ...]:
    """The factors of an index that does not vary with ``loop``."""
    return (*factors[:loop], 0, *factors[loop + 1 :])


def _layout(access: Access, loop: int, count: int) -> Layout | None:
    """How words of what is read along ``loop`` may lie."""
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
    return Interleaved(dimension) if index.is_loop() and _in_words(sizes[dimension], count) else None


def _in_words(size: AnySize, count: int) -> bool:
    """Whether so many elements are whole words, or a part of a single one."""
    return quotient(size, count) is not None or is_part_of_word(size, count)


def is_part_of_word(size: AnySize, count: int) -> bool:
    """Whether so many elements are a part of one word. Two elements are a word of their own for pairs."""
    return isinstance(size, int) and 1 < size < count


def agreed_layouts(
    products: Iterable[Product], count: int, users: Callable[[Buffer], Sequence[Step]]
) -> dict[Buffer, Layout]:
    """The layouts of factors that all their products agree on, and that all other steps can follow."""
    agreed = list(products)
    while True:
        wanted: dict[Buffer, set[Layout]] = {}
        for found in agreed:
            for buffer, layout in found.layouts.items():
                wanted.setdefault(buffer, set()).add(layout)
        refused = {b for b, own in wanted.items() if len(own) > 1 or not may_follow(b, own, count, users(b))}
        if not refused:
            return {buffer: layout for buffer, (layout,) in wanted.items()}
        agreed = [found for found in agreed if refused.isdisjoint(found.layouts)]


def may_follow(buffer: Buffer, layouts: Iterable[Layout], count: int, users: Iterable[Step]) -> bool:
    """Whether all that use a buffer can use it in any of ``layouts``."""
    nests = [step for step in users if isinstance(step, LoopNest)]
    return all(_follows(step, buffer, layout, count) for step in nests for layout in layouts)


def _follows(step: LoopNest, buffer: Buffer, layout: Layout, count: int) -> bool:
    if buffer in [table.buffer for table in step.tables]:
        return False
    if isinstance(layout, Rows):
        return True
    if is_part_of_word(buffer.sizes[layout.dimension], count):
        return True
    indices = [access.indices[layout.dimension] for access in step.accesses if access.buffer is buffer]
    return all(index.is_loop() and quotient(step.sizes[index.loops[0]], count) is not None for index in indices)


def laid_out(buffer: Buffer, element: str, layout: Layout, count: int) -> Buffer:
    """A buffer of other elements in a layout."""
    sizes = list(buffer.sizes)
    if isinstance(layout, Interleaved):
        size = sizes[layout.dimension]
        sizes[layout.dimension] = 1 if is_part_of_word(size, count) else size // count
        sizes.append(count)
    return replace(buffer, element=element, sizes=tuple(sizes))


def word_along(access: Access, inner: int) -> Access:
    """All elements that an access touches along the loop ``inner``, as a word."""
    return replace(access.at(inner, 0), word=WORD)
