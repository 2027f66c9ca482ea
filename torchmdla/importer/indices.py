"""Indices by which ops write: eager raises where one is out of bounds, upstream writes to whatever lies there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torchmdla.errors import CompileError
from torchmdla.importer.emitter import Emitter, Value
from torchmdla.importer.types import TensorMeta

SCATTERS = frozenset(("aten::scatter.src", "aten::scatter.value"))


def from_front(emitter: Emitter, value: Value, indices: Sequence[object]) -> list[object]:
    """Indices of dimensions, None for a whole one, with what counts from the end counted from the front. Makes the call
    fail where one is out of bounds.

    Raises:
        CompileError: there are no elements to choose from.
    """
    assert value.meta is not None
    return [
        _wrapped(emitter, index, size) if isinstance(index, Value) else index
        for index, size in zip(indices, value.meta.shape, strict=False)
    ]


def check(emitter: Emitter, value: Value, dim: int, index: Value) -> None:
    """Makes the call fail where ``index`` is no place along ``dim``."""
    assert value.meta is not None
    _check_places(emitter, index, value.meta.shape[dim] if value.meta.shape else 1)


def _wrapped(emitter: Emitter, index: Value, size: int) -> Value:
    assert index.meta is not None
    if not size:
        raise CompileError("an index into no elements is not supported", scope="sizes")
    counts_back = _compared(emitter, "lt", index, 0)
    moved = emitter.tensor_op("torch.aten.add.Scalar", [index, emitter.integer(size), emitter.integer(1)], index.meta)
    wrapped = emitter.tensor_op("torch.aten.where.self", [counts_back, moved, index], index.meta)
    _check_places(emitter, wrapped, size)
    return wrapped


def _check_places(emitter: Emitter, index: Value, size: int) -> None:
    low, high = _compared(emitter, "ge", index, 0), _compared(emitter, "lt", index, size)
    assert low.meta is not None
    inside = emitter.tensor_op("torch.aten.logical_and", [low, high], low.meta)
    every = emitter.tensor_op("torch.aten.all", [inside], TensorMeta(torch.bool, (), ()))
    emitter.check(every, "index out of bounds")


def _compared(emitter: Emitter, relation: str, index: Value, number: int) -> Value:
    assert index.meta is not None
    flags = replace(index.meta, dtype=torch.bool)
    return emitter.tensor_op(f"torch.aten.{relation}.Scalar", [index, emitter.integer(number)], flags)
