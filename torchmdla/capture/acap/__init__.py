"""Device type ``acap``, registered with PyTorch, and its functions for users.

The C++ side (``src/acap/``) records ops and runs their graphs. This package has the Python part that PyTorch requires
of a device.
"""

from __future__ import annotations

import torch

from torchmdla import _C
from torchmdla.capture.acap.device import acap_device

__all__ = ["acap_device", "is_pending", "mark_step", "set_most_pending_nodes"]


def mark_step() -> None:
    """Compute all pending tensors of the device, of all threads, as one graph.

    A training loop that reads no value calls this function once per step.

    Raises:
        RuntimeError, IndexError: an op fails, as it would have failed in eager PyTorch. Tensors that do not depend on
            it are computed all the same.
    """
    _C.acap.mark_step()


def is_pending(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor``, which is on the device, is still to be computed.

    Raises:
        ValueError: ``tensor`` is on another device.
    """
    return _C.acap.is_pending(tensor)


def set_most_pending_nodes(most: int) -> None:
    """Set the number of pending ops above which everything is computed as by :func:`mark_step`.

    The initial value is 20000.

    Raises:
        ValueError: ``most`` is negative.
    """
    if most < 0:
        raise ValueError(f"most must not be negative, got {most}")
    _C.acap.set_most_pending_nodes(most)
