"""Sums of products of bfloat16, two products at a time, where the processor has an instruction for these.

PyTorch's bfloat16 is computed in float32, so a factor is a float32 that some step has widened. Where all that is
written to a factor's buffer is such, the buffer holds bfloat16, and the elements that are summed one after the other
lie in pairs: as the rows of a matrix have them, or, of weights, in one more dimension::

    nest d0:64 d1:32 { w[d0, d1] = extf input1[d1, d0] }         nest d0:32 d1:32 d2:2 { w[d0, d1, d2] = input1[d1, …] }
    nest d0:8 d1:32 d2:64+ {                                     nest d0:8 d1:32 d2:32+ {
      i0 = x[d0, d2]                                               i0 = x[d0, 2 * d2] as i32
      i1 = w[d2, d1]                                        →      i1 = w[d2, d1, 0] as i32
      o0 = from 0.0 : f32                                          o0 = from 0.0 : f32
      o0 + i0 * i1 }                                               o0 + dot(i0, i1) }
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.compiler.sizes import AnySize, quotient
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import (
    Expression,
    accessing,
    accumulator,
    contents,
    load,
    operation,
    substituted,
)
from torchmdla.devices.cpu.loop_program import (
    Epilogue,
    LoopNest,
    LoopProgram,
    Step,
    covers,
    is_copy,
    split_loop,
)
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.precompute import known_accesses
from torchmdla.devices.cpu.passes.roundings import WIDE, HalfBuffers, rounded
from torchmdla.devices.cpu.passes.winograd import takes_less
from torchmdla.devices.cpu.patterns import SUM_OF_PRODUCTS

_NARROW, _WORD = "bf16", "i32"
_PAIR = 2

# The time that a sum of pairs takes, of that of as many single products.
_PART = 0.5


def use_dot_products(steps: LoopProgram, machine: Machine) -> None:
    """Lets sums of products read pairs of bfloat16, in place."""
    if not machine.dots:
        return
    narrow = HalfBuffers(steps, _NARROW)
    is_known = known_accesses(steps)
    products = {
        step: found
        for step in steps.nests()
        if not takes_less(steps, step, is_known, machine, _PART) and (found := _product(step, narrow)) is not None
    }
    layouts = _agreed(products, narrow)
    changed = {buffer: _laid_out(buffer, layout) for buffer, layout in layouts.items()}
    for step in [step for step in steps.nests() if not layouts.keys().isdisjoint([*step.reads, *step.writes])]:
        _Rewriter(step, products.get(step), layouts, changed).rewrite()
    _read_parameters(steps, changed.values())


def _read_parameters(steps: LoopProgram, narrow: Collection[Buffer]) -> None:
    """Lets products read parameters where these are in the layout already."""
    for copy in [step for step in steps.nests() if is_copy(step) and step.outputs[0].buffer in narrow]:
        (source,), (made,) = copy.inputs, copy.outputs
        if source.buffer.kind == "parameter" and source.indices == made.indices and covers(copy, source):
            steps.steps.remove(copy)
            for step in steps.nests():
                step.map_accesses(partial(_instead, old=made.buffer, new=source.buffer))


def _instead(access: Access, old: Buffer, new: Buffer) -> Access:
    return replace(access, buffer=new) if access.buffer is old else access


# Which products there are, and how their factors may lie.


@dataclass(frozen=True)
class _Rows:
    """Pairs lie next to each other along the last dimension of a buffer."""


@dataclass(frozen=True)
class _Paired:
    """Pairs along ``dimension`` of a buffer lie in one more dimension, the last one."""

    dimension: int


_Layout = _Rows | _Paired


@dataclass(frozen=True)
class _Product:
    """A nest that sums products, two in each iteration of ``loop`` if its factors are laid out so; its ``sizes`` and
    ``values``, with joined loops."""

    loop: int
    layouts: Mapping[Buffer, _Layout]
    sizes: tuple[AnySize, ...]
    values: tuple[Expression, ...]


def _product(step: LoopNest, narrow: HalfBuffers) -> _Product | None:
    """How a nest may sum pairs of products. Loops that reduce and walk memory as one become one where pairs would end
    with each of them: those over channels and pixels of what is flattened."""
    if len(step.outputs) != 1 or step.tables or step.checks or step.values[0].type != WIDE:
        return None
    for match in SUM_OF_PRODUCTS.matches(step.values[0]):
        left, right = match["left"].payload.buffer, match["right"].payload.buffer
        if left is right or left not in narrow or right not in narrow:
            return None
        return _by_rows(step) or _by_rows(_joined(step))
    return None


def _by_rows(step: LoopNest) -> _Product | None:
    """How a nest may sum pairs, with as many factors by rows as possible."""
    found = (_along(step, loop) for loop, reduces in enumerate(step.reduction) if reduces)
    return max(filter(None, found), key=_count_rows, default=None)


def _count_rows(found: _Product) -> int:
    return sum(isinstance(layout, _Rows) for layout in found.layouts.values())


def _along(step: LoopNest, loop: int) -> _Product | None:
    if not _is_even(step.sizes[loop]) or loop in step.indexed_loops:
        return None
    layouts = {access.buffer: layout for access in step.inputs if (layout := _layout(access, loop)) is not None}
    return _Product(loop, layouts, step.sizes, step.values) if len(layouts) == len(step.inputs) else None


def _joined(step: LoopNest) -> LoopNest:
    """A copy in which loops that reduce and walk memory as one are one."""
    joined = replace(step)
    while (pair := _joinable(joined)) is not None:
        outer, inner = pair
        sizes = list(joined.sizes)
        sizes[inner], sizes[outer] = sizes[outer] * sizes[inner], 1
        joined.sizes = tuple(sizes)
        joined.map_body(partial(accessing, function=partial(_by_place, loop=outer)))
    return joined


def _joinable(step: LoopNest) -> tuple[int, int] | None:
    loops = [d for d, own in enumerate(step.reduction) if own and step.sizes[d] != 1 and d not in step.indexed_loops]
    flats = [access.flat(len(step.sizes)).factors for access in step.inputs]
    for outer, inner in itertools.permutations(loops, 2):
        if all(own[outer] == own[inner] * step.sizes[inner] and own[inner] for own in flats):
            return outer, inner
    return None


def _by_place(access: Access, loop: int) -> Access:
    """By its place in memory, without ``loop``."""
    flat = access.flat(len(access.indices[0].factors))
    return replace(access, indices=(replace(flat, factors=_without(flat.factors, loop)),))


def _without(factors: tuple[AnySize, ...], loop: int) -> tuple[AnySize, ...]:
    return (*factors[:loop], 0, *factors[loop + 1 :])


def _is_even(number: AnySize) -> bool:
    return quotient(number, _PAIR) is not None


def _layout(access: Access, loop: int) -> _Layout | None:
    """How pairs of what is read along ``loop`` may lie."""
    dimensions = [d for d, index in enumerate(access.indices) if index.factors[loop]]
    if len(dimensions) != 1 or access.width != 1:
        return None
    (dimension,) = dimensions
    index, sizes = access.indices[dimension], access.buffer.sizes
    if dimension == len(access.indices) - 1:
        size = sizes[dimension] if len(sizes) == len(access.indices) else access.buffer.count
        others = [factor for k, factor in enumerate(index.factors) if k != loop]
        is_aligned = index.factors[loop] == 1 and all(map(_is_even, (size, index.constant, *others)))
        return _Rows() if is_aligned else None
    return _Paired(dimension) if index.is_loop() and _is_even(sizes[dimension]) else None


def _agreed(products: Mapping[LoopNest, _Product], narrow: HalfBuffers) -> dict[Buffer, _Layout]:
    """The layouts of factors that all their products agree on, and that all other steps can follow."""
    agreed: list[_Product] = list(products.values())
    while True:
        wanted: dict[Buffer, set[_Layout]] = {}
        for found in agreed:
            for buffer, layout in found.layouts.items():
                wanted.setdefault(buffer, set()).add(layout)
        refused = {b for b, those in wanted.items() if len(those) > 1 or not _may_follow(b, those, narrow.users(b))}
        if not refused:
            return {buffer: layout for buffer, (layout,) in wanted.items()}
        agreed = [found for found in agreed if refused.isdisjoint(found.layouts)]


def _may_follow(buffer: Buffer, layouts: Iterable[_Layout], users: Iterable[Step]) -> bool:
    """Whether all that use a buffer can use it in any of ``layouts``."""
    nests = [step for step in users if isinstance(step, LoopNest)]
    return all(_follows(step, buffer, layout) for step in nests for layout in layouts)


def _follows(step: LoopNest, buffer: Buffer, layout: _Layout) -> bool:
    if buffer in [table.buffer for table in step.tables]:
        return False
    if isinstance(layout, _Rows):
        return True
    indices = [access.indices[layout.dimension] for access in step.accesses if access.buffer is buffer]
    return all(index.is_loop() and _is_even(step.sizes[index.loops[0]]) for index in indices)


def _laid_out(buffer: Buffer, layout: _Layout) -> Buffer:
    sizes = list(buffer.sizes)
    if isinstance(layout, _Paired):
        sizes[layout.dimension] //= _PAIR
        sizes.append(_PAIR)
    return replace(buffer, element=_NARROW, sizes=tuple(sizes))


# The change of layout.


class _Rewriter:
    """Lets one step use buffers of bfloat16 in their layouts, and read pairs where it is a product of them."""

    def __init__(
        self,
        step: LoopNest,
        product: _Product | None,
        layouts: Mapping[Buffer, _Layout],
        changed: Mapping[Buffer, Buffer],
    ) -> None:
        is_agreed = product is not None and product.layouts.items() <= layouts.items()
        self._step, self._layouts, self._changed = step, layouts, changed
        self._product = product if is_agreed else None

    def rewrite(self) -> None:
        if self._product is not None:
            self._step.sizes, self._step.values = self._product.sizes, self._product.values
        pair = self._split_loops()
        if pair is not None:
            self._read_pairs(pair)
        self._step.map_expressions(self._widened)
        epilogue = self._step.epilogue
        if epilogue is None:
            self._step.outputs, self._step.values = self._stored(self._step.outputs, self._step.values)
        else:
            self._step.epilogue = Epilogue(*self._stored(epilogue.outputs, epilogue.values))

    def _split_loops(self) -> int | None:
        """Splits the loops that walk pairs; returns the one over a pair of the product, if the step is one."""
        split = {a.indices[layout.dimension].loops[0] for a in self._step.accesses if (layout := self._paired(a))}
        if self._product:
            split.add(self._product.loop)
        for loop in sorted(split, reverse=True):
            split_loop(self._step, loop, (quotient(self._step.sizes[loop], _PAIR) or 0, _PAIR))
        if self._product is None:
            return None
        return self._product.loop + sum(loop <= self._product.loop for loop in split)

    def _paired(self, access: Access) -> _Paired | None:
        layout = self._layouts.get(access.buffer)
        return layout if isinstance(layout, _Paired) else None

    def _read_pairs(self, pair: int) -> None:
        step = self._step
        match = next(SUM_OF_PRODUCTS.matches(step.values[0]))
        words = [load(_word(self._moved(match[name].payload), pair)) for name in ("left", "right")]
        total = accumulator(0, WIDE)
        step.values = (operation("arith.addf", [total, operation("dot", words, WIDE)], WIDE),)
        step.sizes = (*step.sizes[:pair], 1, *step.sizes[pair + 1 :])

    def _moved(self, access: Access) -> Access:
        """An access in the layout of its buffer, by loops that are split."""
        layout, buffer = self._layouts[access.buffer], self._changed[access.buffer]
        if isinstance(layout, _Rows):
            return replace(access, buffer=buffer)
        outer, inner = access.indices[layout.dimension].loops
        loops = len(self._step.sizes)
        indices = list(access.indices)
        indices[layout.dimension] = AffineExpr.of_loop(outer, loops)
        return replace(access, buffer=buffer, indices=(*indices, AffineExpr.of_loop(inner, loops)))

    def _widened(self, roots: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """With what is read of the buffers widened to float32."""
        read = [access for access in contents(roots).loads if access.buffer in self._changed]
        return substituted(roots, {load(a): operation("arith.extf", [load(self._moved(a))], WIDE) for a in read})

    def _stored(
        self, outputs: Sequence[Access], values: Sequence[Expression]
    ) -> tuple[tuple[Access, ...], tuple[Expression, ...]]:
        moved = [access.buffer in self._changed for access in outputs]
        return (
            tuple(self._moved(access) if own else access for access, own in zip(outputs, moved, strict=True)),
            tuple(rounded(value, _NARROW) if own else value for value, own in zip(values, moved, strict=True)),
        )


def _word(access: Access, pair: int) -> Access:
    """Both elements that an access touches along the loop ``pair``."""
    indices = (replace(i, factors=_without(i.factors, pair)) for i in access.indices)
    return replace(access, indices=tuple(indices), word=_WORD)
