"""Data that a model is called with: batches, with a progress bar, and the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from tqdm import tqdm


def batches_of(data: Iterable[Any], count: int | None, title: str) -> Iterator[Any]:
    """Yield the first ``count`` batches, or all, with a progress bar on a terminal.

    Raises:
        TypeError: ``data`` is a tensor, whose rows are not batches.
        ValueError: there is not any batch.
    """
    if isinstance(data, torch.Tensor):
        raise TypeError("data is a tensor: pass an iterable of batches, such as [x] or a DataLoader")
    bar = tqdm(data, desc=f"torchmdla: {title}", unit="batch", disable=None, leave=False)
    has_batches = False
    for batch in islice(bar, count):
        has_batches = True
        yield batch
    if not has_batches:
        raise ValueError(f"there is nothing for {title}: no batches")


def arguments_of(inputs: Any) -> tuple[Any, ...]:
    """Return the arguments of a call; ``inputs`` is a tuple or list of them, or the only one."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def positions_of(model: Any) -> int | None:
    """Return the largest number of positional arguments of a model, or None for any number."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        function: Any = model.forward if isinstance(model, torch.jit.ScriptModule) else model
        return len(function.schema.arguments) - isinstance(model, torch.jit.ScriptModule)
    parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return sum(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters
    )
