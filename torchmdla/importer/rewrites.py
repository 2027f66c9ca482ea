"""Rewrites of ops: functions that write an op as no op, a cast, or slices.

A rewrite gets the operands by the schema's names and the types of the results. It returns the results, or None to
leave the op to the next strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.layout import contiguous_strides
from torchmdla.importer.types import COMPUTED, TensorMeta, dtype_number

Rewrite = Callable[[Emitter, Mapping[str, Any], Sequence[Any]], "list[object] | None"]


def cast(emitter: Emitter, value: Value, meta: TensorMeta) -> Value:
    """Return ``value`` with the dtype of ``meta``, or ``value`` itself if it has that dtype.

    As in PyTorch, dtypes that are only stored are converted to and from the dtypes in which they are computed.
    """
    assert value.meta is not None
    dtypes = value.meta.dtype, meta.dtype
    if dtypes[0] == dtypes[1]:
        return value
    for dtype in dtypes:
        if COMPUTED.get(dtype, dtype) not in dtypes:
            between = cast(emitter, value, replace(value.meta, dtype=_BETWEEN.get(dtypes, COMPUTED[dtype])))
            return cast(emitter, between, meta)
    converted = _write_conversion(emitter, value, meta)
    if dtypes[0] != torch.uint8:
        return converted
    return emitter.tensor_op("torch.aten.bitwise_and.Scalar", [converted, emitter.integer(_BYTE)], meta)


# PyTorch converts float64 to uint8 through 64 bits. A narrower float that exceeds 32 bits has a zero low byte.
_BETWEEN = {(torch.float64, torch.uint8): torch.int64}

# A mask of all bits of a byte. It restores a byte that was treated as signed.
_BYTE = 0xFF


def _write_conversion(emitter: Emitter, value: Value, meta: TensorMeta) -> Value:
    written = torch.int8 if meta.dtype == torch.uint8 else meta.dtype
    operands = [
        value,
        emitter.integer(dtype_number(written)),
        emitter.boolean(False),
        emitter.boolean(False),
        emitter.none(),
    ]
    return emitter.tensor_op("torch.aten.to.dtype", operands, meta)


def slice_along(emitter: Emitter, value: Value, dim: int, start: int, length: int) -> Value:
    """Return ``value[start : start + length]`` along ``dim``."""
    meta = _resize(value, dim, length)
    operands = [value, *(emitter.integer(n) for n in (dim, start, start + length, 1))]
    return emitter.tensor_op("torch.aten.slice.Tensor", operands, meta)


def split_along(emitter: Emitter, value: Value, dim: int, metas: Sequence[TensorMeta]) -> list[Value]:
    """Return consecutive slices along ``dim``, with the lengths in ``metas``."""
    pieces = []
    start = 0
    for meta in metas:
        length = meta.shape[dim]
        pieces.append(slice_along(emitter, value, dim, start, length))
        start += length
    return pieces


def _resize(value: Value, dim: int, length: int) -> TensorMeta:
    assert value.meta is not None
    shape = list(value.meta.shape)
    shape[dim] = length
    return TensorMeta(value.meta.dtype, tuple(shape), contiguous_strides(shape))


def forward_operand(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    """Return the first operand. Only the dtype can differ, because the importer handles memory order separately."""
    return [cast(emitter, next(iter(operands.values())), metas[0])]


def dropout(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    if operands["train"] and operands["p"] != 0:
        raise CompileError("dropout in training draws random numbers")
    return [operands["input"]]


def split(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    value = operands["self"]
    return [split_along(emitter, value, operands["dim"] % len(value.meta.shape), metas[0])]


def unbind(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    dim = emitter.integer(operands["dim"] % len(operands["self"].meta.shape))
    return [
        [
            emitter.tensor_op("torch.aten.select.int", [operands["self"], dim, emitter.integer(index)], meta)
            for index, meta in enumerate(metas[0])
        ]
    ]


def view(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    """Write one op for all ops that only change the shape. It has explicit sizes: no -1, no second tensor."""
    if operands["self"].meta.shape == metas[0].shape:
        return [operands["self"]]
    return [write_view(emitter, operands["self"], metas[0])]


def expand(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    if operands["self"].meta.shape == metas[0].shape:
        return [operands["self"]]
    sizes = emitter.int_list(metas[0].shape)
    return [emitter.tensor_op("torch.aten.expand", [operands["self"], sizes, emitter.boolean(False)], metas[0])]


def narrow(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    """Write a slice with a start that counts from the front.

    If the start counts from the back, upstream treats an end of 0 as an empty slice.
    """
    value, start = operands["self"], operands["start"]
    dim = operands["dim"] % len(value.meta.shape)
    start = start + value.meta.shape[dim] if start < 0 else start
    return [slice_along(emitter, value, dim, start, operands["length"])]


def roll(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    """Write a roll with shifts below the sizes, because upstream's slices clamp. Without dims, roll the flat tensor."""
    value, shifts, dims = operands["self"], operands["shifts"], operands["dims"]
    if dims:
        return [_write_roll(emitter, value, shifts, dims)]
    result = _write_roll(emitter, write_view(emitter, value, _flat(value.meta)), shifts, [0])
    return [write_view(emitter, result, metas[0])]


def _write_roll(emitter: Emitter, value: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    assert value.meta is not None
    reduced = [shift % value.meta.shape[dim] for shift, dim in zip(shifts, dims, strict=True)]
    operands = [value, emitter.int_list(reduced), emitter.int_list(dims)]
    return emitter.tensor_op("torch.aten.roll", operands, value.meta)


def write_view(emitter: Emitter, value: Value, meta: TensorMeta) -> Value:
    """Return ``value`` with the sizes of ``meta``."""
    return emitter.tensor_op("torch.aten.view", [value, emitter.int_list(meta.shape)], meta)


def fold_single_element(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Return a 0-d tensor itself, in the dtype of the results, for an op that selects, orders or adds elements."""
    return None if operands["self"].meta.shape else [cast(emitter, operands["self"], meta) for meta in metas]


def scalar_tensor(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Return a size that is already a 0-d tensor, or None for other operands."""
    is_tensor = isinstance(operands["s"], Value) and operands["s"].meta is not None
    return [cast(emitter, operands["s"], metas[0])] if is_tensor else None


def cast_first(op: str) -> Rewrite:
    """Return a rewrite that casts the operand before the op along ``dim``: upstream lowers only ops without a dtype."""

    def rewrite(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
        value, dim = operands["self"], emitter.integer(operands["dim"])
        if operands["dtype"] is None or not value.meta.shape:
            return None
        return [emitter.tensor_op(op, [cast(emitter, value, metas[0]), dim, emitter.none()], metas[0])]

    return rewrite


def first_of(*rewrites: Rewrite) -> Rewrite:
    """Return a rewrite that uses the first of ``rewrites`` that applies."""

    def rewrite(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
        attempts = (candidate(emitter, operands, metas) for candidate in rewrites)
        return next((results for results in attempts if results is not None), None)

    return rewrite


def equal(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Compare a tensor with itself. Upstream ignores that NaN is not equal to itself."""
    value, other = operands["self"], operands["other"]
    if not isinstance(other, Value) or value.name != other.name or not value.meta.dtype.is_floating_point:
        return None
    differs = emitter.tensor_op("torch.aten.ne.Tensor", [value, value], metas[0])
    return [emitter.tensor_op("torch.aten.logical_not", [differs], metas[0])]


def write_lookup(op: str) -> Rewrite:
    """Return a rewrite of a lookup ``op`` along a dimension. Tensors without dimensions become rows of one element."""

    def rewrite(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
        value, index = operands["self"], operands["index"]
        if value.meta.shape and index.meta.shape:
            return None
        value, index = (x if x.meta.shape else write_view(emitter, x, _flat(x.meta)) for x in (value, index))
        arguments = [value, emitter.integer(operands["dim"]), index]
        if "sparse_grad" in operands:
            arguments.append(emitter.boolean(operands["sparse_grad"]))
        (meta,) = metas
        result = emitter.tensor_op(op, arguments, meta if meta.shape else _flat(meta))
        return [result if meta.shape else write_view(emitter, result, meta)]

    return rewrite


def _flat(meta: TensorMeta) -> TensorMeta:
    """Return the type of the same elements in one dimension."""
    return replace(meta, shape=(math.prod(meta.shape),), strides=(1,))


def put_masked(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Select element by element between the tensor and values that do not depend on the count of selected elements."""
    value, indices, values = operands["self"], operands["indices"], operands["values"]
    if not indices or operands["accumulate"]:
        return None
    *before, mask = indices
    if any(index is not None for index in before) or mask is None or mask.meta.dtype != torch.bool:
        return None
    behind = len(value.meta.shape) - len(before) - len(mask.meta.shape)
    if len(values.meta.shape) > behind:
        return None
    sizes = (*mask.meta.shape, *[1] * behind)
    flags = write_view(emitter, mask, TensorMeta(torch.bool, sizes, contiguous_strides(sizes)))
    return [emitter.tensor_op("torch.aten.where.self", [flags, values, value], metas[0])]


def check_sum(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> None:
    """Check that the sum is not in booleans.

    Raises:
        CompileError: If the result is a boolean. Upstream adds bits, so that true and true are false.
    """
    if metas[0].dtype == torch.bool:
        raise CompileError("a sum in booleans is not supported")


def check_floats(operation: str) -> Rewrite:
    """Return a check that the result of ``operation`` has floats. Upstream refuses integers or ends the process."""

    def check(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> None:
        if not metas[0].dtype.is_floating_point:
            raise CompileError(f"{operation} is not supported")

    return check


def put(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    if operands["accumulate"]:
        check_sum(emitter, operands, metas)
    return put_masked(emitter, operands, metas)


def forward_if_empty(argument: str) -> Rewrite:
    """Return a rewrite to the first operand if ``argument``, the source or index of a write, has no elements."""

    def rewrite(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
        return [operands["self"]] if _has_no_elements(operands[argument]) else None

    return rewrite


def join(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Concatenate tensors, without those that add nothing."""
    joined = operands["tensors"]
    dense = [tensor for tensor in joined if not _has_no_elements(tensor)]
    if len(dense) == len(joined):
        return None
    arguments = [emitter.list(dense, "vtensor"), emitter.integer(operands["dim"])]
    return [emitter.tensor_op("torch.aten.cat", arguments, metas[0])]


def nan_without_elements(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Return NaN for the variance and mean of a tensor without elements, where upstream computes 0 / -1."""
    if not _has_no_elements(operands["self"]):
        return None
    return [_all_nan(emitter, meta) for meta in metas if isinstance(meta, TensorMeta)]


def nan_between_bounds(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Return NaN if a number that bounds the elements is NaN. Upstream's comparisons with it change nothing."""
    _, *bounds = operands.values()
    return [_all_nan(emitter, metas[0])] if any(bound != bound for bound in bounds) else None


def _all_nan(emitter: Emitter, meta: TensorMeta) -> Value:
    number = emitter.number_tensor(math.nan, replace(meta, shape=(), strides=()))
    if not meta.shape:
        return number
    operands = [number, emitter.int_list(meta.shape), emitter.boolean(False)]
    return emitter.tensor_op("torch.aten.expand", operands, meta)


def _has_no_elements(operand: object) -> bool:
    """Return whether a tensor, or any tensor of a list, has no elements."""
    if isinstance(operand, Sequence):
        return any(map(_has_no_elements, operand))
    return isinstance(operand, Value) and operand.meta is not None and 0 in operand.meta.shape
