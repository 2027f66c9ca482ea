"""Moving of modules to and from the device.

PyTorch lets a parameter keep its identity when its data moves between the devices that it knows; of a device from
outside, ``module.to(…)`` makes new parameters, which unties tied weights and leaves optimisers with the old ones. Here
parameters move first, in place, so that nothing is left for PyTorch to replace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchmdla import _C


def install() -> None:
    """Lets modules keep their parameters when they move to the device or away. Once in a process."""
    apply: Callable[..., Any] = nn.Module._apply

    def applied(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        _move(module.parameters(recurse), function)
        return apply(module, function, recurse)

    nn.Module._apply = applied  # type: ignore[method-assign]


def _move(parameters: Any, function: Callable[[Tensor], Tensor]) -> None:
    """Moves those parameters, and their gradients, that ``function`` moves to the device or away."""
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
