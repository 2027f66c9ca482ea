"""Convolutions of every rank: strides, padding, dilation, groups, transposed, channels-last, fused with other ops."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from torchmdla.testing.programs.inputs import channels_last, normal
from torchmdla.testing.programs.program import functions, in_eval, modules, with_gradients

SIGNAL, IMAGE, VOLUME = normal(2, 4, 15), normal(2, 4, 11, 9), normal(1, 2, 6, 7, 5)

CONVOLUTIONS = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), SIGNAL),
    "conv1d_strided": (lambda: nn.Conv1d(4, 6, 5, stride=2, padding=2), SIGNAL),
    "conv1d_dilated": (lambda: nn.Conv1d(4, 6, 3, dilation=3, bias=False), SIGNAL),
    "conv1d_grouped": (lambda: nn.Conv1d(4, 8, 3, groups=2), SIGNAL),
    "conv1d_causal": (lambda: nn.Sequential(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(4, 4, 3, dilation=2)), SIGNAL),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3), IMAGE),
    "conv2d_padded": (lambda: nn.Conv2d(4, 6, 3, padding=1), IMAGE),
    "conv2d_same": (lambda: nn.Conv2d(4, 6, (3, 5), padding="same"), IMAGE),
    "conv2d_same_even_kernel": (lambda: nn.Conv2d(4, 6, 4, padding="same"), IMAGE),
    "conv2d_strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), IMAGE),
    "conv2d_uneven": (lambda: nn.Conv2d(4, 6, (1, 3), stride=(2, 1), padding=(0, 2), dilation=(1, 2)), IMAGE),
    "conv2d_dilated": (lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2), IMAGE),
    "conv2d_pointwise": (lambda: nn.Conv2d(4, 16, 1), IMAGE),
    "conv2d_pointwise_strided": (lambda: nn.Conv2d(4, 16, 1, stride=2, bias=False), IMAGE),
    "conv2d_grouped": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=2), IMAGE),
    "conv2d_depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), IMAGE),
    "conv2d_depth_multiplier": (lambda: nn.Conv2d(4, 12, 3, padding=1, groups=4), IMAGE),
    "conv2d_separable": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU6(), nn.Conv2d(4, 8, 1)),
        IMAGE,
    ),
    "conv2d_large_kernel": (lambda: nn.Conv2d(4, 3, 9, padding=4), IMAGE),
    "conv2d_kernel_of_image": (lambda: nn.Conv2d(4, 3, (11, 9)), IMAGE),
    "conv2d_wide": (lambda: nn.Conv2d(32, 48, 3, padding=1), normal(1, 32, 14, 14)),
    "conv2d_one_channel": (lambda: nn.Conv2d(1, 1, 3), normal(1, 1, 5, 5)),
    "conv2d_unbatched": (lambda: nn.Conv2d(4, 6, 3), normal(4, 8, 8)),
    "conv2d_channels_last": (lambda: nn.Conv2d(4, 6, 3, padding=1), channels_last(IMAGE)),
    "conv2d_channels_last_weight": (
        lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        channels_last(IMAGE),
    ),
    "conv2d_reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE),
    "conv2d_circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMAGE),
    "conv2d_double": (lambda: nn.Conv2d(4, 6, 3).double(), normal(2, 4, 7, 6, dtype=torch.float64)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 3), VOLUME),
    "conv3d_strided": (lambda: nn.Conv3d(2, 4, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)), VOLUME),
    "conv3d_grouped": (lambda: nn.Conv3d(2, 4, 3, groups=2, padding=1), VOLUME),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1), SIGNAL),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 3, 3), IMAGE),
    "transposed2d_strided": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "transposed2d_upsampling": (lambda: nn.ConvTranspose2d(4, 3, 2, stride=2, bias=False), IMAGE),
    "transposed2d_grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), IMAGE),
    "transposed2d_dilated": (lambda: nn.ConvTranspose2d(4, 3, 3, dilation=2), IMAGE),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), VOLUME),
}

FUSED = {
    "conv_batch_norm_relu": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        IMAGE,
    ),
    "conv_residual": (lambda: _Residual(), IMAGE),
    "conv_stem": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        IMAGE,
    ),
    "conv_mean_linear": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
        IMAGE,
    ),
    "conv_shared": (lambda: _Shared(), IMAGE),
}


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class _Shared(nn.Module):
    """Layer that is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return x


WEIGHTS_AS_INPUTS = {
    "functional2d": (lambda x, w, b: functional.conv2d(x, w, b, padding=1), IMAGE, normal(6, 4, 3, 3), normal(6)),
    "functional2d_of_result": (lambda x, w: functional.conv2d(x * 2, w.tanh()), IMAGE, normal(6, 4, 3, 3)),
    "unfold_and_fold": (
        lambda x: functional.fold(functional.unfold(x, 3, padding=1) * 0.5, (11, 9), 3, padding=1),
        IMAGE,
    ),
}

PROGRAMS = [
    *with_gradients(in_eval(modules("convolutions", CONVOLUTIONS, layers=4))),
    *with_gradients(in_eval(modules("convolutions", FUSED, layers=8))),
    *with_gradients(functions("convolutions", WEIGHTS_AS_INPUTS, layers=4)),
]
