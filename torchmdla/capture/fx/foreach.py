"""Decompositions of the operators on lists of tensors that optimisers use, into one call for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of each functional overload of a ``_foreach`` operator into calls for single tensors."""
    table: dict[Any, Callable[..., Any]] = {}
    for schema in torch._C._jit_get_all_schemas():
        base, _, name = schema.name.partition("::_foreach_")
        if base != "aten" or schema.is_mutable or (name, schema.overload_name) in _SCALARS_IN_A_TENSOR:
            continue
        function = _FUNCTIONS.get((name, schema.overload_name), getattr(aten, name, None))
        if function is not None:
            overload = getattr(getattr(aten, f"_foreach_{name}"), schema.overload_name or "default")
            table[overload] = partial(_apply_to_each, function)
    return table


def _vector_norm(tensor: torch.Tensor, order: float, dtype: torch.dtype | None = None) -> Any:
    return aten.linalg_vector_norm(tensor, order, None, False, dtype=dtype)


def _addcdiv(tensor: torch.Tensor, numerator: torch.Tensor, denominator: torch.Tensor, value: float = 1) -> Any:
    return aten.addcdiv(tensor, numerator, denominator, value=value)


def _addcmul(tensor: torch.Tensor, factor: torch.Tensor, other: torch.Tensor, value: float = 1) -> Any:
    return aten.addcmul(tensor, factor, other, value=value)


# Functions for a single tensor that differ from the operator of the same name.
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("norm", "Scalar"): _vector_norm,
    ("addcdiv", "Scalar"): _addcdiv,
    ("addcdiv", "ScalarList"): _addcdiv,
    ("addcmul", "Scalar"): _addcmul,
    ("addcmul", "ScalarList"): _addcmul,
    ("maximum", "Scalar"): aten.clamp_min,
    ("maximum", "ScalarList"): aten.clamp_min,
    ("minimum", "Scalar"): aten.clamp_max,
    ("minimum", "ScalarList"): aten.clamp_max,
}

_SCALARS_IN_A_TENSOR = frozenset([("addcdiv", "Tensor"), ("addcmul", "Tensor")])


def _apply_to_each(function: Any, *arguments: Any, **keywords: Any) -> list[Any]:
    def of(value: Any, index: int) -> Any:
        return value[index] if isinstance(value, list | tuple) else value

    count = next(len(argument) for argument in arguments if isinstance(argument, list | tuple))
    return [
        function(
            *(of(argument, index) for argument in arguments),
            **{name: of(value, index) for name, value in keywords.items()},
        )
        for index in range(count)
    ]
