"""The acap device: tensors that remember what they are computed from, and compute when someone looks.

See docs/acap.md.
"""

from __future__ import annotations

from torchmdla.capture.acap import acap_device, is_pending, mark_step, set_most_pending_nodes

__all__ = ["acap_device", "is_pending", "mark_step", "set_most_pending_nodes"]
