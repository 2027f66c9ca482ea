"""Writes of PyTorch's own that leave a tensor at the version that it had.

FSDP gathers parameters into memory that autograd has saved, and DDP overwrites buffers by those of rank 0, both under
``torch.autograd._unsafe_preserve_version_counter``, so that nothing tells afterwards that there was a write. What is
packed of weights is current by their versions: it goes when PyTorch has put a version back.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.autograd import grad_mode

from torchmdla import _C


def install() -> None:
    """Has what was packed of a tensor dropped at the end of each such section that is for it."""
    kept = grad_mode._unsafe_preserve_version_counter
    leave = kept.__exit__

    # On the class: Dynamo knows it by its identity.
    @wraps(leave)
    def leave_and_refresh(section: Any, *raised: object) -> None:
        leave(section, *raised)
        _C.refresh(section.tensors)

    kept.__exit__ = leave_and_refresh  # type: ignore[method-assign]
