"""Buffers of 32-bit elements whose values can be narrow: floats of 16 bits, and quantised integers of 8 bits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from torchmdla.compiler.sizes import estimate
from torchmdla.devices.cpu.ir.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.ir.element_types import ELEMENT_BYTES
from torchmdla.devices.cpu.ir.expressions import HALVES, Expression, constant, contents, load, operation, substitute
from torchmdla.devices.cpu.ir.loop_program import LoopNest, LoopProgram, Users, starts_from_zero
from torchmdla.devices.cpu.ir.patterns import SUM_OF_INTEGER_PRODUCTS, SUM_OF_PRODUCTS, any_expression, op
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.passes.narrow.formats import (
    BYTE,
    SUM,
    WIDE,
    Quantisation,
    is_half,
    match_quantised,
    truncate,
)
from torchmdla.devices.cpu.passes.narrow.layouts import WORD_BYTES, WordProduct, word_access
from torchmdla.devices.cpu.passes.narrow.sums import add_to_sum, has_few_terms, hoist, scale_result, sum_of_words
from torchmdla.devices.cpu.passes.precompute import overwritten_buffers, parameter_predicate
from torchmdla.devices.cpu.passes.winograd import is_faster_by_winograd
from torchmdla.devices.cpu.target.machine import Machine

# A function that returns an access in the new layout of its buffer.
AccessMap = Callable[[Access], Access]

# The common form of the values of a buffer.
Form = TypeVar("Form")


def factors_of(step: LoopNest) -> tuple[Access, Access] | None:
    """Return the two factors of a step that only sums their products, else None."""
    for pattern in (SUM_OF_PRODUCTS, SUM_OF_INTEGER_PRODUCTS):
        for match in pattern.matches(step.values[0]) if len(step.values) == 1 else ():
            return match["left"].payload, match["right"].payload
    return None


class NarrowBuffers(ABC, Generic[Form]):
    """Set of the temporaries that can hold narrow elements of type ``element``.

    All values written to such a buffer have one form, and only nests use it, at the indices of their loops. Its
    elements are of one of the types ``wide``. To widen a vector of them takes ``decoding`` operations.
    """

    wide: Collection[str] = (WIDE,)
    decoding: int

    def __init__(self, steps: LoopProgram, machine: Machine, element: str) -> None:
        self.element = element
        self.is_known = parameter_predicate(steps)
        self._steps, self._machine, self._users = steps, machine, Users(steps.steps)
        self._forms: dict[Buffer, Form | None] = {}

    def __contains__(self, buffer: object) -> bool:
        return isinstance(buffer, Buffer) and self._form(buffer) is not None

    def users(self, buffer: Buffer) -> list[LoopNest]:
        """Return the nests that read or write a buffer."""
        return [step for step in self._users.of(buffer) if isinstance(step, LoopNest)]

    def has_factors(self, step: LoopNest) -> bool:
        """Return whether a step multiplies elements of two of these buffers."""
        factors = factors_of(step) or ()
        return len({factor.buffer for factor in factors}) == 2 and all(factor.buffer in self for factor in factors)

    @abstractmethod
    def may_multiply(self, step: LoopNest, product: WordProduct) -> bool:
        """Return whether a product of these buffers can be summed from narrow elements, and is faster that way."""

    def sources(self, buffer: Buffer) -> Collection[Buffer]:
        """Return the buffers that are narrow if ``buffer`` is, since they are copied to it."""
        return ()

    def profitable_buffers(self, has_products: bool) -> list[Buffer]:
        """Return the buffers that are faster to write and read if narrow, although their words are not multiplied.

        These are weights that are read from memory for so few rows that fetching is slower than computing.
        ``has_products`` specifies whether words of other buffers are multiplied.
        """
        gains: dict[Buffer, bool] = {}
        for step in self._steps.nests():
            for access in factors_of(step) or ():
                if self.is_known(access) and access.buffer in self:
                    gains[access.buffer] = gains.get(access.buffer, True) and self._gains(step, access)
        return [buffer for buffer, is_faster in gains.items() if is_faster]

    def _gains(self, step: LoopNest, access: Access) -> bool:
        """Return whether reading fewer bytes saves more time than widening takes."""
        machine = self._machine
        others = [d for d, reduces in enumerate(step.reduction) if not reduces and d not in access.loops]
        rows = math.prod(estimate(step.sizes[d]) for d in others)
        if not machine.is_streamed(estimate(access.buffer.bytes)):
            return False
        lanes = machine.vector_bytes // WORD_BYTES
        wide = max(rows * machine.operation, machine.vector_bytes / machine.memory_bytes)
        read = lanes * ELEMENT_BYTES[self.element] / machine.memory_bytes
        return max((rows + self.decoding) * machine.operation, read) < wide

    def simplify(self, step: LoopNest) -> list[LoopNest]:
        """Simplify the computation on widened values in a step, and return the steps that have to run before it."""
        return []

    @abstractmethod
    def widen_load(self, access: Access, stored: Access) -> Expression:
        """Return the value read at ``access``, widened to 32 bits; ``stored`` is the access to its narrow form."""

    @abstractmethod
    def narrow_value(self, value: Expression, access: Access) -> Expression:
        """Return the narrow form of a 32-bit value for the store at ``access``.

        Buffers that the value reads are narrow already.
        """

    @abstractmethod
    def sum_words(self, step: LoopNest, map_access: AccessMap, inner: int) -> list[LoopNest]:
        """Rewrite a step to sum the products in words of its factors, and return the steps to run before it.

        Args:
            step: The step, with loops over the words and over the elements of a word. Its factors are still in 32 bits.
            map_access: Returns the access to an element of a factor.
            inner: The loop over the elements of a word.
        """

    @abstractmethod
    def _common_form(self, buffer: Buffer) -> Form | None:
        """Return the common form of all values that are written to a buffer, or None."""

    def _form(self, buffer: Buffer) -> Form | None:
        if buffer not in self._forms:
            self._forms[buffer] = None  # The result for a buffer that is computed from itself.
            users = self._users.of(buffer)
            is_plain = buffer.kind == "temporary" and buffer.element in self.wide and not buffer.fixed
            if is_plain and all(isinstance(s, LoopNest) and buffer not in [t.buffer for t in s.tables] for s in users):
                self._forms[buffer] = self._common_form(buffer)
        return self._forms[buffer]

    def _stores(self, buffer: Buffer) -> list[tuple[Access, Expression]]:
        """Return the accesses and the values of all writes to a buffer."""
        stores = (zip(s.written_accesses, (s.epilogue or s).values, strict=True) for s in self.users(buffer))
        return [(access, value) for each in stores for access, value in each if access.buffer is buffer]


class HalfBuffers(NarrowBuffers[bool]):
    """Set of the buffers all of whose values are widened floats of 16 bits.

    PyTorch computes these in float32, so a factor is a float32 that some step has widened.
    """

    decoding = 1

    def may_multiply(self, step: LoopNest, product: WordProduct) -> bool:
        if not self._machine.sums_words(self.element):
            return False
        part = self._machine.part_of_products(self.element)
        return not is_faster_by_winograd(self._steps, step, self.is_known, self._machine, part)

    def widen_load(self, access: Access, stored: Access) -> Expression:
        return operation("arith.extf", [load(stored)], WIDE)

    def narrow_value(self, value: Expression, access: Access) -> Expression:
        return truncate(value, self.element)

    def sum_words(self, step: LoopNest, map_access: AccessMap, inner: int) -> list[LoopNest]:
        words = [load(word_access(map_access(factor), inner)) for factor in factors_of(step) or ()]
        step.values = (add_to_sum(operation("dot", words, WIDE, HALVES if self.element == "f16" else "")),)
        return []

    def _common_form(self, buffer: Buffer) -> bool | None:
        return all(is_half(value, self.element, self) for _, value in self._stores(buffer)) or None


_SCALED_PRODUCTS = op(
    "arith.addf",
    op("accumulator"),
    op("arith.mulf", op("arith.mulf", any_expression("integer"), any_expression("scale")), any_expression("other")),
)


class QuantisedBuffers(NarrowBuffers[Quantisation]):
    """Set of the buffers all of whose values are quantised in one form.

    Processors multiply an unsigned integer by a signed one. Values that depend on parameters alone are therefore stored
    as signed integers, and all others as unsigned ones.
    """

    wide = (WIDE, SUM)
    # Operations that widen a vector, subtract its zeros and multiply it by its scales.
    decoding = 3

    def __init__(self, steps: LoopProgram, machine: Machine) -> None:
        super().__init__(steps, machine, BYTE)
        self._overwritten = overwritten_buffers(steps)
        self._weights: set[Buffer] = set()  # in their layouts

    def sources(self, buffer: Buffer) -> Collection[Buffer]:
        return [value.payload.buffer for _, value in self._stores(buffer) if value.op == "load"]

    def may_multiply(self, step: LoopNest, product: WordProduct) -> bool:
        """Return whether exactly one factor is known, and the sum and its corrections fit into 32 bits."""
        if not self._machine.sums_words(self.element) or not starts_from_zero(step) or not has_few_terms(step):
            return False
        factors = factors_of(product.nest) or ()
        are_constant = all(self._is_constant_along_sum(step, access) for access in factors)
        return are_constant and len(set(map(self.is_known, factors))) == 2

    def _is_constant_along_sum(self, step: LoopNest, access: Access) -> bool:
        form = self._form_at(access)
        loads = contents((form.zero, form.scale)).loads
        if loads and len(access.indices) != len(access.buffer.sizes):
            return False
        return not any(step.reduction[loop] for read in loads for loop in read.loops)

    def profitable_buffers(self, has_products: bool) -> list[Buffer]:
        """Return all computed quantised buffers if products are in use, and the weights that few rows walk."""
        outputs = dict.fromkeys(buffer for step in self._steps.nests() for buffer in step.writes if has_products)
        computed = [b for b in outputs if b in self and not self.is_known(Access.identity(b))]
        return computed + super().profitable_buffers(has_products)

    def simplify(self, step: LoopNest) -> list[LoopNest]:
        """Move the scale of a sum of products to the epilogue, so that it multiplies the sum once.

        Zeros and scales of weights that vary along the sum are laid out as the weights are.
        """
        if len(step.outputs) != 1 or not starts_from_zero(step):
            return []
        before: list[LoopNest] = []
        for value in contents(step.values).expressions:
            parts = match_quantised(value) if value.type == WIDE else None
            if parts is None or parts[0].op != "load" or parts[0].payload.buffer not in self._weights:
                continue
            integer, form = parts
            order = in_memory_order(step, integer.payload)
            for number in (form.float_zero, form.scale):
                # Products of unscaled weights with other floats have the same form as scaled weights.
                loads = contents((number,)).loads
                is_of_weights = all(access.loops <= set(order) for access in loads)
                if loads and is_of_weights and (number.op != "load" or not _is_constant_along(step, number)):
                    step.values = substitute(step.values, {number: hoist(step, number, before, order)})
        for match in _SCALED_PRODUCTS.matches(step.values[0]):
            if _is_constant_along(step, match["scale"]) and match["integer"].op in ("arith.sitofp", "arith.subf"):
                step.values = (add_to_sum(operation("arith.mulf", [match["integer"], match["other"]], WIDE)),)
                scale_result(step, match["scale"])
                break
        return before

    def widen_load(self, access: Access, stored: Access) -> Expression:
        if self.is_known(access):
            self._weights.add(stored.buffer)
        return self._stored_form(access).widen(load(stored), access.buffer.element)

    def narrow_value(self, value: Expression, access: Access) -> Expression:
        if value.op == "constant":
            return constant((self._stored_form(access).zero.payload + 128) % 256 - 128, BYTE)
        parts = match_quantised(value)
        assert parts is not None, "all that is written to a buffer is in its form"
        integer, form = parts
        if form.is_signed == self.is_known(access):
            return integer
        # The distance from the least value stays the same.
        return operation("arith.xori", [integer, constant(-128, BYTE)], BYTE)

    def sum_words(self, step: LoopNest, map_access: AccessMap, inner: int) -> list[LoopNest]:
        values, weights = sorted(factors_of(step) or (), key=self.is_known)
        factors = ((map_access(access), self._stored_form(access)) for access in (values, weights))
        return sum_of_words(step, inner, *factors)

    def _form_at(self, access: Access) -> Quantisation:
        """Return the form of the element at an access of a nest."""
        form, loops = self._form(access.buffer), len(access.indices[0].factors) if access.indices else 0
        assert form is not None, "the buffer is narrow"
        return form.substitute(dict(enumerate(access.indices)), loops)

    def _stored_form(self, access: Access) -> Quantisation:
        """Return the form of the stored integers."""
        return self._form_at(access).with_sign(self.is_known(access))

    def _common_form(self, buffer: Buffer) -> Quantisation | None:
        written = self._stores(buffer)
        others = [(access, value) for access, value in written if value.op != "constant" or value.payload != 0.0]
        forms = {self._form_written(*store) for store in others}
        form = forms.pop() if len(forms) == 1 else None
        return form if form is None or len(others) == len(written) or form.has_zero else None

    def _form_written(self, access: Access, value: Expression) -> Quantisation | None:
        """Return the form of a value that a step writes, over the dimensions of the destination."""
        if value.op == "load":
            form = self._form_at(value.payload) if value.payload.buffer in self else None
        else:
            _, form = match_quantised(value) or (None, None)
        if form is None:
            return None
        body, count = contents((form.zero, form.scale)), len(access.indices)
        dimensions = {i.loops[0]: AffineExpr.of_loop(d, count) for d, i in enumerate(access.indices) if i.is_loop()}
        if body.tables or body.loops or any(e.op in ("accumulator", "reduced") for e in body.expressions):
            return None
        if any(read.buffer in self._overwritten or not dimensions.keys() >= read.loops for read in body.loads):
            return None
        return form.substitute(dimensions, count)


def _is_constant_along(step: LoopNest, value: Expression) -> bool:
    """Return whether a value does not vary along the reduced loops of a step."""
    body = contents((value,))
    loops = frozenset[int](body.loops).union(*(access.loops for access in body.loads))
    return not body.tables and not any(step.reduction[loop] for loop in loops)
