"""Pooling, padding, resizing."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from torchmdla.testing.programs.inputs import channels_last, normal
from torchmdla.testing.programs.program import functions, modules, with_gradients

SIGNAL, IMAGE, VOLUME = normal(2, 4, 15), normal(2, 4, 11, 9), normal(1, 2, 6, 7, 5)

POOLS = {
    "max1d": (lambda: nn.MaxPool1d(3, 2, 1), SIGNAL),
    "max2d": (lambda: nn.MaxPool2d(2), IMAGE),
    "max2d_overlapping": (lambda: nn.MaxPool2d(3, 2, 1), IMAGE),
    "max2d_ceil": (lambda: nn.MaxPool2d(2, ceil_mode=True), IMAGE),
    "max2d_dilated": (lambda: nn.MaxPool2d(2, 1, dilation=2), IMAGE),
    "max2d_channels_last": (lambda: nn.MaxPool2d(2), channels_last(IMAGE)),
    "max2d_with_indices": (lambda: nn.MaxPool2d(2, return_indices=True), IMAGE),
    "max3d": (lambda: nn.MaxPool3d(2), VOLUME),
    "average1d": (lambda: nn.AvgPool1d(3, 2, 1), SIGNAL),
    "average2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "average2d_padded": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    "average2d_ceil": (lambda: nn.AvgPool2d(2, ceil_mode=True), IMAGE),
    "average2d_divisor": (lambda: nn.AvgPool2d(2, divisor_override=3), IMAGE),
    "average3d": (lambda: nn.AvgPool3d(2), VOLUME),
    "adaptive_average1d": (lambda: nn.AdaptiveAvgPool1d(4), SIGNAL),
    "adaptive_average2d": (lambda: nn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "global_average2d": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive_average3d": (lambda: nn.AdaptiveAvgPool3d(2), VOLUME),
    "adaptive_max2d": (lambda: nn.AdaptiveMaxPool2d((3, 2)), IMAGE),
    "lp2d": (lambda: nn.LPPool2d(2, 2), IMAGE),
    "pad_constant": (lambda: nn.ConstantPad2d((1, 2, 0, 1), 0.5), IMAGE),
    "pad_zero_cropping": (lambda: nn.ZeroPad2d((-1, 2, 0, -2)), IMAGE),
    "pad_reflect": (lambda: nn.ReflectionPad2d(2), IMAGE),
    "pad_replicate": (lambda: nn.ReplicationPad2d((1, 2, 3, 0)), IMAGE),
    "pad_circular": (lambda: nn.CircularPad2d(1), IMAGE),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), IMAGE),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), normal(2, 3, 8, 6)),
    "channel_shuffle": (lambda: nn.ChannelShuffle(2), IMAGE),
    "upsample_nearest": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "upsample_bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "upsample_corners": (lambda: nn.Upsample((20, 13), mode="bilinear", align_corners=True), IMAGE),
    "upsample_bicubic": (lambda: nn.Upsample(scale_factor=1.5, mode="bicubic"), IMAGE),
    "upsample_trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), VOLUME),
}

RESIZING = {
    "shrink_nearest": (lambda x: functional.interpolate(x, scale_factor=0.5), IMAGE),
    "shrink_area": (lambda x: functional.interpolate(x, size=(4, 3), mode="area"), IMAGE),
    "nearest_exact": (lambda x: functional.interpolate(x, size=(7, 5), mode="nearest-exact") + 1, IMAGE),
    "antialias": (lambda x: functional.interpolate(x, size=(5, 4), mode="bilinear", antialias=True) + 1, IMAGE),
    "grid_sample": (
        lambda x, grid: functional.grid_sample(x, grid.tanh(), align_corners=False),
        IMAGE,
        normal(2, 5, 6, 2),
    ),
    "affine_grid": (
        lambda x, theta: functional.grid_sample(x, functional.affine_grid(theta, [2, 4, 6, 5]), align_corners=True),
        IMAGE,
        normal(2, 2, 3),
    ),
}

PROGRAMS = [
    *with_gradients(modules("pooling", POOLS, layers=2)),
    *with_gradients(functions("pooling", RESIZING, layers=2)),
]
