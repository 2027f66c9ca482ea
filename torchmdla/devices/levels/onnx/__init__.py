"""Level ONNX: float32 networks as an ONNX model whose weights have recipes.

This module does not need the package ``onnx``.
"""

from __future__ import annotations

from dataclasses import dataclass

_COMPOSITE = """
leaky_relu convolution _convolution _convolution.deprecated linear addmm batch_norm
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d
upsample_nearest1d upsample_nearest2d upsample_nearest1d.vec upsample_nearest2d.vec
upsample_bilinear2d upsample_bilinear2d.vec
"""

# ONNX has operations for these operators, so the importer must not decompose them.
COMPOSITE_OPS = frozenset(f"aten::{name}" for name in _COMPOSITE.split())


@dataclass(frozen=True)
class Port:
    """Input or output of the model: its ``position`` among the program's arguments or results, and its sizes."""

    position: int
    shape: tuple[int, ...]
