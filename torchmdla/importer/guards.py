"""Checks that are written before an op: indices, integer divisors, and values that eager refuses.

Eager raises where an index is out of bounds. Upstream reads or writes out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.operands import NumberTensor, as_tensor
from torchmdla.importer.rewrites import cast
from torchmdla.importer.types import TensorMeta


def widen_indices(emitter: Emitter, operands: Sequence[Any]) -> list[Any]:
    """Return the operands with index tensors converted to int64, the only dtype that upstream supports in a list.

    Raises:
        CompileError: If an index is a mask. The number of elements that it selects is known only at run time.
    """
    value, indices, *rest = operands
    return [value, [_widen_index(emitter, index) for index in indices], *rest]


def normalise_indices(emitter: Emitter, operands: Sequence[Any]) -> list[Any]:
    """Return the operands with int64 indices that count from the front. A whole dimension has None as its index.

    The call fails where an index is out of bounds.

    Raises:
        CompileError: If an indexed dimension has no elements, or if an index is a mask.
    """
    value, indices, *rest = widen_indices(emitter, operands)
    moved = [
        _normalise_index(emitter, index, size) if isinstance(index, Value) else index
        for index, size in zip(indices, value.meta.shape, strict=False)
    ]
    return [value, moved, *rest]


def check_indices(emitter: Emitter, operands: Sequence[Any]) -> list[Any]:
    """Return the operands unchanged. Make the call fail where an index is out of bounds of the dimension."""
    value, dim, index, *_ = operands
    _check_bounds(emitter, index, value.meta.shape[dim] if value.meta.shape else 1)
    return list(operands)


def check_index(emitter: Emitter, operands: Mapping[str, Any]) -> None:
    """Make the call fail where an index is out of bounds of the dimension, before the operator is decomposed."""
    check_indices(emitter, [operands[name] for name in ("self", "dim", "index")])


def check_divisor(emitter: Emitter, operands: Sequence[Any]) -> list[Any]:
    """Return the operands unchanged. Make the call fail where an integer divisor is zero.

    Eager reports a zero divisor; the processor would end the process.
    """
    value, divisor, *_ = operands
    is_known = isinstance(divisor, NumberTensor) and divisor.value != 0
    if not value.meta.dtype.is_floating_point and not is_known:
        tensor = as_tensor(emitter, divisor)
        assert isinstance(tensor, Value)
        assert tensor.meta is not None
        flags = replace(tensor.meta, dtype=torch.bool)
        nonzero = emitter.tensor_op("torch.aten.ne.Scalar", [tensor, emitter.integer(0)], flags)
        _check_all(emitter, [nonzero], "division by zero")
    return list(operands)


def limit_correction(emitter: Emitter, operands: Sequence[Any]) -> list[Any]:
    """Return the operands with a correction of at most the number of elements: eager never divides by less than 0."""
    value, dims, correction, *rest = operands
    sizes = value.meta.shape
    count = math.prod(sizes[dim] for dim in dims) if dims else math.prod(sizes)
    return [value, dims, correction if correction is None else min(correction, count), *rest]


def check_single_row(emitter: Emitter, operands: Mapping[str, Any]) -> None:
    """Make ``index_select`` from a single row fail for indices other than 0. Upstream reads that row for any index."""
    sizes = operands["self"].meta.shape
    if not sizes or sizes[operands["dim"]] == 1:
        _check_bounds(emitter, operands["index"], 1)


def check_unit_interval(*names: str) -> Callable[[Emitter, Mapping[str, Any]], None]:
    """Return a check that every element of these operands is from 0 to 1. NaN fails the check."""

    def check(emitter: Emitter, operands: Mapping[str, Any]) -> None:
        for name in names:
            value = operands[name]
            bounds = [_compare(emitter, relation, value, number) for relation, number in (("ge", 0), ("le", 1))]
            _check_all(emitter, bounds, f"{name} is not between 0 and 1")

    return check


def check_zeros(emitter: Emitter, value: Value) -> None:
    """Make a call fail unless all elements are zeros, as they were when the program was recorded."""
    _check_all(emitter, [_compare(emitter, "eq", value, 0)], "an element is not zero any more")


def check_zero_points(emitter: Emitter, operands: Mapping[str, Any]) -> None:
    """Make a call fail if its zero points exceed 32 bits, in which compiled code computes with them.

    Raises:
        CompileError: If a known zero point exceeds 32 bits.
    """
    _check_known_limits(operands, "zero_point")
    points = operands.get("zero_point", operands.get("zero_points"))
    if isinstance(points, Value) and points.meta is not None and points.meta.dtype == torch.int64:
        limits = (("ge", -_MAX_ZERO_POINT), ("le", _MAX_ZERO_POINT))
        bounds = [_compare(emitter, relation, points, limit) for relation, limit in limits]
        _check_all(emitter, bounds, "a zero point is beyond 32 bits")


def check_quantisation(emitter: Emitter, operands: Mapping[str, Any]) -> None:
    """Check the zero points of a quantisation, and the limits to which it clamps.

    Raises:
        CompileError: If a known zero point or a limit exceeds 32 bits.
    """
    _check_known_limits(operands, "quant_min", "quant_max")
    check_zero_points(emitter, operands)


def _check_known_limits(operands: Mapping[str, Any], *names: str) -> None:
    for name in names:
        number = operands.get(name)
        if isinstance(number, int) and abs(number) > _MAX_ZERO_POINT:
            raise CompileError(f"{name} is beyond 32 bits, which is not supported", scope="place")


def check_scale(emitter: Emitter, operands: Mapping[str, Any]) -> None:
    """Make a quantisation fail for a scale of 0, and check its zero points.

    Eager divides by the scale as a Python number.
    """
    check_quantisation(emitter, operands)
    _check_all(emitter, [_compare(emitter, "ne", operands["scale"], 0)], "division by zero")


# A zero point within this limit stays in 32 bits when an integer of 8 bits is added or subtracted.
_MAX_ZERO_POINT = (1 << 31) - (1 << 9)

# Float32 represents all integers up to this limit.
_EXACT_INTEGERS = 1 << 24


def check_range(emitter: Emitter, number: Value, dtype: torch.dtype) -> None:
    """Make the call fail where ``number``, a 0-d tensor of floats, exceeds ``dtype``. Infinity and NaN pass."""
    assert number.meta is not None
    if dtype == torch.bool or not number.meta.dtype.is_floating_point:
        return
    is_float = dtype.is_floating_point
    if is_float and torch.finfo(number.meta.dtype).max <= torch.finfo(dtype).max:
        return
    size = emitter.tensor_op("torch.aten.abs", [number], number.meta)
    flags = replace(number.meta, dtype=torch.bool)
    if (
        not is_float
    ):  # Integers that float32 cannot represent exactly are left to eager, which converts or refuses them.
        limit = emitter.floating(min(torch.iinfo(dtype).max, _EXACT_INTEGERS))
        emitter.check(emitter.tensor_op("torch.aten.le.Scalar", [size, limit], flags), f"a number is beyond {dtype}")
        return
    limits = [("gt", torch.finfo(dtype).max), ("lt", math.inf)]
    sides = [
        emitter.tensor_op(f"torch.aten.{relation}.Scalar", [size, emitter.floating(limit)], flags)
        for relation, limit in limits
    ]
    beyond = emitter.tensor_op("torch.aten.logical_and", sides, flags)
    inside = emitter.tensor_op("torch.aten.logical_not", [beyond], flags)
    emitter.check(inside, f"a number is beyond {dtype}")


def is_mask(index: object) -> bool:
    """Return whether an index selects elements where it is true."""
    return isinstance(index, Value) and index.meta is not None and index.meta.dtype in (torch.bool, torch.uint8)


def _widen_index(emitter: Emitter, index: object) -> object:
    if not isinstance(index, Value) or index.meta is None:
        return index
    if is_mask(index):
        raise CompileError("a mask as an index is not supported")
    is_narrow = index.meta.dtype == torch.int32
    return cast(emitter, index, replace(index.meta, dtype=torch.int64)) if is_narrow else index


def _normalise_index(emitter: Emitter, index: Value, size: int) -> Value:
    assert index.meta is not None
    if not size:
        raise CompileError("an index into no elements is not supported", scope="sizes")
    counts_back = _compare(emitter, "lt", index, 0)
    moved = emitter.tensor_op("torch.aten.add.Scalar", [index, emitter.integer(size), emitter.integer(1)], index.meta)
    wrapped = emitter.tensor_op("torch.aten.where.self", [counts_back, moved, index], index.meta)
    _check_bounds(emitter, wrapped, size)
    return wrapped


def _check_bounds(emitter: Emitter, index: Value, size: int) -> None:
    bounds = [_compare(emitter, "ge", index, 0), _compare(emitter, "lt", index, size)]
    _check_all(emitter, bounds, "index out of bounds")


def _check_all(emitter: Emitter, flags: Sequence[Value], message: str) -> None:
    """Make the call fail unless every element of all ``flags``, which have the same sizes, is true."""
    first, *others = flags
    assert first.meta is not None
    for other in others:
        first = emitter.tensor_op("torch.aten.logical_and", [first, other], first.meta)
    every = emitter.tensor_op("torch.aten.all", [first], TensorMeta(torch.bool, (), ()))
    emitter.check(every, message)


def _compare(emitter: Emitter, relation: str, value: Value, number: int) -> Value:
    assert value.meta is not None
    flags = replace(value.meta, dtype=torch.bool)
    return emitter.tensor_op(f"torch.aten.{relation}.Scalar", [value, emitter.integer(number)], flags)
