"""Sums of products of narrow elements, a word at a time, where the processor has an instruction for it.

If all values that are stored in a factor's buffer can be narrow (widened bfloat16, for example), the buffer holds
narrow elements. Elements that are summed one after the other are then packed in words. These are along the rows of a
matrix or, for weights, in an additional dimension::

    nest d0:64 d1:32 { w[d0, d1] = extf input1[d1, d0] }         nest d0:32 d1:32 d2:2 { w[d0, d1, d2] = input1[d1, …] }
    nest d0:8 d1:32 d2:64+ {                                     nest d0:8 d1:32 d2:32+ {
      i0 = x[d0, d2]                                               i0 = x[d0, 2 * d2] as i32
      i1 = w[d2, d1]                                        →      i1 = w[d2, d1, 0] as i32
      o0 = from 0.0 : f32                                          o0 = from 0.0 : f32
      o0 + i0 * i1 }                                               o0 + dot(i0, i1) }
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torchmdla.compiler.sizes import quotient, static
from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.element_types import ELEMENT_BYTES
from torchmdla.devices.cpu.expressions import Expression, accumulator, constant, contents, load, operation, substitute
from torchmdla.devices.cpu.loop_program import Epilogue, LoopNest, LoopProgram, Step, is_bijective, is_copy, split_loop
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dot_layouts import (
    WORD_BYTES,
    Interleaved,
    Layout,
    Rows,
    WordProduct,
    agree_on_layouts,
    apply_layout,
    is_part_of_word,
    may_use_layouts,
    product_of_words,
    word_access,
)
from torchmdla.devices.cpu.passes.layout import has_sliding_window
from torchmdla.devices.cpu.passes.narrow import AccessMap, NarrowBuffers, factors_of, streamed_weights
from torchmdla.devices.cpu.passes.precompute import parameter_predicate
from torchmdla.devices.cpu.passes.quantised import QuantisedBuffers
from torchmdla.devices.cpu.passes.roundings import WIDE, HalfBuffers, truncate
from torchmdla.devices.cpu.passes.winograd import is_faster_by_winograd
from torchmdla.devices.cpu.passes.word_stores import store_words


def use_dot_products(steps: LoopProgram, machine: Machine) -> None:
    """Replace sums of products of narrow elements by dot products of words, in place."""
    _use_words(steps, QuantisedBuffers(steps, machine))
    _use_words(steps, NarrowHalves(steps, machine, "bf16"))
    _use_words(steps, NarrowHalves(steps, machine, "f16"))


def channel_block_sizes(steps: LoopProgram, machine: Machine) -> Sequence[int]:
    """Return the possible block sizes of an image's channels, best first.

    Without blocks, words of channels would be computed by pixels. They would then be read and stored far apart.
    """
    if not machine.dots_bytes:
        return machine.blocks
    narrow = QuantisedBuffers(steps, machine)
    has_words = any(has_sliding_window(step) and _has_narrow_factors(step, narrow) for step in steps.nests())
    return (machine.vector_bytes // 4, machine.vector_bytes // 8) if has_words else machine.blocks


def _use_words(steps: LoopProgram, narrow: NarrowBuffers) -> None:
    count = WORD_BYTES // ELEMENT_BYTES[narrow.element]
    products = {step: product for step in steps.nests() if (product := _match_product(step, narrow, count)) is not None}
    layouts = agree_on_layouts(products.values(), count, narrow.users)
    others = narrow.profitable_buffers(steps, bool(layouts))
    layouts |= {buffer: Rows() for buffer in others if buffer not in layouts}
    layouts |= _layouts_of_sources(layouts, narrow, count)
    in_parts: set[Buffer] = set()
    changed = {buffer: apply_layout(buffer, narrow.element, layout, count) for buffer, layout in layouts.items()}
    for step in [step for step in steps.nests() if not layouts.keys().isdisjoint([*step.reads, *step.writes])]:
        before = _Rewriter(step, products.get(step), narrow, layouts, changed, count, in_parts).rewrite()
        place = steps.steps.index(step)
        steps.steps[place:place] = before
    _fill_with_zeros(steps, in_parts)
    _read_parameters(steps, changed.values())


def _fill_with_zeros(steps: LoopProgram, buffers: Collection[Buffer]) -> None:
    """Fill buffers with zeros before their first write, as the unused rest of partial words has to be zero."""
    for buffer in buffers:
        first = next(k for k, step in enumerate(steps.steps) if buffer in step.writes)
        zero = constant(0, buffer.element)
        steps.steps.insert(first, LoopNest.elementwise(buffer.sizes, Access.identity(buffer), zero))


def _match_product(step: LoopNest, narrow: NarrowBuffers, count: int) -> WordProduct | None:
    """Return the product of words that a nest can compute, or None."""
    if len(step.outputs) != 1 or step.tables or step.checks or not _has_narrow_factors(step, narrow):
        return None
    product = product_of_words(step, count)
    return product if product is not None and narrow.may_multiply(step, product) else None


def _has_narrow_factors(step: LoopNest, narrow: NarrowBuffers) -> bool:
    factors = factors_of(step)
    return factors is not None and len({f.buffer for f in factors}) == 2 and all(f.buffer in narrow for f in factors)


def _layouts_of_sources(layouts: Mapping[Buffer, Layout], narrow: NarrowBuffers, count: int) -> dict[Buffer, Layout]:
    """Return plain layouts for the sources of copies into the buffers that have layouts."""
    source_layouts: dict[Buffer, Layout] = {}
    waiting = list(layouts)
    while waiting:
        for source in narrow.sources(waiting.pop()):
            if source not in layouts and source not in source_layouts:
                source_layouts[source] = Rows()
                waiting.append(source)
    assert all(may_use_layouts(b, [layout], count, narrow.users(b)) for b, layout in source_layouts.items())
    return source_layouts


def _read_parameters(steps: LoopProgram, narrow: Collection[Buffer]) -> None:
    """Replace packed copies of parameters that already have the required layout by the parameters."""
    for copy in [step for step in steps.nests() if is_copy(step) and step.outputs[0].buffer in narrow]:
        (source,), (target,) = copy.inputs, copy.outputs
        are_equal = source.indices == target.indices and is_bijective(copy, source) and is_bijective(copy, target)
        if source.buffer.kind == "parameter" and are_equal:
            steps.steps.remove(copy)
            for step in steps.nests():
                step.map_accesses(partial(Access.replace_buffer, old=target.buffer, new=source.buffer))


class _Rewriter:
    """Rewriter of one step for narrow buffers in their layouts.

    A product of words reads words. ``in_parts`` receives the buffers of partial words that are not stored as whole
    words.
    """

    def __init__(
        self,
        step: LoopNest,
        product: WordProduct | None,
        narrow: NarrowBuffers,
        layouts: Mapping[Buffer, Layout],
        changed: Mapping[Buffer, Buffer],
        count: int,
        in_parts: set[Buffer],
    ) -> None:
        is_agreed = product is not None and product.layouts.items() <= layouts.items()
        self._step, self._narrow, self._layouts, self._changed = step, narrow, layouts, changed
        self._product = product if is_agreed else None
        self._count, self._in_parts = count, in_parts

    def rewrite(self) -> list[LoopNest]:
        """Rewrite the step and return the steps that have to run before it."""
        if self._product is not None:
            self._step.sizes, self._step.values = self._product.sizes, self._product.values
        inner = self._split_loops()
        before = self._read_words(inner) if inner is not None else []
        self._step.map_expressions(self._widen_loads)
        before += self._narrow.simplify(self._step)
        epilogue = self._step.epilogue
        if epilogue is None:
            self._step.outputs, self._step.values = self._narrow_stores(self._step.outputs, self._step.values)
        else:
            self._step.epilogue = Epilogue(*self._narrow_stores(epilogue.outputs, epilogue.values))
        self._store_words()
        return before

    def _store_words(self) -> None:
        """Store whole words where the step can do so."""
        for buffer, layout in self._layouts.items():
            changed = self._changed[buffer]
            if not isinstance(layout, Interleaved) or changed not in self._step.writes:
                continue
            is_part = self._has_one_word(buffer, layout)
            used = static(buffer.sizes[layout.dimension]) if is_part else self._count
            if not store_words(self._step, changed, used) and is_part:
                self._in_parts.add(changed)

    def _split_loops(self) -> int | None:
        """Split the loops that walk words.

        Returns:
            The loop over a word's elements, if the step is a product, else None.
        """
        split = {loop for access in self._step.accesses if (loop := self._loop_of_words(access)) is not None}
        if self._product and not is_part_of_word(self._step.sizes[self._product.loop], self._count):
            split.add(self._product.loop)
        for loop in sorted(split, reverse=True):
            split_loop(self._step, loop, (quotient(self._step.sizes[loop], self._count) or 0, self._count))
        if self._product is None:
            return None
        return self._product.loop + sum(loop <= self._product.loop for loop in split)

    def _loop_of_words(self, access: Access) -> int | None:
        """Return the loop along which the accessed elements are in consecutive words, or None."""
        layout = self._layouts.get(access.buffer)
        if not isinstance(layout, Interleaved) or self._has_one_word(access.buffer, layout):
            return None
        return access.indices[layout.dimension].loops[0]

    def _has_one_word(self, buffer: Buffer, layout: Interleaved) -> bool:
        return is_part_of_word(buffer.sizes[layout.dimension], self._count)

    def _read_words(self, inner: int) -> list[LoopNest]:
        step = self._step
        before = self._narrow.sum_words(
            step, self._map_access, lambda access: word_access(self._map_access(access), inner)
        )
        step.sizes = (*step.sizes[:inner], 1, *step.sizes[inner + 1 :])
        return before

    def _map_access(self, access: Access) -> Access:
        """Return an access in the layout of its buffer, after the loops were split."""
        layout, buffer = self._layouts[access.buffer], self._changed[access.buffer]
        if isinstance(layout, Rows):
            return replace(access, buffer=buffer)
        loops, indices = len(self._step.sizes), list(access.indices)
        if self._has_one_word(access.buffer, layout):
            indices[layout.dimension] = AffineExpr((0,) * loops)
            return replace(access, buffer=buffer, indices=(*indices, access.indices[layout.dimension]))
        outer, inner = access.indices[layout.dimension].loops
        indices[layout.dimension] = AffineExpr.of_loop(outer, loops)
        return replace(access, buffer=buffer, indices=(*indices, AffineExpr.of_loop(inner, loops)))

    def _widen_loads(self, roots: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Return ``roots`` with all loads from the buffers widened to float32."""
        read = [access for access in contents(roots).loads if access.buffer in self._changed]
        return substitute(roots, {load(access): self._narrow.widen_load(access, self._map_access) for access in read})

    def _narrow_stores(
        self, outputs: Sequence[Access], values: Sequence[Expression]
    ) -> tuple[tuple[Access, ...], tuple[Expression, ...]]:
        narrow = [access.buffer in self._changed for access in outputs]
        return (
            tuple(
                self._map_access(access) if is_narrow else access
                for access, is_narrow in zip(outputs, narrow, strict=True)
            ),
            tuple(
                self._narrow.narrow_value(value, access, self._map_access) if is_narrow else value
                for value, access, is_narrow in zip(values, outputs, narrow, strict=True)
            ),
        )


# Narrow buffers of 16-bit floats. PyTorch computes these in float32, so a factor is a float32 that some step has
# widened.

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
        self._is_known = parameter_predicate(steps)

    def __contains__(self, buffer: Buffer) -> bool:
        return buffer in self._halves

    def users(self, buffer: Buffer) -> list[Step]:
        return self._halves.users(buffer)

    def may_multiply(self, step: LoopNest, product: WordProduct) -> bool:
        if self.element != "bf16" or not self._machine.dots_bf16:
            return False
        return not is_faster_by_winograd(self._steps, step, self._is_known, self._machine, _PART)

    def profitable_buffers(self, steps: LoopProgram, has_products: bool) -> Iterable[Buffer]:
        return streamed_weights(steps, self, self._is_known, self._machine, _DECODING)

    def simplify(self, step: LoopNest) -> list[LoopNest]:
        return []

    def widen_load(self, access: Access, map_access: AccessMap) -> Expression:
        return operation("arith.extf", [load(map_access(access))], WIDE)

    def narrow_value(self, value: Expression, access: Access, map_access: AccessMap) -> Expression:
        return truncate(value, self.element)

    def sum_words(self, step: LoopNest, map_access: AccessMap, words: AccessMap) -> list[LoopNest]:
        products = operation("dot", [load(words(factor)) for factor in factors_of(step) or ()], WIDE)
        step.values = (operation("arith.addf", [accumulator(0, WIDE), products], WIDE),)
        return []
