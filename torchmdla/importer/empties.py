"""Tensors without elements: whatever makes only such tensors needs no computation.

Upstream's lowerings refuse many of them and end the process on some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.trace import leaves, map_structure
from torchmdla.importer.types import TensorMeta


def without_elements(emitter: Emitter, metas: Sequence[object]) -> list[object] | None:
    """Literals for the results ``metas``, lists included, if there are any and none has an element; else None."""
    found = list(leaves(metas))
    if not found or not all(isinstance(meta, TensorMeta) and 0 in meta.shape for meta in found):
        return None
    return [map_structure(emitter.empty_tensor, meta) for meta in metas]


def unchanged(name: str, operands: Sequence[object]) -> object | None:
    """The operand that the op ``name`` returns as it is, because an index or a source has no elements; else None."""
    position = _LEAVES_FIRST.get(name)
    if position is None or not _has_none(operands[position]):
        return None
    return operands[0]


def dense_operands(name: str, operands: Sequence[object]) -> Sequence[object]:
    """The operands without the joined tensors that add nothing."""
    if name not in _JOINS:
        return operands
    joined, *rest = operands
    return [[item for item in joined if not _has_none(item)], *rest]  # type: ignore[attr-defined]


def variance(emitter: Emitter, name: str, operands: Sequence[object], metas: Sequence[object]) -> list[object] | None:
    """NaN for the variance, and the mean, of a tensor without elements, where upstream has 0 / -1; else None."""
    if name.partition(".")[0] not in _VARIANCES or not _has_none(operands[0]):
        return None
    return [_all_nan(emitter, meta) for meta in metas if isinstance(meta, TensorMeta)]


def _all_nan(emitter: Emitter, meta: TensorMeta) -> Value:
    number = emitter.number_tensor(math.nan, replace(meta, shape=(), strides=()))
    if not meta.shape:
        return number
    operands = [number, emitter.int_list(meta.shape), emitter.boolean(False)]
    return emitter.tensor_op("torch.aten.expand", operands, meta)


_VARIANCES = frozenset(("aten::var", "aten::std", "aten::var_mean", "aten::std_mean"))


def _has_none(operand: object) -> bool:
    if isinstance(operand, Sequence):
        return any(map(_has_none, operand))
    return isinstance(operand, Value) and operand.meta is not None and 0 in operand.meta.shape


# Ops that write to a copy of their first operand, and the operand that says where.
_LEAVES_FIRST: Mapping[str, int] = {
    "aten::index_put": 1,
    "aten::scatter.src": 2,
    "aten::scatter.value": 2,
    "aten::slice_scatter": 1,
    "aten::select_scatter": 1,
}

_JOINS = frozenset(("aten::cat", "aten::concat"))
