"""PyTorch's device ``lazy``, compiled by torchmdla. See docs/lazy.md."""

from __future__ import annotations

from torchmdla.capture.lazy import (
    Backend,
    Computation,
    get_latest_computation,
    include_path,
    initialize,
    pending_computation,
    set_backend,
    set_verbose,
)

__all__ = [
    "Backend",
    "Computation",
    "get_latest_computation",
    "include_path",
    "initialize",
    "pending_computation",
    "set_backend",
    "set_verbose",
]
