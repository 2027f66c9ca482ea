"""Programs of one operator: every sample call of every operator that the cpu device supports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from torchmdla.testing.op_samples import SAMPLES
from torchmdla.testing.programs.program import Program, factory_of


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with enough elementwise users of its results that even a cheap operator becomes a group."""

    def program(*args: Any) -> Any:
        results = function(*args)
        return results, tree_map(_twice, results)

    return program


# PyTorch supports hardly any operator on these dtypes.
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})


def _twice(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
        return value
    if value.dtype in _UNSIGNED:
        return value
    invert = torch.logical_not if value.dtype == torch.bool else torch.neg
    return invert(invert(value))


def on_tensors(function: Callable[..., Any], arguments: Any) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Return ``function`` over the tensors among ``arguments``, with the other arguments bound, and these tensors."""
    leaves, spec = tree_flatten(arguments)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def program(*tensors: Tensor) -> Any:
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        return function(*tree_unflatten(values, spec))

    return program, tuple(leaves[index] for index in places)


def operator(name: str) -> Any:
    """Return the operator of a schema name with overload; ``None`` if Python cannot access it."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    except AttributeError:
        return None


def _programs() -> Iterator[Program]:
    for name, samples in SAMPLES.items():
        called = operator(name)
        for index, arguments in enumerate(samples):
            function, tensors = on_tensors(accept_by_position(called), arguments)
            if called is not None and tensors:
                title = f"operators.{name.partition('::')[2]}" + (f":{index}" if len(samples) > 1 else "")
                yield Program(title, factory_of(grouped(function)), tensors)


def accept_by_position(called: Any) -> Callable[..., Any]:
    """Return ``called`` with keyword-only arguments accepted by position."""

    def call(*values: Any) -> Any:
        names = [argument.name for argument in called._schema.arguments if argument.kwarg_only]
        free = len(called._schema.arguments) - len(names)
        return called(*values[:free], **dict(zip(names, values[free:], strict=False)))

    return call


PROGRAMS = list(_programs())
