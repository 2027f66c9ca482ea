"""Printing of acap tensors.

PyTorch formats a tensor by ops on it: many small graphs. Its elements are looked at once, on the CPU, instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _tensor_str


def install() -> None:
    """Lets ``repr`` of a tensor on the device go by a copy on the CPU. Once in a process."""
    format_elements: Callable[..., str] = _tensor_str._tensor_str

    def on_the_cpu(tensor: torch.Tensor, *arguments: Any) -> str:
        shown = tensor.cpu() if tensor.device.type == "acap" else tensor
        return format_elements(shown, *arguments)

    _tensor_str._tensor_str = on_the_cpu
