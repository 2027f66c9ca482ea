"""Names of tensors in a user's program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn


def names_in_frame(frame: FrameType) -> dict[int, str]:
    """Return the names of tensors that the variables of a frame lead to, by storage.

    The search covers tensors, parameters, buffers and gradients of modules, states of optimisers, and lists, tuples and
    dictionaries of these. The first name found counts. The frame's local variables come before its globals.
    """
    names: dict[int, str] = {}
    for variables in (frame.f_locals, frame.f_globals):
        for name, value in list(variables.items()):
            for full_name, tensor in _named(name, value):
                if tensor.layout == torch.strided:
                    names.setdefault(tensor.untyped_storage()._cdata, full_name)
    return names


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        if value.is_leaf and value.grad is not None:
            yield f"{name}.grad", value.grad
    elif isinstance(value, nn.Module):
        for key, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield from _named(f"{name}.{key}", tensor)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _state(name, value)
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            if isinstance(item, Tensor):
                yield from _named(f"{name}[{index}]", item)
    elif type(value) is dict:
        for key, item in list(value.items()):
            if isinstance(item, Tensor):
                yield from _named(f"{name}[{key!r}]", item)


def _state(name: str, optimiser: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        state: Mapping[str, Any] = optimiser.state.get(parameter, {})
        for key, item in state.items():
            if isinstance(item, Tensor):
                yield f"{name}.state[{index}][{key!r}]", item
