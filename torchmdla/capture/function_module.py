"""A function as a module, which ``torch.export`` wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class FunctionModule(nn.Module):
    """Calls ``function``, with inputs by position."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)
