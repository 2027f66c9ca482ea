"""Ops that become no op, a cast, or slices: an op's name to a function that writes it.

A rewrite gets the operands by the schema's names and the types of the results, and returns the results, or None to
leave the op to the next way.
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
from torchmdla.importer.types import TensorMeta, dtype_number

Rewrite = Callable[[Emitter, Mapping[str, Any], Sequence[Any]], "list[object] | None"]


def cast(emitter: Emitter, value: Value, meta: TensorMeta) -> Value:
    """``value`` with the dtype of ``meta``; itself when it has that."""
    assert value.meta is not None
    if value.meta.dtype == meta.dtype:
        return value
    operands = [
        value,
        emitter.integer(dtype_number(meta.dtype)),
        emitter.boolean(False),
        emitter.boolean(False),
        emitter.none(),
    ]
    return emitter.tensor_op("torch.aten.to.dtype", operands, meta)


def slice_along(emitter: Emitter, value: Value, dim: int, start: int, length: int) -> Value:
    """``value[start : start + length]`` along ``dim``."""
    meta = _resized(value, dim, length)
    operands = [value, *(emitter.integer(n) for n in (dim, start, start + length, 1))]
    return emitter.tensor_op("torch.aten.slice.Tensor", operands, meta)


def split_along(emitter: Emitter, value: Value, dim: int, metas: Sequence[TensorMeta]) -> list[Value]:
    """Consecutive slices along ``dim``, as long as ``metas`` say."""
    pieces = []
    start = 0
    for meta in metas:
        length = meta.shape[dim]
        pieces.append(slice_along(emitter, value, dim, start, length))
        start += length
    return pieces


def _resized(value: Value, dim: int, length: int) -> TensorMeta:
    assert value.meta is not None
    shape = list(value.meta.shape)
    shape[dim] = length
    return TensorMeta(value.meta.dtype, tuple(shape), contiguous_strides(shape))


def _same_values(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    """The first operand: memory order is the importer's affair, so only the dtype can differ."""
    return [cast(emitter, next(iter(operands.values())), metas[0])]


def _dropout(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    if operands["train"] and operands["p"] != 0:
        raise CompileError("dropout in training draws random numbers")
    return [operands["input"]]


def _split(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    value = operands["self"]
    return [split_along(emitter, value, operands["dim"] % len(value.meta.shape), metas[0])]


def _unbind(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    dim = emitter.integer(operands["dim"] % len(operands["self"].meta.shape))
    return [
        [
            emitter.tensor_op("torch.aten.select.int", [operands["self"], dim, emitter.integer(index)], meta)
            for index, meta in enumerate(metas[0])
        ]
    ]


def _view(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    """One op for all that only changes the shape, with the sizes of the result: no -1, no second tensor."""
    if operands["self"].meta.shape == metas[0].shape:
        return [operands["self"]]
    return [viewed(emitter, operands["self"], metas[0])]


def _expand(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    if operands["self"].meta.shape == metas[0].shape:
        return [operands["self"]]
    sizes = emitter.int_list(metas[0].shape)
    return [emitter.tensor_op("torch.aten.expand", [operands["self"], sizes, emitter.boolean(False)], metas[0])]


def _roll(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object]:
    """With shifts below the sizes: upstream's slices are clamped beyond. Without dims it is the flat tensor's."""
    value, shifts, dims = operands["self"], operands["shifts"], operands["dims"]
    if dims:
        return [_rolled(emitter, value, shifts, dims)]
    result = _rolled(emitter, viewed(emitter, value, _flat(value.meta)), shifts, [0])
    return [viewed(emitter, result, metas[0])]


def _rolled(emitter: Emitter, value: Value, shifts: Sequence[int], dims: Sequence[int]) -> Value:
    assert value.meta is not None
    reduced = [shift % value.meta.shape[dim] for shift, dim in zip(shifts, dims, strict=True)]
    operands = [value, emitter.int_list(reduced), emitter.int_list(dims)]
    return emitter.tensor_op("torch.aten.roll", operands, value.meta)


def viewed(emitter: Emitter, value: Value, meta: TensorMeta) -> Value:
    """``value`` in the sizes of ``meta``."""
    return emitter.tensor_op("torch.aten.view", [value, emitter.int_list(meta.shape)], meta)


def _of_one_element(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """What picks, orders or adds up elements, of a tensor without dimensions: itself, in the dtype of the results."""
    return None if operands["self"].meta.shape else [cast(emitter, operands["self"], meta) for meta in metas]


def _scalar_tensor(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Of a size, which is a 0-d tensor already."""
    is_tensor = isinstance(operands["s"], Value) and operands["s"].meta is not None
    return [cast(emitter, operands["s"], metas[0])] if is_tensor else None


def _cast_first(op: str) -> Rewrite:
    """The op along ``dim`` of the cast operand: upstream lowers it without a dtype only."""

    def rewrite(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
        value, dim = operands["self"], emitter.integer(operands["dim"])
        if operands["dtype"] is None or not value.meta.shape:
            return None
        return [emitter.tensor_op(op, [cast(emitter, value, metas[0]), dim, emitter.none()], metas[0])]

    return rewrite


def _first_of(*rewrites: Rewrite) -> Rewrite:
    """The first of ``rewrites`` that applies."""

    def rewrite(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
        found = (one(emitter, operands, metas) for one in rewrites)
        return next((results for results in found if results is not None), None)

    return rewrite


def _equal(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """A tensor and itself, where upstream forgets that NaN is not equal to itself."""
    value = operands["self"]
    if value != operands["other"] or not value.meta.dtype.is_floating_point:
        return None
    differs = emitter.tensor_op("torch.aten.ne.Tensor", [value, value], metas[0])
    return [emitter.tensor_op("torch.aten.logical_not", [differs], metas[0])]


def _gather(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """0-d tensors as rows of one element."""
    value, index = operands["self"], operands["index"]
    if value.meta.shape and index.meta.shape:
        return None
    value, index = (viewed(emitter, x, _flat(x.meta)) for x in (value, index))
    given = [value, emitter.integer(0), index, emitter.boolean(operands["sparse_grad"])]
    return [viewed(emitter, emitter.tensor_op("torch.aten.gather", given, _flat(metas[0])), metas[0])]


def _flat(meta: TensorMeta) -> TensorMeta:
    """The same elements in one dimension."""
    return replace(meta, shape=(math.prod(meta.shape),), strides=(1,))


def _put_masked(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    """Values that do not depend on how much one mask selects, chosen element by element."""
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
    flags = viewed(emitter, mask, TensorMeta(torch.bool, sizes, contiguous_strides(sizes)))
    return [emitter.tensor_op("torch.aten.where.self", [flags, values, value], metas[0])]


def _check_sum(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> None:
    """
    Raises:
        CompileError: booleans are added up to one. Upstream adds bits, in which true and true are false.
    """
    if metas[0].dtype == torch.bool:
        raise CompileError("a sum in booleans is not supported")


def _check_power(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> None:
    """
    Raises:
        CompileError: of integers; upstream has powers of floats only.
    """
    if not metas[0].dtype.is_floating_point:
        raise CompileError("a power of integers by a tensor is not supported")


def _check_pool(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> None:
    """
    Raises:
        CompileError: of integers, on which upstream ends the process.
    """
    if not metas[0].dtype.is_floating_point:
        raise CompileError("a maximum of windows of integers is not supported")


def _index_put(emitter: Emitter, operands: Mapping[str, Any], metas: Sequence[Any]) -> list[object] | None:
    if operands["accumulate"]:
        _check_sum(emitter, operands, metas)
    return _put_masked(emitter, operands, metas)


def widened(emitter: Emitter, indices: Sequence[object]) -> list[object]:
    """Index tensors as int64, which is all that upstream takes in a list.

    Raises:
        CompileError: a mask is among them. How much it selects is known only at run time.
    """
    if any(isinstance(index, Value) and index.meta is not None and index.meta.dtype == torch.bool for index in indices):
        raise CompileError("a mask as an index is not supported")
    return [
        cast(emitter, index, replace(index.meta, dtype=torch.int64))
        if isinstance(index, Value) and index.meta is not None and index.meta.dtype == torch.int32
        else index
        for index in indices
    ]


_SAME_VALUES = [
    "aten::alias",
    "aten::clone",
    "aten::contiguous",
    "aten::detach",
    "aten::lift_fresh",
    "aten::positive",
    "aten::to.dtype",
    "aten::to.dtype_layout",
    "aten::to.device",
    "aten::to.other",
    "aten::to.prim_Device",
    "aten::to.prim_dtype",
    "aten::to.prim_other",
    "aten::_to_copy",
    "aten::type_as",
    "aten::cpu",
    "aten::resolve_conj",
    "aten::resolve_neg",
    "prims::convert_element_type",
]
_DROPOUTS = ["aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::feature_alpha_dropout"]
_SPLITS = [
    "aten::split",
    "aten::split.Tensor",
    "aten::split.sizes",
    "aten::split_with_sizes",
    "aten::chunk",
    "aten::unsafe_chunk",
    "aten::unsafe_split.Tensor",
    "aten::unsafe_split_with_sizes",
    "aten::tensor_split.sections",
    "aten::tensor_split.indices",
]
_VIEWS = [
    "aten::view",
    "aten::reshape",
    "aten::_unsafe_view",
    "aten::_reshape_alias",
    "aten::flatten.using_ints",
    "aten::unflatten.int",
    "aten::view_as",
    "aten::reshape_as",
    "aten::squeeze",
    "aten::squeeze.dim",
    "aten::squeeze.dims",
    "aten::unsqueeze",
    "aten::ravel",
]

_OF_ELEMENTS = ["aten::amax", "aten::amin", "aten::aminmax", "aten::cumsum", "aten::flip", "aten::index_select"]

_SUMS = ["aten::sum", "aten::sum.dim_IntList"]

REWRITES: Mapping[str, Rewrite] = {
    **dict.fromkeys(_SAME_VALUES, _same_values),
    **dict.fromkeys(_DROPOUTS, _dropout),
    **dict.fromkeys(_SPLITS, _split),
    **dict.fromkeys(_VIEWS, _view),
    "aten::roll": _roll,
    "aten::scalar_tensor": _scalar_tensor,
    **dict.fromkeys(_OF_ELEMENTS, _of_one_element),
    "aten::cumprod": _first_of(_of_one_element, _cast_first("torch.aten.cumprod")),
    "aten::log_softmax.int": _cast_first("torch.aten.log_softmax.int"),
    "aten::index_put": _index_put,
    "aten::max_pool3d": _check_pool,
    "aten::eq.Tensor": _equal,
    "aten::gather": _gather,
    **dict.fromkeys(_SUMS, _check_sum),
    "aten::pow.Tensor_Tensor": _check_power,
    "aten::unbind.int": _unbind,
    "aten::expand": _expand,
    "aten::expand_as": _expand,
    "aten::broadcast_to": _expand,
}
