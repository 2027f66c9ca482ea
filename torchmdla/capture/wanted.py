"""What a device wants of programs, as far as a call's modes of computing allow it."""

from __future__ import annotations

from collections.abc import Collection

from torchmdla import devices
from torchmdla.importer import Wanted
from torchmdla.importer.types import ProductKind


def wanted_by(device: devices.Device, bf16_products: Collection[ProductKind]) -> Wanted:
    """What ``device`` wants. ``bf16_products``: of float32, that PyTorch's settings allow to be of bfloat16."""
    return Wanted(device.composite_ops, frozenset(bf16_products if device.multiplies_bf16 else ()))
