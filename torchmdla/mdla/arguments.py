"""Arguments of the functions: options of the device, and the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from torchmdla import devices
from torchmdla.devices.mdla.options import Options


def options_with(changes: Mapping[str, Any]) -> Options:
    """Return the options in use with ``changes``, checked, and with the path of the library.

    Raises:
        TypeError, ValueError: as :meth:`Options.of`.
    """
    in_use = asdict(Options.from_text(devices.get("mdla").target().features))
    return Options.of({**in_use, **{name: value for name, value in changes.items() if value is not None}}).located()


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
