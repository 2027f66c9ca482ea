"""Floats that stand for integers of 8 bits: ``(integer - zero) * scale``.

That is what a quantised tensor is where PyTorch computes with it, and how programs have it::

    v0 : i32 = arith.extsi i0
    v1 : i32 = arith.andi v0, 255          uint8 is int8 of the same bits in programs
    v2 : f32 = arith.sitofp v1
    v3 : f32 = arith.subf v2, 117.0
    v4 : f32 = arith.mulf v3, 0.0329
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torchmdla.devices.cpu.accesses import Access, AffineExpr, Buffer
from torchmdla.devices.cpu.expressions import (
    Expression,
    accessing,
    accumulator,
    constant,
    contents,
    load,
    operation,
    reduced,
    substituted,
)
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, Users, starts_from_zero
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dot_layouts import Product
from torchmdla.devices.cpu.passes.integer_sums import MOST_TERMS, ahead, scale_result, sum_of_words
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.passes.narrow import Moved, NarrowBuffers, factors_of, streamed_weights
from torchmdla.devices.cpu.passes.precompute import known_accesses, written_after_reading
from torchmdla.devices.cpu.patterns import anything, op

_SUM, _WIDE, _NARROW = "i32", "f32", "i8"

# To widen a vector, subtract its zeros and multiply it by its scales.
_DECODING = 3

_NO_ZERO, _NO_SCALE = constant(0, _SUM), constant(1.0, _WIDE)


_SCALED_PRODUCTS = op(
    "arith.addf",
    op("accumulator"),
    op("arith.mulf", op("arith.mulf", anything("integer"), anything("scale")), anything("other")),
)


@dataclass(frozen=True)
class Quantised:
    """``integer``: an ``i8`` that is read with a sign or without; ``zero``: an ``i32``; ``scale``: an ``f32``."""

    integer: Expression
    is_signed: bool
    zero: Expression
    scale: Expression


def quantised(value: Expression) -> Quantised | None:
    """A float32 as a quantised integer, if it is one; an ``i32`` if it is one of 8 bits."""
    if value.type == _SUM:
        return _extended(value, _NO_ZERO, _NO_SCALE)
    if value.op != "arith.mulf":
        return _difference(value, _NO_SCALE)
    first, second = value.operands
    return _difference(first, second) or _difference(second, first)


def _difference(value: Expression, scale: Expression) -> Quantised | None:
    zero = _NO_ZERO
    if value.op == "arith.subf":
        value, subtracted = value.operands
        found = _as_sum(subtracted)
        if found is None:
            return None
        zero = found
    if value.op != "arith.sitofp" or value.type != _WIDE:
        return None
    (integer,) = value.operands
    if integer.op == "arith.subi" and zero is _NO_ZERO:
        integer, subtracted = integer.operands
        zero = _in_bits(subtracted)
    return _extended(integer, zero, scale)


def _extended(integer: Expression, zero: Expression, scale: Expression) -> Quantised | None:
    if integer.type == _NARROW:
        return Quantised(integer, True, zero, scale)
    is_signed = True
    if integer.op == "arith.andi":
        masks = [operand for operand in integer.operands if operand.op == "constant" and operand.payload == 0xFF]
        others = [operand for operand in integer.operands if operand not in masks]
        if len(masks) != 1 or len(others) != 1:
            return None
        (integer,), is_signed = others, False
    if integer.op not in ("arith.extsi", "arith.extui") or integer.operands[0].type != _NARROW:
        return None
    return Quantised(integer.operands[0], is_signed and integer.op == "arith.extsi", zero, scale)


def _as_sum(value: Expression) -> Expression | None:
    """A float32 that is an integer as an ``i32``."""
    if value.op == "constant" and math.isfinite(value.payload) and value.payload == int(value.payload):
        return constant(int(value.payload), _SUM)
    return _in_bits(value.operands[0]) if value.op == "arith.sitofp" else None


def _in_bits(integer: Expression) -> Expression:
    """An integer as an ``i32``."""
    if integer.type == _SUM:
        return integer
    if integer.op == "constant":
        return constant(integer.payload, _SUM)
    return operation("arith.extsi" if integer.type in ("i8", "i16") else "arith.trunci", [integer], _SUM)


def plus(value: Expression, number: int) -> Expression:
    """An ``i32`` and a number."""
    if value.op == "constant":
        return constant(value.payload + number, _SUM)
    return operation("arith.addi", [value, constant(number, _SUM)], _SUM) if number else value


def _is_constant_along(step: LoopNest, value: Expression) -> bool:
    """Whether a value does not vary along what a step sums."""
    body = contents((value,))
    loops = frozenset[int](body.loops).union(*(access.loops for access in body.loads))
    return not body.tables and not any(step.reduction[loop] for loop in loops)


@dataclass(frozen=True)
class Form:
    """What the values of a buffer have in common: ``zero`` and ``scale`` are over loops that are the buffer's
    dimensions."""

    is_signed: bool
    zero: Expression
    scale: Expression

    def at(self, access: Access) -> tuple[Expression, Expression]:
        """Zero and scale of what a nest reads or writes."""
        loops = len(access.indices[0].factors) if access.indices else 0
        along = partial(Access.along, indices=dict(enumerate(access.indices)), loops=loops)
        zero, scale = accessing((self.zero, self.scale), along)
        return zero, scale


def _has_zero(form: Form) -> bool:
    """Whether an integer of 8 bits stands for 0, the border of an image."""
    lowest = -128 if form.is_signed else 0
    return form.zero.op == "constant" and lowest <= form.zero.payload <= lowest + 255


class QuantisedBuffers(NarrowBuffers):
    """The buffers all of whose values are quantised in one form. Processors multiply an integer without a sign by one
    with a sign: what depends on parameters alone is stored with a sign, all else without."""

    element = _NARROW

    def __init__(self, steps: LoopProgram, machine: Machine) -> None:
        self._machine = machine
        self._users = Users(steps.steps)
        self._overwritten = written_after_reading(steps)
        self._is_known = known_accesses(steps)
        self._weights: set[Buffer] = set()  # in their layouts
        self._forms: dict[Buffer, Form | None] = {}

    def __contains__(self, buffer: Buffer) -> bool:
        return self._form(buffer) is not None

    def users(self, buffer: Buffer) -> list[Step]:
        return self._users.of(buffer)

    def sources(self, buffer: Buffer) -> Collection[Buffer]:
        return [v.payload.buffer for _, _, v in self._written(buffer) if v.op == "load"]

    def multiplies(self, step: LoopNest, product: Product) -> bool:
        """Whether one of the factors is known, and the sum and its corrections fit into 32 bits and an epilogue."""
        factors = factors_of(replace(step, values=product.values)) or ()
        if not self._machine.dots_bytes:
            return False
        if len(set(map(self._is_known, factors))) != 2 or not starts_from_zero(step):
            return False
        terms = math.prod(size for size, reduces in zip(step.sizes, step.reduction, strict=True) if reduces)
        if not isinstance(terms, int) or terms > MOST_TERMS:
            return False
        return all(self._is_constant_along_sum(step, access) for access in factors)

    def _is_constant_along_sum(self, step: LoopNest, access: Access) -> bool:
        form = self._form_of(access.buffer)
        read = contents((form.zero, form.scale)).loads
        if read and len(access.indices) != len(access.buffer.sizes):
            return False
        return not any(step.reduction[loop] for own in contents(form.at(access)).loads for loop in own.loops)

    def worth_storing(self, steps: LoopProgram, has_products: bool) -> Iterable[Buffer]:
        """Beside products all that is computed of quantised values; weights that few rows walk."""
        made = dict.fromkeys(buffer for step in steps.nests() for buffer in step.writes if has_products)
        return [
            *(buffer for buffer in made if buffer in self and not self._is_known(Access.whole(buffer))),
            *streamed_weights(steps, self, self._is_known, self._machine, _DECODING),
        ]

    def simplify(self, step: LoopNest) -> list[LoopNest]:
        """Multiplies a sum of products by a scale once. Zeros and scales of weights that vary along the sum are laid
        out as the weights are."""
        if len(step.outputs) != 1 or not starts_from_zero(step):
            return []
        before: list[LoopNest] = []
        for value in contents(step.values).expressions:
            found = quantised(value) if value.type == _WIDE else None
            if found is None or found.integer.op != "load" or found.integer.payload.buffer not in self._weights:
                continue
            order = in_memory_order(step, found.integer.payload)
            for number in (_as_float(found.zero), found.scale):
                # A product of weights without a scale with other floats has the form of weights with one.
                loads = contents((number,)).loads
                is_of_weights = all(access.loops <= set(order) for access in loads)
                if loads and is_of_weights and (number.op != "load" or not _is_constant_along(step, number)):
                    step.values = substituted(step.values, {number: ahead(step, number, before, order)})
        for match in _SCALED_PRODUCTS.matches(step.values[0]):
            if _is_constant_along(step, match["scale"]) and match["integer"].op in ("arith.sitofp", "arith.subf"):
                product = operation("arith.mulf", [match["integer"], match["other"]], _WIDE)
                step.values = (operation("arith.addf", [accumulator(0, _WIDE), product], _WIDE),)
                scale_result(step, reduced(0, _WIDE), match["scale"])
                break
        return before

    def widened(self, access: Access, moved: Moved) -> Expression:
        zero, scale = self._stored_form(access)
        extend = "arith.extsi" if self._is_stored_signed(access) else "arith.extui"
        if self._is_known(access):
            self._weights.add(moved(access).buffer)
        value = operation(extend, [load(moved(access))], _SUM)
        if access.buffer.element == _SUM:
            return plus(value, -zero.payload)
        value = operation("arith.sitofp", [value], _WIDE)
        if zero is not _NO_ZERO:
            value = operation("arith.subf", [value, _as_float(zero)], _WIDE)
        return value if scale is _NO_SCALE else operation("arith.mulf", [value, scale], _WIDE)

    def narrowed(self, value: Expression, access: Access, moved: Moved) -> Expression:
        is_signed = self._is_stored_signed(access)
        if value.op == "constant":
            zero, _ = self._stored_form(access)
            return _as_byte(zero)
        found = quantised(value)
        assert found is not None, "all that is written to a buffer is in its form"
        return found.integer if found.is_signed == is_signed else _with_other_sign(found.integer)

    def sum_words(self, step: LoopNest, moved: Moved, words: Moved) -> list[LoopNest]:
        values, weights = sorted(factors_of(step) or (), key=self._is_known)
        factors = ((moved(access), words(access), *self._stored_form(access)) for access in (values, weights))
        return sum_of_words(step, *factors)

    def _form(self, buffer: Buffer) -> Form | None:
        if buffer not in self._forms:
            self._forms[buffer] = None  # Of a buffer that is made of itself.
            self._forms[buffer] = self._common_form(buffer)
        return self._forms[buffer]

    def _form_of(self, buffer: Buffer) -> Form:
        found = self._form(buffer)
        assert found is not None
        return found

    def _common_form(self, buffer: Buffer) -> Form | None:
        if buffer.kind != "temporary" or buffer.element not in (_WIDE, _SUM) or buffer.fixed:
            return None
        if any(not isinstance(s, LoopNest) or buffer in [t.buffer for t in s.tables] for s in self.users(buffer)):
            return None
        written = self._written(buffer)
        others = [(s, a, v) for s, a, v in written if v.op != "constant" or v.payload != 0.0]
        forms = {self._form_written(*one) for one in others}
        form = forms.pop() if len(forms) == 1 else None
        return form if form is None or len(others) == len(written) or _has_zero(form) else None

    def _written(self, buffer: Buffer) -> list[tuple[LoopNest, Access, Expression]]:
        """All that is written to a buffer: by which step, where, and what."""
        found = []
        for step in self.users(buffer):
            assert isinstance(step, LoopNest)
            values = step.epilogue.values if step.epilogue else step.values
            pairs = zip(step.written_accesses, values, strict=True)
            found += [(step, access, value) for access, value in pairs if access.buffer is buffer]
        return found

    def _form_written(self, step: LoopNest, access: Access, value: Expression) -> Form | None:
        """The form of what a step writes, over the dimensions of what it writes it to."""
        if value.op == "load":
            source = self._form(value.payload.buffer)
            if source is None:
                return None
            is_signed, (zero, scale) = source.is_signed, source.at(value.payload)
        else:
            found = quantised(value)
            if found is None:
                return None
            is_signed, zero, scale = found.is_signed, found.zero, found.scale
        body, count = contents((zero, scale)), len(access.indices)
        dimensions = {i.loops[0]: AffineExpr.of_loop(d, count) for d, i in enumerate(access.indices) if i.is_loop()}
        if body.tables or body.loops or not all(self._may_be_read_later(own, dimensions) for own in body.loads):
            return None
        if any(expression.op in ("accumulator", "reduced") for expression in body.expressions):
            return None
        along = partial(Access.along, indices=dimensions, loops=count)
        return Form(is_signed, *accessing((zero, scale), along))

    def _may_be_read_later(self, access: Access, loops: Mapping[int, AffineExpr]) -> bool:
        return access.buffer not in self._overwritten and loops.keys() >= access.loops

    def _is_stored_signed(self, access: Access) -> bool:
        return self._is_known(access)

    def _stored_form(self, access: Access) -> tuple[Expression, Expression]:
        """Zero and scale of what is stored."""
        form = self._form_of(access.buffer)
        zero, scale = form.at(access)
        is_signed = self._is_stored_signed(access)
        return (zero if form.is_signed == is_signed else plus(zero, -128 if is_signed else 128)), scale


def _as_float(zero: Expression) -> Expression:
    return constant(zero.payload, _WIDE) if zero.op == "constant" else operation("arith.sitofp", [zero], _WIDE)


def _as_byte(zero: Expression) -> Expression:
    if zero.op == "constant":
        return constant((zero.payload + 128) % 256 - 128, _NARROW)
    return operation("arith.trunci", [zero], _NARROW)


def _with_other_sign(integer: Expression) -> Expression:
    """The integer of 8 bits that is as far from the least of its kind."""
    return operation("arith.xori", [integer, constant(-128, _NARROW)], _NARROW)
