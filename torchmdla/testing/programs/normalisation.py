"""Normalisation layers in eval and in training mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from torchmdla.testing.programs.inputs import channels_last, normal
from torchmdla.testing.programs.program import in_eval, modules, with_gradients

ROWS, SIGNAL, IMAGE, VOLUME = normal(6, 8), normal(3, 4, 9), normal(2, 4, 7, 5), normal(2, 4, 3, 4, 5)


def with_statistics(make: Callable[[int], nn.Module], channels: int) -> Callable[[], nn.Module]:
    """Return a factory of batch norms with random running statistics and affine parameters."""

    def made() -> nn.Module:
        norm = make(channels)
        for tensor in [*norm.parameters(), *norm.buffers()]:
            if tensor.is_floating_point():
                nn.init.uniform_(tensor, 0.5, 1.5)
        return norm

    return made


BATCH_NORMS = {
    "batch1d": (with_statistics(nn.BatchNorm1d, 8), ROWS),
    "batch1d_signal": (with_statistics(nn.BatchNorm1d, 4), SIGNAL),
    "batch2d": (with_statistics(nn.BatchNorm2d, 4), IMAGE),
    "batch2d_channels_last": (with_statistics(nn.BatchNorm2d, 4), channels_last(IMAGE)),
    "batch2d_plain": (with_statistics(lambda n: nn.BatchNorm2d(n, affine=False), 4), IMAGE),
    "batch2d_untracked": (with_statistics(lambda n: nn.BatchNorm2d(n, track_running_stats=False), 4), IMAGE),
    "batch2d_cumulative": (with_statistics(lambda n: nn.BatchNorm2d(n, momentum=None), 4), IMAGE),
    "batch3d": (with_statistics(nn.BatchNorm3d, 4), VOLUME),
    "instance2d": (with_statistics(lambda n: nn.InstanceNorm2d(n, affine=True), 4), IMAGE),
    "instance2d_tracked": (with_statistics(lambda n: nn.InstanceNorm2d(n, track_running_stats=True), 4), IMAGE),
}


def rms_and_products() -> nn.Module:
    module = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 8), nn.GELU())
    nn.init.uniform_(module[0].weight)  # type: ignore[arg-type]
    return module


OTHERS = {
    "layer": (lambda: nn.LayerNorm(8), ROWS),
    "layer_plain": (lambda: nn.LayerNorm(8, elementwise_affine=False), ROWS),
    "layer_image": (lambda: nn.LayerNorm((4, 7, 5)), IMAGE),
    "layer_without_bias": (lambda: nn.LayerNorm(8, bias=False, eps=1e-3), ROWS),
    "layer_wide": (lambda: nn.LayerNorm(300), normal(3, 300)),
    "layer_double": (lambda: nn.LayerNorm(8).double(), normal(6, 8, dtype=torch.float64)),
    "group": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "group_of_signal": (lambda: nn.GroupNorm(4, 4), SIGNAL),
    "rms": (lambda: nn.RMSNorm(8), ROWS),
    "rms_and_products": (rms_and_products, normal(16, 64)),
    "local_response": (lambda: nn.LocalResponseNorm(3), IMAGE),
    "weight": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 5)), ROWS),
}


PROGRAMS = [
    *with_gradients(in_eval(modules("normalisation", BATCH_NORMS, layers=4))),
    *with_gradients(
        modules("normalisation", {f"{name}_training": entry for name, entry in BATCH_NORMS.items()}, layers=4)
    ),
    *with_gradients(modules("normalisation", OTHERS, layers=4)),
]
