"""Moving of modules to and from the device.

PyTorch lets a parameter keep its identity when its data moves between the devices that it knows; of a device from
outside, ``module.to(…)`` makes new parameters, which unties tied weights and leaves optimisers with the old ones. It
can swap the tensors instead, so moves that have to do with this device do that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def install() -> None:
    """Lets modules keep their parameters when they move to the device or away. Once in a process."""
    apply = nn.Module._apply

    def applied(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        if before or not _changes_device(module, function):
            return apply(module, function, recurse)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(module, function, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    nn.Module._apply = applied  # type: ignore[method-assign]


def _changes_device(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether ``function`` moves the module's parameters to the device or away."""
    first = next(module.parameters(), None)
    if first is None:
        return False
    there = first.device.type == "acap"
    with torch.no_grad():
        return there != (function(first.new_empty(0)).device.type == "acap")
