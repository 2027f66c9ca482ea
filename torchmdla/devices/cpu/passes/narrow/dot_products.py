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

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torchmdla.compiler.sizes import quotient
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES
from torchmdla.devices.cpu.ir.expressions import Expression, constant, contents, load, substitute
from torchmdla.devices.cpu.ir.loop_program import Epilogue, LoopNest, LoopProgram, is_bijective, is_copy, split_loop
from torchmdla.devices.cpu.passes.layout import has_sliding_window
from torchmdla.devices.cpu.passes.narrow.buffers import HalfBuffers, NarrowBuffers, QuantisedBuffers
from torchmdla.devices.cpu.passes.narrow.layouts import (
    WORD_BYTES,
    Interleaved,
    Rows,
    WordProduct,
    agree_on_layouts,
    apply_layout,
    product_of_words,
)
from torchmdla.devices.cpu.passes.narrow.stores import store_words
from torchmdla.devices.cpu.target.machine import Machine

# The floats of 16 bits.
_HALVES = ("bf16", "f16")


def use_dot_products(steps: LoopProgram, machine: Machine) -> None:
    """Replace sums of products of narrow elements by dot products of words, in place."""
    _Rewriter(steps, QuantisedBuffers(steps, machine)).rewrite()
    for element in _HALVES:
        _Rewriter(steps, HalfBuffers(steps, machine, element)).rewrite()


def channel_block_sizes(steps: LoopProgram, machine: Machine) -> Sequence[int]:
    """Return the possible block sizes of an image's channels, best first.

    Without blocks, words of channels would be computed by pixels. They would then be read and stored far apart. Blocks
    for a matrix unit have as many elements as a row of a tile.
    """
    multiplied = {element for step, element in matrix_products(steps, machine).items() if has_sliding_window(step)}
    if machine.matrix and multiplied:
        widest = max(machine.matrix.row_bytes // ELEMENT_BYTES[element] for element in multiplied)
        least = machine.vector_bytes // 4
        return [least << k for k in reversed(range((widest // least).bit_length()))]
    if not machine.sums_words("i8"):
        return machine.blocks
    narrow = QuantisedBuffers(steps, machine)
    has_words = any(has_sliding_window(step) and narrow.has_factors(step) for step in steps.nests())
    return (machine.vector_bytes // 4, machine.vector_bytes // 8) if has_words else machine.blocks


def matrix_products(steps: LoopProgram, machine: Machine) -> dict[LoopNest, str]:
    """Return the products that a matrix unit can compute after their factors are narrow, with the types of elements."""
    unit = machine.matrix
    if unit is None:
        return {}
    kinds: list[NarrowBuffers[Any]] = [HalfBuffers(steps, machine, element) for element in _HALVES]
    kinds.append(QuantisedBuffers(steps, machine))
    return {
        step: narrow.element
        for narrow in kinds
        if unit.multiplies(narrow.element)
        for step in steps.nests()
        if len(step.outputs) == 1 and narrow.has_factors(step)
    }


class _Rewriter:
    """Rewriter of a program for the narrow buffers that pay, in the layouts that its products of words need."""

    def __init__(self, steps: LoopProgram, narrow: NarrowBuffers[Any]) -> None:
        self._steps, self._narrow = steps, narrow
        self._count = WORD_BYTES // ELEMENT_BYTES[narrow.element]
        self._products = {step: product for step in steps.nests() if (product := self._match_product(step)) is not None}
        self._layouts = agree_on_layouts(self._products.values(), narrow.users)
        others = narrow.profitable_buffers(has_products=bool(self._layouts))
        self._layouts |= {buffer: Rows() for buffer in others if buffer not in self._layouts}
        self._add_sources()
        self._changed = {b: apply_layout(b, narrow.element, layout) for b, layout in self._layouts.items()}
        # The buffers of partial words that are not stored as whole words.
        self._in_parts: set[Buffer] = set()

    def _match_product(self, step: LoopNest) -> WordProduct | None:
        """Return the product of words that a nest can compute, or None."""
        if len(step.outputs) != 1 or step.tables or step.checks or not self._narrow.has_factors(step):
            return None
        product = product_of_words(step, self._count)
        return product if product is not None and self._narrow.may_multiply(step, product) else None

    def _add_sources(self) -> None:
        """Add plain layouts for the sources of copies into the buffers that have layouts."""
        waiting = list(self._layouts)
        while waiting:
            for source in self._narrow.sources(waiting.pop()):
                if source not in self._layouts:
                    self._layouts[source] = Rows()
                    waiting.append(source)

    def rewrite(self) -> None:
        for step in self._steps.nests():
            if not self._layouts.keys().isdisjoint([*step.reads, *step.writes]):
                self._steps.replace_step(step, [*self._rewrite_step(step), step])
        _fill_with_zeros(self._steps, self._in_parts)
        _read_parameters(self._steps, self._changed.values())

    def _rewrite_step(self, step: LoopNest) -> list[LoopNest]:
        """Rewrite a step and return the steps that have to run before it."""
        product = self._products.get(step)
        if product is not None and product.layouts.items() <= self._layouts.items():
            before = self._read_words(step, product)
        else:
            before = []
            self._split_loops(step)
        step.map_expressions(self._widen_loads)
        before += self._narrow.simplify(step)
        epilogue = step.epilogue
        if epilogue is None:
            step.outputs, step.values = self._narrow_stores(step.outputs, step.values)
        else:
            step.epilogue = Epilogue(*self._narrow_stores(epilogue.outputs, epilogue.values))
        self._store_words(step)
        return before

    def _read_words(self, step: LoopNest, product: WordProduct) -> list[LoopNest]:
        """Rewrite a product to read words, and return the steps that have to run before it."""
        step.sizes, step.values = product.nest.sizes, product.nest.values
        split = self._split_loops(step, product)
        inner = product.loop + sum(loop <= product.loop for loop in split)
        before = self._narrow.sum_words(step, self._map_access, inner)
        step.sizes = (*step.sizes[:inner], 1, *step.sizes[inner + 1 :])
        return before

    def _split_loops(self, step: LoopNest, product: WordProduct | None = None) -> set[int]:
        """Split the loops that walk words, and return their numbers before."""
        split = {loop for access in step.accesses if (loop := self._loop_of_words(access)) is not None}
        if product is not None and quotient(step.sizes[product.loop], self._count) is not None:
            split.add(product.loop)
        for loop in sorted(split, reverse=True):
            split_loop(step, loop, (quotient(step.sizes[loop], self._count) or 0, self._count))
        return split

    def _loop_of_words(self, access: Access) -> int | None:
        """Return the loop along which the accessed elements are in consecutive words, or None."""
        layout = self._layouts.get(access.buffer)
        if not isinstance(layout, Interleaved) or layout.is_part:
            return None
        return access.indices[layout.dimension].loops[0]

    def _map_access(self, access: Access) -> Access:
        """Return an access in the layout of its buffer, after the loops were split."""
        layout, buffer = self._layouts[access.buffer], self._changed[access.buffer]
        if isinstance(layout, Rows):
            return replace(access, buffer=buffer)
        index, indices = access.indices[layout.dimension], list(access.indices)
        loops = len(index.factors)
        if layout.is_part:
            outer, inner = AffineExpr((0,) * loops), index
        else:
            outer, inner = (AffineExpr.of_loop(loop, loops) for loop in index.loops)
        indices[layout.dimension] = outer
        return replace(access, buffer=buffer, indices=(*indices, inner))

    def _widen_loads(self, roots: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Return ``roots`` with all loads from the buffers widened to 32 bits."""
        read = [access for access in contents(roots).loads if access.buffer in self._changed]
        return substitute(roots, {load(a): self._narrow.widen_load(a, self._map_access(a)) for a in read})

    def _narrow_stores(
        self, outputs: Sequence[Access], values: Sequence[Expression]
    ) -> tuple[tuple[Access, ...], tuple[Expression, ...]]:
        stores = [
            (self._map_access(access), self._narrow.narrow_value(value, access))
            if access.buffer in self._changed
            else (access, value)
            for access, value in zip(outputs, values, strict=True)
        ]
        return tuple(access for access, _ in stores), tuple(value for _, value in stores)

    def _store_words(self, step: LoopNest) -> None:
        """Store whole words where the step can do so."""
        for buffer, layout in self._layouts.items():
            changed = self._changed[buffer]
            if not isinstance(layout, Interleaved) or changed not in step.writes:
                continue
            if not store_words(step, changed, layout.used) and layout.is_part:
                self._in_parts.add(changed)


def _fill_with_zeros(steps: LoopProgram, buffers: Collection[Buffer]) -> None:
    """Fill buffers with zeros before their first write, as the unused rest of partial words has to be zero."""
    for buffer in buffers:
        first = next(k for k, step in enumerate(steps.steps) if buffer in step.writes)
        zero = constant(0, buffer.element)
        steps.steps.insert(first, LoopNest.elementwise(buffer.sizes, Access.identity(buffer), zero))


def _read_parameters(steps: LoopProgram, narrow: Collection[Buffer]) -> None:
    """Replace packed copies of parameters that already have the required layout by the parameters."""
    for copy in [step for step in steps.nests() if is_copy(step) and step.outputs[0].buffer in narrow]:
        (source,), (target,) = copy.inputs, copy.outputs
        are_equal = source.indices == target.indices and is_bijective(copy, source) and is_bijective(copy, target)
        if source.buffer.kind == "parameter" and are_equal:
            steps.steps.remove(copy)
            for step in steps.nests():
                step.map_accesses(partial(Access.replace_buffer, old=target.buffer, new=source.buffer))
