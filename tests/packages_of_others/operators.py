"""Replacements for binaries and old PyTorch names that packages need, so that a PyTorch without CUDA can import them.

torchvision's package of the Python index contains operators for CUDA, which do not load without CUDA. torchvision
cannot be imported without them, because it registers shapes of its operators. If the binary does not load, this module
defines them in Python. Import this module before torchvision.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import dataloader

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold, float scale, int zero_point) -> Tensor",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
)

_library = torch.library.Library("torchvision", "FRAGMENT")


def has_operators() -> bool:
    """Return True in place of torchvision's check whether its binary is loaded. TorchScript also compiles this."""
    return True


def announce() -> None:
    """Mark torchvision's operators as available. torchvision looked for its binary when it was imported."""
    for name in ("torchvision.extension", "torchvision.ops.roi_align"):
        importlib.import_module(name)._has_ops = has_operators


def suppress_boxes(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the retained boxes, the highest score first. Boxes that overlap a retained box are dropped."""
    order = scores.argsort(descending=True, stable=True)
    x1, y1, x2, y2 = dets[order].unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    width = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
    height = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
    both = width * height
    overlaps = both / (areas[:, None] + areas - both) > iou_threshold
    retained = torch.ones(len(order), dtype=torch.bool)
    for place in range(len(order)):
        if retained[place]:
            retained[place + 1 :] &= ~overlaps[place, place + 1 :]
    return order[retained]


def align_regions(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Align regions of interest with torchvision's own Python implementation."""
    from torchvision.ops.roi_align import _roi_align

    # Remove its decorator, which compiles the function with another compiler.
    plain = inspect.unwrap(_roi_align)
    return plain(features, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)


def _define_operators() -> None:
    for schema in _SCHEMAS:
        _library.define(schema)
    _library.impl("nms", suppress_boxes, "CPU")
    _library.impl("roi_align", align_regions, "CompositeImplicitAutograd")


def _has_binary() -> bool:
    """Return whether torchvision's binary loads, or True if torchvision is not installed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    try:
        torch.ops.load_library(str(Path(spec.origin).with_name("_C.so")))
    except OSError:
        return False
    return True


if not _has_binary():
    _define_operators()

# schnetpack imports this name, which PyTorch no longer has.
if not hasattr(dataloader, "T_co"):
    dataloader.T_co = TypeVar("T_co", covariant=True)
