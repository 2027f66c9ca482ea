"""What packages want of their binaries and of older versions of PyTorch, so that they can be imported beside a PyTorch
without CUDA.

torchvision's package of the Python index holds operators for CUDA, which do not load here. Without them it cannot be
imported, since it names shapes of its operators. So these are defined in Python, where the binary does not load. Import
this module before torchvision.
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
    """Stand in for torchvision's question whether its binary is loaded. TorchScript compiles it, too."""
    return True


def announce() -> None:
    """Tell torchvision that its operators are there. It looked for its binary when it was imported."""
    for name in ("torchvision.extension", "torchvision.ops.roi_align"):
        importlib.import_module(name)._has_ops = has_operators


def suppress_boxes(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the boxes that are kept, the highest score first: one that overlaps a kept one is dropped."""
    order = scores.argsort(descending=True, stable=True)
    x1, y1, x2, y2 = dets[order].unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    width = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
    height = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
    both = width * height
    overlaps = both / (areas[:, None] + areas - both) > iou_threshold
    kept = torch.ones(len(order), dtype=torch.bool)
    for place in range(len(order)):
        if kept[place]:
            kept[place + 1 :] &= ~overlaps[place, place + 1 :]
    return order[kept]


def align_regions(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Return what torchvision's own formula in Python makes of regions of interest."""
    from torchvision.ops.roi_align import _roi_align

    # Without its decorator, which compiles it by another compiler.
    plain = inspect.unwrap(_roi_align)
    return plain(features, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned)


def _define_operators() -> None:
    for schema in _SCHEMAS:
        _library.define(schema)
    _library.impl("nms", suppress_boxes, "CPU")
    _library.impl("roi_align", align_regions, "CompositeImplicitAutograd")


def _has_binary() -> bool:
    """Return whether torchvision's binary loads; true where there is no torchvision."""
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
