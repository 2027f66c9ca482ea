"""Device ``acap``, whose tensors record their operators and compute when a value is needed.

See docs/acap.md.
"""

from __future__ import annotations

from torchmdla.capture.acap import acap_device, is_pending, mark_step, set_most_pending_nodes

__all__ = ["acap_device", "is_pending", "mark_step", "set_most_pending_nodes"]
