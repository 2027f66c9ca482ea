"""Matching of floats that represent integers of 8 bits: ``(integer - zero) * scale``.

A quantised tensor has this form where PyTorch computes with it. Programs contain it as::

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
    accumulator,
    constant,
    contents,
    load,
    map_loads,
    operation,
    reduced,
    substitute,
)
from torchmdla.devices.cpu.loop_program import LoopNest, LoopProgram, Step, Users, starts_from_zero
from torchmdla.devices.cpu.machine import Machine
from torchmdla.devices.cpu.passes.dot_layouts import WordProduct
from torchmdla.devices.cpu.passes.integer_sums import MOST_TERMS, hoist, scale_result, sum_of_words
from torchmdla.devices.cpu.passes.layout import in_memory_order
from torchmdla.devices.cpu.passes.narrow import AccessMap, NarrowBuffers, factors_of, streamed_weights
from torchmdla.devices.cpu.passes.precompute import overwritten_buffers, parameter_predicate
from torchmdla.devices.cpu.patterns import any_expression, op

_SUM, _WIDE, _NARROW = "i32", "f32", "i8"

# Operations that widen a vector, subtract its zeros and multiply it by its scales.
_DECODING = 3

_NO_ZERO, _NO_SCALE = constant(0, _SUM), constant(1.0, _WIDE)


_SCALED_PRODUCTS = op(
    "arith.addf",
    op("accumulator"),
    op("arith.mulf", op("arith.mulf", any_expression("integer"), any_expression("scale")), any_expression("other")),
)


@dataclass(frozen=True)
class Quantised:
    """Value ``(integer - zero) * scale`` of an ``i8``, which is signed or unsigned, an ``i32`` and an ``f32``."""

    integer: Expression
    is_signed: bool
    zero: Expression
    scale: Expression


def match_quantised(value: Expression) -> Quantised | None:
    """Return the parts of a float32 that is a quantised integer, or of an ``i32`` that is one of 8 bits, else None."""
    if value.type == _SUM:
        return _match_extended(value, _NO_ZERO, _NO_SCALE)
    if value.op != "arith.mulf":
        return _match_difference(value, _NO_SCALE)
    first, second = value.operands
    return _match_difference(first, second) or _match_difference(second, first)


def _match_difference(value: Expression, scale: Expression) -> Quantised | None:
    zero = _NO_ZERO
    if value.op == "arith.subf":
        value, subtracted = value.operands
        zero_point = _match_sum(subtracted)
        if zero_point is None:
            return None
        zero = zero_point
    if value.op != "arith.sitofp" or value.type != _WIDE:
        return None
    (integer,) = value.operands
    if integer.op == "arith.subi" and zero is _NO_ZERO:
        integer, subtracted = integer.operands
        zero = _to_i32(subtracted)
    return _match_extended(integer, zero, scale)


def _match_extended(integer: Expression, zero: Expression, scale: Expression) -> Quantised | None:
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


def _match_sum(value: Expression) -> Expression | None:
    """Return a float32 that is an integer as an ``i32``, else None."""
    if value.op == "constant" and math.isfinite(value.payload) and value.payload == int(value.payload):
        return constant(int(value.payload), _SUM)
    return _to_i32(value.operands[0]) if value.op == "arith.sitofp" else None


def _to_i32(integer: Expression) -> Expression:
    """Return an integer as an ``i32``."""
    if integer.type == _SUM:
        return integer
    if integer.op == "constant":
        return constant(integer.payload, _SUM)
    return operation("arith.extsi" if integer.type in ("i8", "i16") else "arith.trunci", [integer], _SUM)


def add_number(value: Expression, number: int) -> Expression:
    """Return the sum of an ``i32`` and a number."""
    if value.op == "constant":
        return constant(value.payload + number, _SUM)
    return operation("arith.addi", [value, constant(number, _SUM)], _SUM) if number else value


def _is_constant_along(step: LoopNest, value: Expression) -> bool:
    """Return whether a value does not vary along the reduced loops of a step."""
    body = contents((value,))
    loops = frozenset[int](body.loops).union(*(access.loops for access in body.loads))
    return not body.tables and not any(step.reduction[loop] for loop in loops)


@dataclass(frozen=True)
class QuantisationForm:
    """Common form of the values of a buffer; ``zero`` and ``scale`` are over the buffer's dimensions as loops."""

    is_signed: bool
    zero: Expression
    scale: Expression

    def at(self, access: Access) -> tuple[Expression, Expression]:
        """Return zero and scale of the element at an access of a nest."""
        loops = len(access.indices[0].factors) if access.indices else 0
        along = partial(Access.substitute, indices=dict(enumerate(access.indices)), loops=loops)
        zero, scale = map_loads((self.zero, self.scale), along)
        return zero, scale


def _has_zero(form: QuantisationForm) -> bool:
    """Return whether an integer of 8 bits represents 0, the border of an image."""
    lowest = -128 if form.is_signed else 0
    return form.zero.op == "constant" and lowest <= form.zero.payload <= lowest + 255


class QuantisedBuffers(NarrowBuffers):
    """Set of the buffers all of whose values are quantised in one form.

    Processors multiply an unsigned integer by a signed one. Values that depend on parameters alone are therefore stored
    as signed integers, and all others as unsigned ones.
    """

    element = _NARROW

    def __init__(self, steps: LoopProgram, machine: Machine) -> None:
        self._machine = machine
        self._users = Users(steps.steps)
        self._overwritten = overwritten_buffers(steps)
        self._is_known = parameter_predicate(steps)
        self._weights: set[Buffer] = set()  # in their layouts
        self._forms: dict[Buffer, QuantisationForm | None] = {}

    def __contains__(self, buffer: Buffer) -> bool:
        return self._form(buffer) is not None

    def users(self, buffer: Buffer) -> list[Step]:
        return self._users.of(buffer)

    def sources(self, buffer: Buffer) -> Collection[Buffer]:
        return [v.payload.buffer for _, _, v in self._find_stores(buffer) if v.op == "load"]

    def may_multiply(self, step: LoopNest, product: WordProduct) -> bool:
        """Return whether exactly one factor is known, and the sum and its corrections fit into 32 bits."""
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
        return not any(step.reduction[loop] for operand in contents(form.at(access)).loads for loop in operand.loops)

    def profitable_buffers(self, steps: LoopProgram, has_products: bool) -> Iterable[Buffer]:
        """Return all computed quantised buffers if products are in use, and the weights that few rows walk."""
        outputs = dict.fromkeys(buffer for step in steps.nests() for buffer in step.writes if has_products)
        return [
            *(buffer for buffer in outputs if buffer in self and not self._is_known(Access.identity(buffer))),
            *streamed_weights(steps, self, self._is_known, self._machine, _DECODING),
        ]

    def simplify(self, step: LoopNest) -> list[LoopNest]:
        """Move the scale of a sum of products to the epilogue, so that it multiplies the sum once.

        Zeros and scales of weights that vary along the sum are laid out as the weights are.
        """
        if len(step.outputs) != 1 or not starts_from_zero(step):
            return []
        before: list[LoopNest] = []
        for value in contents(step.values).expressions:
            parts = match_quantised(value) if value.type == _WIDE else None
            if parts is None or parts.integer.op != "load" or parts.integer.payload.buffer not in self._weights:
                continue
            order = in_memory_order(step, parts.integer.payload)
            for number in (_to_float(parts.zero), parts.scale):
                # Products of unscaled weights with other floats have the same form as scaled weights.
                loads = contents((number,)).loads
                is_of_weights = all(access.loops <= set(order) for access in loads)
                if loads and is_of_weights and (number.op != "load" or not _is_constant_along(step, number)):
                    step.values = substitute(step.values, {number: hoist(step, number, before, order)})
        for match in _SCALED_PRODUCTS.matches(step.values[0]):
            if _is_constant_along(step, match["scale"]) and match["integer"].op in ("arith.sitofp", "arith.subf"):
                product = operation("arith.mulf", [match["integer"], match["other"]], _WIDE)
                step.values = (operation("arith.addf", [accumulator(0, _WIDE), product], _WIDE),)
                scale_result(step, reduced(0, _WIDE), match["scale"])
                break
        return before

    def widen_load(self, access: Access, map_access: AccessMap) -> Expression:
        zero, scale = self._stored_form(access)
        extend = "arith.extsi" if self._is_stored_signed(access) else "arith.extui"
        if self._is_known(access):
            self._weights.add(map_access(access).buffer)
        value = operation(extend, [load(map_access(access))], _SUM)
        if access.buffer.element == _SUM:
            return add_number(value, -zero.payload)
        value = operation("arith.sitofp", [value], _WIDE)
        if zero is not _NO_ZERO:
            value = operation("arith.subf", [value, _to_float(zero)], _WIDE)
        return value if scale is _NO_SCALE else operation("arith.mulf", [value, scale], _WIDE)

    def narrow_value(self, value: Expression, access: Access, map_access: AccessMap) -> Expression:
        is_signed = self._is_stored_signed(access)
        if value.op == "constant":
            zero, _ = self._stored_form(access)
            return _to_i8(zero)
        parts = match_quantised(value)
        assert parts is not None, "all that is written to a buffer is in its form"
        return parts.integer if parts.is_signed == is_signed else _flip_sign(parts.integer)

    def sum_words(self, step: LoopNest, map_access: AccessMap, words: AccessMap) -> list[LoopNest]:
        values, weights = sorted(factors_of(step) or (), key=self._is_known)
        factors = ((map_access(access), words(access), *self._stored_form(access)) for access in (values, weights))
        return sum_of_words(step, *factors)

    def _form(self, buffer: Buffer) -> QuantisationForm | None:
        if buffer not in self._forms:
            self._forms[buffer] = None  # The result for a buffer that is computed from itself.
            self._forms[buffer] = self._common_form(buffer)
        return self._forms[buffer]

    def _form_of(self, buffer: Buffer) -> QuantisationForm:
        form = self._form(buffer)
        assert form is not None
        return form

    def _common_form(self, buffer: Buffer) -> QuantisationForm | None:
        if buffer.kind != "temporary" or buffer.element not in (_WIDE, _SUM) or buffer.fixed:
            return None
        if any(not isinstance(s, LoopNest) or buffer in [t.buffer for t in s.tables] for s in self.users(buffer)):
            return None
        written = self._find_stores(buffer)
        others = [(s, a, v) for s, a, v in written if v.op != "constant" or v.payload != 0.0]
        forms = {self._form_written(*store) for store in others}
        form = forms.pop() if len(forms) == 1 else None
        return form if form is None or len(others) == len(written) or _has_zero(form) else None

    def _find_stores(self, buffer: Buffer) -> list[tuple[LoopNest, Access, Expression]]:
        """Return all writes to a buffer, each with its step, access and value."""
        stores = []
        for step in self.users(buffer):
            assert isinstance(step, LoopNest)
            values = step.epilogue.values if step.epilogue else step.values
            pairs = zip(step.written_accesses, values, strict=True)
            stores += [(step, access, value) for access, value in pairs if access.buffer is buffer]
        return stores

    def _form_written(self, step: LoopNest, access: Access, value: Expression) -> QuantisationForm | None:
        """Return the form of a value that a step writes, over the dimensions of the destination."""
        if value.op == "load":
            source = self._form(value.payload.buffer)
            if source is None:
                return None
            is_signed, (zero, scale) = source.is_signed, source.at(value.payload)
        else:
            parts = match_quantised(value)
            if parts is None:
                return None
            is_signed, zero, scale = parts.is_signed, parts.zero, parts.scale
        body, count = contents((zero, scale)), len(access.indices)
        dimensions = {i.loops[0]: AffineExpr.of_loop(d, count) for d, i in enumerate(access.indices) if i.is_loop()}
        if body.tables or body.loops or not all(self._may_be_read_later(operand, dimensions) for operand in body.loads):
            return None
        if any(expression.op in ("accumulator", "reduced") for expression in body.expressions):
            return None
        along = partial(Access.substitute, indices=dimensions, loops=count)
        return QuantisationForm(is_signed, *map_loads((zero, scale), along))

    def _may_be_read_later(self, access: Access, loops: Mapping[int, AffineExpr]) -> bool:
        return access.buffer not in self._overwritten and loops.keys() >= access.loops

    def _is_stored_signed(self, access: Access) -> bool:
        return self._is_known(access)

    def _stored_form(self, access: Access) -> tuple[Expression, Expression]:
        """Return zero and scale of the stored integers."""
        form = self._form_of(access.buffer)
        zero, scale = form.at(access)
        is_signed = self._is_stored_signed(access)
        return (zero if form.is_signed == is_signed else add_number(zero, -128 if is_signed else 128)), scale


def _to_float(zero: Expression) -> Expression:
    return constant(zero.payload, _WIDE) if zero.op == "constant" else operation("arith.sitofp", [zero], _WIDE)


def _to_i8(zero: Expression) -> Expression:
    if zero.op == "constant":
        return constant((zero.payload + 128) % 256 - 128, _NARROW)
    return operation("arith.trunci", [zero], _NARROW)


def _flip_sign(integer: Expression) -> Expression:
    """Return the integer of 8 bits with the same distance from the least value of the other signedness."""
    return operation("arith.xori", [integer, constant(-128, _NARROW)], _NARROW)
