"""Import options that a device sets for its programs, as far as the modes of a call allow them."""

from __future__ import annotations

from collections.abc import Collection

from torchmdla import devices
from torchmdla.importer import Wanted
from torchmdla.importer.types import ProductKind


def wanted_by(device: devices.Device, bf16_products: Collection[ProductKind]) -> Wanted:
    """Return the import options of ``device``.

    ``bf16_products`` are the kinds of float32 products that PyTorch's settings allow to be computed in bfloat16.
    """
    return Wanted(device.composite_ops, frozenset(bf16_products if device.multiplies_bf16 else ()))
