"""Tensors with one dimension less than upstream's lowerings want: 0-d ones, images without a batch.

Upstream refuses some, ends the process on others, and never comes to an end with the softmax of a 0-d tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.layout import contiguous_strides
from torchmdla.importer.rewrites import viewed
from torchmdla.importer.types import TensorMeta

# The least rank that each op's first tensor is to have.
_LEAST: dict[str, int] = {
    **{f"aten::{name}": 1 for name in ("softmax.int", "_softmax", "_softmax_backward_data")},
    **{f"aten::{name}": 1 for name in ("log_softmax.int", "_log_softmax", "_log_softmax_backward_data")},
    **{f"aten::{name}": 1 for name in ("prod.dim_int", "all.dim", "any.dim", "any.dims", "argmax", "argmin")},
    **{f"aten::{name}.{kind}": 1 for name in ("var", "std", "var_mean") for kind in ("dim", "correction")},
    **{f"aten::{kind}_pool{spatial}d": spatial + 2 for kind in ("max", "avg") for spatial in (1, 2, 3)},
}


def lacks_a_dimension(name: str, operands: Sequence[object]) -> bool:
    """Whether the op is to be written with one more dimension, of size 1, before those of its tensors."""
    first = operands[0] if operands else None
    return isinstance(first, Value) and first.meta is not None and len(first.meta.shape) < _LEAST.get(name, 0)


def raised(emitter: Emitter, operands: Sequence[object]) -> list[object]:
    """The operands with that dimension."""
    return [
        viewed(emitter, operand, _raised(operand.meta)) if isinstance(operand, Value) and operand.meta else operand
        for operand in operands
    ]


def raised_metas(schema: torch._C.FunctionSchema, operands: Sequence[object], metas: Sequence[Any]) -> list[Any]:
    """The types of the results then: those of a reduction that keeps no dimension are the same."""
    named = dict(zip((argument.name for argument in schema.arguments), operands, strict=True))
    return list(metas) if named.get("keepdim") is False else [_raised(meta) for meta in metas]


def restored(emitter: Emitter, results: Sequence[Any], metas: Sequence[Any]) -> list[object]:
    """The results without that dimension."""
    return [
        result if result.meta.shape == meta.shape else viewed(emitter, result, meta)
        for result, meta in zip(results, metas, strict=True)
    ]


def _raised(meta: TensorMeta) -> TensorMeta:
    shape = (1, *meta.shape)
    return replace(meta, shape=shape, strides=contiguous_strides(shape))
