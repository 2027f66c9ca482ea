"""Operators on lists of tensors, as optimisers use them, decomposed into one call for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


@lru_cache(maxsize=1)
def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decomposition of each functional overload of a ``_foreach`` operator into calls for single tensors."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in _SAME_FOR_EACH:
        packet = getattr(aten, f"_foreach_{name}")
        for overload in (getattr(packet, overload_name) for overload_name in packet.overloads()):
            if not overload._schema.is_mutable and (name, overload._overloadname) not in _SCALARS_IN_A_TENSOR:
                table[overload] = partial(_each, getattr(aten, name))
    return table


# Names of operators that apply the operator of the same name to each tensor of the lists.
_SAME_FOR_EACH = [
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "copy",
    "div",
    "exp",
    "lerp",
    "log",
    "mul",
    "neg",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "sqrt",
    "sub",
    "tanh",
]

_SCALARS_IN_A_TENSOR = frozenset([("addcdiv", "Tensor"), ("addcmul", "Tensor")])


def _each(function: Any, tensors: list[Tensor], *arguments: Any, **keywords: Any) -> list[Any]:
    def of(value: Any, index: int) -> Any:
        return value[index] if isinstance(value, list | tuple) else value

    return [
        function(
            tensor,
            *(of(argument, index) for argument in arguments),
            **{name: of(value, index) for name, value in keywords.items()},
        )
        for index, tensor in enumerate(tensors)
    ]
