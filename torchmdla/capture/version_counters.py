"""Refresh of weights after writes of PyTorch that keep a tensor's version.

FSDP gathers parameters into memory that autograd has saved. DDP overwrites buffers with those of rank 0. Both use
``torch.autograd._unsafe_preserve_version_counter``, so that the version does not show the write. Packed copies of
weights are identified by version. They are dropped when PyTorch has restored a version.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch.autograd import grad_mode

from torchmdla import _C


def install() -> None:
    """Drop the packed copies of a tensor at the end of each section that preserves its version."""
    section_class = grad_mode._unsafe_preserve_version_counter
    leave = section_class.__exit__

    # Replaced on the class: Dynamo recognises the class by its identity.
    @wraps(leave)
    def leave_and_refresh(section: Any, *raised: object) -> None:
        leave(section, *raised)
        _C.refresh(section.tensors)

    section_class.__exit__ = leave_and_refresh  # type: ignore[method-assign]
