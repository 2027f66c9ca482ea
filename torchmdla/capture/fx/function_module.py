"""Function as a module, which ``torch.export`` requires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class FunctionModule(nn.Module):
    """Module that calls ``function`` with positional inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)
