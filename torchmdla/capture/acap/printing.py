"""Printing of acap tensors.

PyTorch formats a tensor with ops on it, which would be many small graphs. Instead the elements are copied to the CPU
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str


def install() -> None:
    """Make ``repr`` of a tensor on the device use a copy on the CPU. Call it once per process."""
    format_elements: Callable[..., str] = _tensor_str._tensor_str

    def on_the_cpu(tensor: torch.Tensor, *arguments: Any) -> str:
        shown = tensor.cpu() if tensor.device.type == "acap" else tensor
        return format_elements(shown, *arguments)

    _tensor_str._tensor_str = on_the_cpu
