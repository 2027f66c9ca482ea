"""Moves of modules to and from the device.

PyTorch keeps a parameter's identity when its data moves between its own devices. For an external device
``module.to(…)`` makes new parameters, which unties tied weights and leaves optimisers with the old parameters. Here
parameters move first and in place, so that PyTorch replaces none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchmdla import _C


def install() -> None:
    """Make modules keep their parameters when they move to or from the device. Call it once per process."""
    apply: Callable[..., Any] = nn.Module._apply

    def applied(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        _move(module.parameters(recurse), function)
        return apply(module, function, recurse)

    nn.Module._apply = applied  # type: ignore[method-assign]


def _move(parameters: Any, function: Callable[[Tensor], Tensor]) -> None:
    """Move the parameters, with their gradients, that ``function`` moves to or from the device."""
    moves: dict[torch.device, bool] = {}
    with torch.no_grad():
        for parameter in list(parameters):
            here = parameter.device
            if here not in moves:
                there = function(torch.empty(0, device=here)).device
                moves[here] = here != there and "acap" in (here.type, there.type)
            if moves[here]:
                gradient = parameter.grad
                parameter.grad = None
                _C.acap.set_data(parameter, function(parameter))
                parameter.grad = gradient if gradient is None else function(gradient)
