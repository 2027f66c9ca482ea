"""The device type ``acap``, registered with PyTorch, and what its users call.

The C++ side (``src/acap/``) writes ops down and runs their graphs; here is what PyTorch asks of a device in Python.
"""

from __future__ import annotations

import torch

from torchmdla import _C
from torchmdla.capture.acap.device import acap_device

__all__ = ["acap_device", "is_pending", "mark_step", "set_most_pending_nodes"]


def mark_step() -> None:
    """Computes whatever tensors of the device are pending, of all threads, as one graph.

    A training loop that looks at no value calls it once a step.

    Raises:
        RuntimeError, IndexError: an op fails, as it would have failed in eager PyTorch. What does not depend on it is
            computed all the same.
    """
    _C.acap.mark_step()


def is_pending(tensor: torch.Tensor) -> bool:
    """Whether ``tensor``, on the device, has not been computed yet.

    Raises:
        ValueError: it is on another device.
    """
    return _C.acap.is_pending(tensor)


def set_most_pending_nodes(most: int) -> None:
    """Computes everything as :func:`mark_step` does when more than ``most`` ops are pending; 20000 at first.

    Raises:
        ValueError: ``most`` is negative.
    """
    if most < 0:
        raise ValueError(f"most must not be negative, got {most}")
    _C.acap.set_most_pending_nodes(most)
